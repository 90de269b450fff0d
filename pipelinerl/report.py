"""Report a run, also while it is going on: python -m pipelinerl.report OUTPUT_DIR."""

import argparse
import sys
from pathlib import Path

from pipelinerl.base.line_file import DamagedLine
from pipelinerl.config import ConfigError, load_tree
from pipelinerl.config.files import config_path
from pipelinerl.domain import Domain, load_domain
from pipelinerl.observe.report import write_report
from pipelinerl.streams import StreamError


def report_run(output_dir: Path, domain: Domain | None = None) -> Path:
    """Print and write the report with the domain's sections; returns its folder.

    None: the domain that the run was configured with; the default hooks without a stored configuration.
    """
    if domain is None:
        stored = config_path(output_dir).exists()
        domain = load_domain(load_tree(output_dir).domain_hooks if stored else None)
    return write_report(output_dir, domain.report_focus, domain.report(output_dir))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelinerl.report", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="the run's folder")
    args = parser.parse_args(argv)
    if not args.output_dir.is_dir():
        print(f"report: there is no run in {args.output_dir}", file=sys.stderr)
        return 1
    try:
        report_run(args.output_dir)
    except (ConfigError, DamagedLine, StreamError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
