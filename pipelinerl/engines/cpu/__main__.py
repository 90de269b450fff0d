"""Start an embedded engine: `python -m pipelinerl.engines.cpu --model DIR --port 8080`."""

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported stays: to look for garbage in it took a fifth of a start
import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import torch

from pipelinerl.base import faults
from pipelinerl.base.access import CONTROL_TOKEN_VARIABLE, AccessError, check_binding, control_token
from pipelinerl.base.errors import CommandParser
from pipelinerl.engines.cpu.model import PackedModel, UnsupportedModel
from pipelinerl.engines.cpu.server import EngineServer, listening
from pipelinerl.engines.cpu.settings import (
    DEFAULT_MODEL_LEN,
    DTYPES,
    EngineSettings,
    default_model_len,
)
from pipelinerl.modeling.loading import DamagedModel

REFUSED = 2
"""Exit status of a model or settings that no further start could serve; the supervisor makes none."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code, with one line on stderr when it is not 0."""
    options = _parser().parse_args(arguments)
    faults.hit("engine:start")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    values = vars(options)
    host, port = values.pop("host"), values.pop("port")
    values.setdefault("max_model_len", default_model_len(options.model))
    settings = EngineSettings(**values)
    try:
        check_binding(host, control_token())
    except AccessError as error:
        return _failed(str(error), REFUSED)
    problems = settings.problems()
    for problem in problems:
        _failed(problem)
    if problems:
        return REFUSED
    torch.set_num_threads(settings.threads)
    # HTTP and the forward pass share the interpreter: with its usual turns of 5 ms each of the two would wait
    # that long for the other, again and again.
    sys.setswitchinterval(0.0005)
    try:
        model = PackedModel(settings)
    # Its message names the folder and what is wrong in it.
    except DamagedModel as error:
        return _failed(str(error), REFUSED)
    except (UnsupportedModel, FileNotFoundError, ValueError) as error:
        return _failed(f"cannot load {settings.model}: {_one_line(error)}", REFUSED)
    except OSError as error:
        return _failed(f"cannot load {settings.model}: {_one_line(error)}")
    # The model's objects live as long as the process; no collection has to visit them again.
    gc.freeze()
    try:
        return asyncio.run(_serve(settings, model, host, port))
    # The tokeniser is read when the server is made.
    except UnsupportedModel as error:
        return _failed(f"cannot load {settings.model}: {_one_line(error)}", REFUSED)
    except OSError as error:
        return _failed(f"cannot listen on {host}:{port}: {_one_line(error)}")


async def _serve(settings: EngineSettings, model: PackedModel, host: str, port: int) -> int:
    server = EngineServer(settings, model)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with listening(server, host, port) as bound:
        print(
            f"engine: serving {settings.served_model_name} on http://{host}:{bound} "
            f"({settings.dtype}, {settings.threads} threads, {model.forward_name})",
            flush=True,
        )
        waits = {asyncio.ensure_future(stop.wait()), asyncio.ensure_future(server.failed.wait())}
        _, unfinished = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in unfinished:
            one.cancel()
    if server.engine.failure is not None:
        return _failed(_one_line(server.engine.failure))
    return 0


def _parser() -> argparse.ArgumentParser:
    # What is left out has the default of `EngineSettings`.
    parser = CommandParser(
        prog="python -m pipelinerl.engines.cpu",
        description=__doc__,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--model", type=Path, required=True, help="folder in Hugging Face format")
    parser.add_argument("--served-model-name")
    other = f"any but loopback takes a token ({CONTROL_TOKEN_VARIABLE})"
    parser.add_argument("--host", default="127.0.0.1", help=other)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--max-model-len",
        type=int,
        help=f"tokens of a prompt and its answer; default: {DEFAULT_MODEL_LEN}, or all the model has",
    )
    parser.add_argument("--dtype", help=" or ".join(DTYPES))
    parser.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        help="compute a beginning that several requests have once, as long as the weights stay",
    )
    parser.add_argument(
        "--enable-return-routed-experts",
        action="store_true",
        help="say which experts each token went to, for a trainer that replays them",
    )
    for name in ("--max-num-seqs", "--max-prefill-tokens", "--max-waiting", "--threads"):
        parser.add_argument(name, type=int)
    return parser


def _failed(reason: str, status: int = 1) -> int:
    print(f"engine: {reason}", file=sys.stderr)
    return status


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
