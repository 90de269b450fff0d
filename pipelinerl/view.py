"""Write a page of a run's rollouts, also while it is going on: python -m pipelinerl.view OUTPUT_DIR."""

import sys
from pathlib import Path

from pipelinerl.base.errors import CommandParser, leave, printable
from pipelinerl.base.files import check_files
from pipelinerl.base.line_file import DamagedLine
from pipelinerl.config import ConfigError
from pipelinerl.extras.viewer.write import LIMIT, export, write_page
from pipelinerl.streams import StreamError


def main(argv: list[str] | None = None) -> int:
    """0; 1 and one line if nothing was written."""
    parser = CommandParser(prog="python -m pipelinerl.view", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="the run's folder")
    parser.add_argument(
        "--limit", type=int, default=LIMIT, help=f"most rollouts on the page, but a whole group ({LIMIT})"
    )
    parser.add_argument("--compare", type=Path, metavar="RUN2", help="another run, beside this one")
    parser.add_argument("--eval", type=Path, metavar="FILE", help="write a log for inspect's viewer instead")
    args = parser.parse_args(argv)
    try:
        if args.limit < 1:
            raise ValueError(f"--limit {args.limit}: show at least one rollout")
        for folder in filter(None, (args.output_dir, args.compare)):
            check_files(folder)
        if args.eval is not None:
            if args.compare is not None or args.eval.suffix != ".eval":
                raise ValueError(f"--eval {args.eval}: name a file NAME.eval, for one run without --compare")
            written = export(args.output_dir, args.eval, args.limit)
            print(printable(f"{args.eval}: {written} rollouts"))
        else:
            print(printable(str(write_page(args.output_dir, compare=args.compare, limit=args.limit))))
    except (ConfigError, DamagedLine, StreamError, ValueError, OSError) as error:
        print(printable(f"view: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave("view", main)
