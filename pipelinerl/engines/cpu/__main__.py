"""Start an embedded engine: `python -m pipelinerl.engines.cpu --model DIR --port 8080`."""

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported stays: to look for garbage in it took a fifth of a start
import argparse
import sys

import torch

from pipelinerl.engines.cpu.backend import CpuBackend
from pipelinerl.engines.cpu.settings import DTYPES, EngineSettings
from pipelinerl.engines.serving import command


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code, with one line on stderr when it is not 0."""
    parser = command.parser("python -m pipelinerl.engines.cpu", __doc__)
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
    for name in ("--max-prefill-tokens", "--threads"):
        parser.add_argument(name, type=int)
    return command.serve(parser.parse_args(arguments), EngineSettings, _loaded)


def _loaded(settings: EngineSettings) -> CpuBackend:
    torch.set_num_threads(settings.threads)
    return CpuBackend(settings)


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
