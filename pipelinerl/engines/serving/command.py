"""The command line of an engine: reads options, loads the back end, serves until a signal.

Called by the `__main__` of each kind of engine that is served by `serving/server.py`.
"""

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelinerl.base import faults, hub
from pipelinerl.base.access import CONTROL_TOKEN_VARIABLE, AccessError, check_binding, control_token
from pipelinerl.base.errors import CommandParser, printable
from pipelinerl.engines.received import RECEIVED
from pipelinerl.engines.serving.backend import (
    DEFAULT_MODEL_LEN,
    Backend,
    ServerSettings,
    UnsupportedModel,
    default_model_len,
)
from pipelinerl.engines.serving.server import EngineServer, listening
from pipelinerl.modeling.loading import DamagedModel

HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
REFUSED = 2
"""Exit status of a model or settings that no further start could serve; the supervisor makes none."""


def parser(prog: str, description: str | None) -> CommandParser:
    """The options of `ServerSettings`, `--host` and `--port`; a kind adds those of its own settings.

    What is left out on the command line has the default of the settings.
    """
    made = CommandParser(prog=prog, description=description, argument_default=argparse.SUPPRESS)
    made.add_argument("--model", type=Path, required=True, help="folder in Hugging Face format, or hub name")
    made.add_argument("--served-model-name")
    other = f"any but loopback takes a token ({CONTROL_TOKEN_VARIABLE})"
    made.add_argument("--host", default="127.0.0.1", help=other)
    made.add_argument("--port", type=int, default=8080)
    made.add_argument(
        "--max-model-len",
        type=int,
        help=f"tokens of a prompt and its answer; default: {DEFAULT_MODEL_LEN}, or all the model has",
    )
    made.add_argument("--weight-transport", help=f"how new weights come: {', '.join(RECEIVED)}")
    made.add_argument(
        "--return-tokens-as-token-ids",
        action="store_true",
        help="name tokens beside their log-probabilities as token_id:N, unless a request says otherwise",
    )
    for name in ("--max-num-seqs", "--max-waiting"):
        made.add_argument(name, type=int)
    return made


def serve(
    options: argparse.Namespace,
    make_settings: Callable[..., ServerSettings],
    make_backend: Callable[[Any], Backend],
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code, with one line on stderr when it is not 0."""
    faults.hit("engine:start")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    values = vars(options)
    host, port = values.pop("host"), values.pop("port")
    try:
        if hub.of_hub(str(options.model)):
            options.model = hub.with_files(str(options.model), HUB_FILES)
    except (OSError, ValueError) as error:  # a hub may answer later
        return _failed(f"cannot load {options.model}: {_one_line(error)}")
    values.setdefault("max_model_len", default_model_len(options.model))
    settings = make_settings(**values)
    try:
        check_binding(host, control_token())
    except AccessError as error:
        return _failed(str(error), REFUSED)
    problems = settings.problems()
    for problem in problems:
        _failed(problem)
    if problems:
        return REFUSED
    # HTTP and the forward pass share the interpreter: with its usual turns of 5 ms each of the two would wait
    # that long for the other, again and again.
    sys.setswitchinterval(0.0005)
    try:
        backend = make_backend(settings)
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
        return asyncio.run(_serve(backend, host, port))
    # The tokeniser is read when the server is made.
    except UnsupportedModel as error:
        return _failed(f"cannot load {settings.model}: {_one_line(error)}", REFUSED)
    except OSError as error:
        return _failed(f"cannot listen on {host}:{port}: {_one_line(error)}")


async def _serve(backend: Backend, host: str, port: int) -> int:
    server = EngineServer(backend)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with listening(server, host, port) as bound:
        name = backend.settings.served_model_name
        print(printable(f"engine: serving {name} on http://{host}:{bound} ({backend})"), flush=True)
        waits = {asyncio.ensure_future(stop.wait()), asyncio.ensure_future(server.failed.wait())}
        _, unfinished = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in unfinished:
            one.cancel()
    if server.engine.failure is not None:
        return _failed(_one_line(server.engine.failure))
    return 0


def _failed(reason: str, status: int = 1) -> int:
    print(printable(f"engine: {reason}"), file=sys.stderr)
    return status


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
