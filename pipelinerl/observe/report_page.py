"""The report as one file for a browser, `report/index.html`: what a person sends to a colleague.

Everything is in it: tables, figures, what the launcher chose and why, and the configuration. Nothing comes
from elsewhere; only the link to the page of rollouts leads out of it.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from omegaconf import OmegaConf

from pipelinerl.base.errors import printable
from pipelinerl.base.files import write_whole
from pipelinerl.config.files import config_path, read_shown
from pipelinerl.observe.summary import Section

CHOICES = Path("launcher", "choices.json")
"""What the launcher chose, as it printed it."""


CURVE = "Learning"
"""The figure that the report opens with, behind its sentence."""


class Drawn(NamedTuple):
    """A figure's file, and the one for dark pages."""

    light: Path
    dark: Path


def write_report_page(
    output_dir: Path,
    sentence: str,
    sections: Sequence[Section],
    figures: Mapping[str, Drawn],
    rollouts: bool,
) -> Path:
    """Write the page; `figures` are PNGs by title, `rollouts` says whether their page is there."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    tree = _tree(output_dir)
    text = environment.get_template("report.html").render(
        name=printable(output_dir.resolve().name),  # which need not be UTF-8
        facts=_facts(output_dir, tree),
        rollouts=rollouts,
        sections=[_shown(section) for section in sections],
        sentence=printable(sentence),
        curve=CURVE,
        figures={title: [_encoded(path) for path in drawn] for title, drawn in figures.items()},
        choices=_choices(output_dir),
        configuration=printable(OmegaConf.to_yaml(OmegaConf.create(dict(tree)))) if tree else "",
    )
    path = output_dir / "report" / "index.html"
    write_whole(path, text)
    return path


def _shown(section: Section) -> Section:
    """As a page may show it: reasons and names of metrics are other people's texts."""
    rows = [tuple(map(printable, row)) for row in section.rows]
    return replace(section, title=printable(section.title), rows=rows, text=printable(section.text))


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _tree(output_dir: Path) -> dict[str, Any]:
    """The run's configuration with its secrets masked; empty where it is not there."""
    if not config_path(output_dir).is_file():
        return {}
    found: Any = OmegaConf.to_container(read_shown(output_dir), resolve=True)
    return found


def _facts(output_dir: Path, tree: Mapping[str, Any]) -> list[str]:
    """What stands under the name of the run."""
    done = (output_dir / "launcher" / "completed.json").is_file()
    seed = f"seed {tree['seed']}" if "seed" in tree else None
    facts = (tree.get("domain_name"), "finished" if done else "as far as it has come", tree.get("model_path"))
    return [str(fact) for fact in (*facts, seed) if fact]


def _choices(output_dir: Path) -> list[tuple[str, ...]]:
    """The table that the launcher printed, header first; empty where it kept none."""
    path = output_dir / CHOICES
    if not path.is_file():
        return []
    try:
        rows = [tuple(map(str, row.values())) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, AttributeError, TypeError):
        rows = [("not known", f"{CHOICES} is damaged", "", "the next start writes it anew")]
    return [("", "chosen", "because", "change with"), *rows]
