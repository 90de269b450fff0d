"""The wandb view of a project: `python -m pipelinerl.observe.dashboard --entity ENTITY --project PROJECT`.

`dashboard.yaml` beside this file defines the panels. With a key the command publishes them as a new saved
view of the project; offline, or with --out, it writes what it would publish to a JSON file.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # comes with hydra
from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

from pipelinerl.base.errors import CommandParser, leave, printable
from pipelinerl.observe.wandb_run import take_key, wandb_mode

DEFINITION = Path(__file__).with_name("dashboard.yaml")
_PLACEHOLDER = re.compile(r"<[a-z]+>")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Panel(_Part):
    """Lines of one diagram."""

    title: str
    metrics: tuple[str, ...] = Field(min_length=1)
    """Keys; `<name>` stands for whatever a run has there."""
    unit: str | None = None
    """Label of the vertical axis."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pattern(self) -> str | None:
        """A regular expression of the keys, None where all of them are plain names."""
        if not any(map(_PLACEHOLDER.search, self.metrics)):
            return None
        keys = (".+".join(map(re.escape, _PLACEHOLDER.split(one))) for one in self.metrics)
        return f"^({'|'.join(keys)})$"


class PanelGroup(_Part):
    """Panels under one heading; with `domain` they are for runs of that domain."""

    name: str
    panels: tuple[Panel, ...]
    domain: str | None = None


class Dashboard(_Part):
    """Everything that is shown; `x` is the metric on the horizontal axis."""

    name: str
    x: str
    sections: tuple[PanelGroup, ...]

    def of_domains(self, domains: Sequence[str]) -> "Dashboard":
        """Without the sections of other domains. Raises ValueError for a domain without a section."""
        known = [section.domain for section in self.sections if section.domain]
        for domain in domains:
            if domain not in known:
                raise ValueError(f"domain {domain} has no section; choose among {', '.join(known)}")
        kept = tuple(one for one in self.sections if one.domain is None or one.domain in domains)
        return self.model_copy(update={"sections": kept}) if domains else self


def load_dashboard(path: Path = DEFINITION) -> Dashboard:
    """The definition in a YAML file. Raises ValueError with one line."""
    try:
        return Dashboard.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {where}: {first['msg']}") from None
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def workspace(dashboard: Dashboard, entity: str, project: str) -> Any:
    """The saved view as wandb's own object; nothing is sent. Raises ImportError without wandb-workspaces."""
    from wandb_workspaces import workspaces
    from wandb_workspaces.reports.v2 import LinePlot

    sections = [
        workspaces.Section(
            name=section.name,
            is_open=section.domain is None,
            panels=[
                LinePlot(
                    title=panel.title,
                    x=dashboard.x,
                    y=[] if panel.pattern else list(panel.metrics),
                    metric_regex=panel.pattern,
                    title_y=panel.unit,
                )
                for panel in section.panels
            ],
        )
        for section in dashboard.sections
    ]
    settings = workspaces.WorkspaceSettings(x_axis=dashboard.x)
    return workspaces.Workspace(
        entity=entity, project=project, name=dashboard.name, sections=sections, settings=settings
    )


def publish(dashboard: Dashboard, entity: str, project: str) -> str:
    """Save the view; its address. Raises ImportError, or RuntimeError with what wandb said."""
    import wandb

    take_key()
    view = workspace(dashboard, entity, project)
    try:
        view.save()
        return str(view.url)
    except (wandb.errors.Error, ValueError, OSError) as error:
        raise RuntimeError(f"wandb refused the view: {' '.join(str(error).split())}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 and one line if nothing was published or written."""
    parser = CommandParser(prog="python -m pipelinerl.observe.dashboard", description=__doc__)
    parser.add_argument("--entity", default="", help="user or team that owns the project")
    parser.add_argument("--project", default="pipeline-rl", help="wandb.wandb_project_name of the runs")
    parser.add_argument(
        "--domain", action="append", default=[], help="only this domain's section; repeatable"
    )
    parser.add_argument("--definition", type=Path, default=DEFINITION, help="another file of panels")
    parser.add_argument("--out", type=Path, help="write JSON here instead of publishing")
    options = parser.parse_args(argv)
    try:
        dashboard = load_dashboard(options.definition).of_domains(options.domain)
        mode = wandb_mode()
        if options.out is None and mode == "online":
            if not options.entity:
                raise ValueError("--entity is empty; name the user or team that owns the project")
            print(f"dashboard: {publish(dashboard, options.entity, options.project)}")
            return 0
        if (out := options.out) is None:
            raise ValueError(f"wandb is {mode}; set WANDB_API_KEY to publish, or give --out FILE for a copy")
        project = {"entity": options.entity, "project": options.project}
        data = project | dashboard.model_dump(mode="json")  # each panel's regular expression beside its keys
        out.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except ImportError as error:
        print(f"dashboard: {error}; pip install 'pipelinerl[dashboard]', or give --out FILE", file=sys.stderr)
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        print(printable(f"dashboard: {error}"), file=sys.stderr)
        return 1
    print(printable(f"dashboard: wrote {out}"))
    return 0


if __name__ == "__main__":
    leave("dashboard", main)
