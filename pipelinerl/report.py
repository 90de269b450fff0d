"""Report a run, also while it is going on: python -m pipelinerl.report OUTPUT_DIR."""

import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipelinerl.base.errors import CommandParser, first_line, leave, printable, show_what_it_can
from pipelinerl.base.files import check_files
from pipelinerl.base.line_file import DamagedLine
from pipelinerl.config import ConfigError
from pipelinerl.config.files import config_path, read_shown
from pipelinerl.config.machine import ObserveConfig
from pipelinerl.domain import Domain, load_domain
from pipelinerl.observe.report import write_report
from pipelinerl.streams import StreamError


def report_run(output_dir: Path, domain: Domain | None = None) -> Path:
    """Print and write the report with the domain's sections; returns its folder.

    None: the domain that the run was configured with; the default hooks without a stored configuration.
    """
    print("writing the report", flush=True)  # seconds, with thousands of rollouts a minute
    tree: Any = OmegaConf.create()
    if (path := config_path(output_dir)).exists():
        tree = read_shown(output_dir)
    elif domain is None:
        print(printable(f"report: {path} is not there: parts of the domain are left out"), file=sys.stderr)
    if domain is None:
        domain = load_domain(OmegaConf.select(tree, "domain_hooks"))
    observe = ObserveConfig.model_validate(dict(OmegaConf.select(tree, "observe") or {}))
    page = _rollout_page(output_dir, domain, observe)
    folder = write_report(
        output_dir, domain.report_focus, domain.report(output_dir), rollouts=page is not None
    )
    print(printable(f"In a browser: {folder / 'index.html'}"))
    if page is not None:
        print(printable(f"Rollouts: {page}"))
    return folder


def _rollout_page(output_dir: Path, domain: Domain, observe: ObserveConfig) -> Path | None:
    """The page of rollouts; None where none is wanted or none has ended.

    What stops it costs the page and not the report.
    """
    if not observe.rollout_page:
        return None
    from pipelinerl.extras.viewer.write import write_page  # imports tokenizers, which takes a second

    try:
        return write_page(output_dir, domain, report=True)
    except FileNotFoundError:
        return None
    except (DamagedLine, StreamError, ValueError, KeyError, OSError) as error:
        print(printable(f"report: no page of rollouts: {first_line(error)}"), file=sys.stderr)
        return None


def _holds_a_run(folder: Path) -> bool:
    """Whether a role has recorded anything there; a dry run or a start writes a configuration only."""
    found = (path for pattern in ("*/metrics.jsonl", "accounting/*.jsonl") for path in folder.glob(pattern))
    return any(path.stat().st_size for path in found)


def main(argv: list[str] | None = None) -> int:
    parser = CommandParser(prog="python -m pipelinerl.report", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="the run's folder")
    args = parser.parse_args(argv)
    show_what_it_can()
    try:
        check_files(args.output_dir)
        if not _holds_a_run(args.output_dir):
            begun = ": nothing is recorded yet" if config_path(args.output_dir).is_file() else ""
            raise ConfigError(f"there is no run in {args.output_dir}{begun}")
        report_run(args.output_dir)
    except (ConfigError, DamagedLine, StreamError) as error:
        print(printable(f"report: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave("report", main)
