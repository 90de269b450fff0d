"""One wandb run for the whole pipeline, in a process that nobody waits for.

    python -m pipelinerl.observe.wandb_run OUTPUT_DIR

It follows the `metrics.jsonl` of actor, preprocess and trainer, so that no role imports wandb, waits for it
or ends with it. The launcher starts it unless `wandb.use_wandb=false`, starts it again when it dies or stands
still, and gives it up with one line after that; `sent.json` says up to where the files were sent. Offline
unless a key is present. Statistics of the machine, code and console output are not collected: they could
carry private text.
"""

import json
import logging
import netrc
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelinerl.base.closing import Closing
from pipelinerl.base.errors import CommandParser
from pipelinerl.base.files import write_whole
from pipelinerl.base.heartbeat import heartbeat_path
from pipelinerl.base.line_file import LineTail
from pipelinerl.base.logs import setup_logging
from pipelinerl.base.masking import keep_secret
from pipelinerl.config.files import load, read_secrets
from pipelinerl.config.machine import WandbConfig
from pipelinerl.config.secrets import masked
from pipelinerl.config.tree import Config
from pipelinerl.observe.history import metrics_record

log = logging.getLogger(__name__)

KEY_FILE = "WANDB_API_KEY_PATH"
_LONGEST_NAME = 128
_PROGRESS = "texts"
ROLE = "wandb"
"""Name of the process, and its folder below that of the run."""
SENDERS = ("actor", "preprocess", "finetune")
EVERY_S = 1.0


def key_of(environ: Mapping[str, str]) -> str:
    """The key in the file that WANDB_API_KEY_PATH names, else WANDB_API_KEY. Raises OSError, ValueError."""
    if file := environ.get(KEY_FILE):
        if key := Path(file).read_text(encoding="utf-8").strip():
            return key
        raise ValueError("the file is empty")
    return environ.get("WANDB_API_KEY", "")


def take_key() -> None:
    """Let wandb, which reads WANDB_API_KEY alone, find the key of a file. Raises as `key_of`."""
    if os.environ.get(KEY_FILE):
        os.environ["WANDB_API_KEY"] = key_of(os.environ)
        keep_secret([os.environ["WANDB_API_KEY"]])


def wandb_mode(environ: Mapping[str, str] = os.environ) -> str:
    """`WANDB_MODE` if set, else online where wandb can log in without asking, and offline elsewhere.

    It can with a key (`key_of`), or an entry for its host in netrc.
    """
    if given := environ.get("WANDB_MODE"):
        return given
    with suppress(OSError, ValueError):
        if key_of(environ):
            return "online"
    host = urlsplit(environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(environ.get("NETRC", Path(environ.get("HOME", "/")) / ".netrc"))
    try:
        return "online" if netrc.netrc(str(path)).authenticators(host) else "offline"
    except (OSError, netrc.NetrcParseError):
        return "offline"


def run_names(output_dir: Path, root: str) -> tuple[str, str]:
    """Name and id of a run: its folder below `root`, `_` for what an id may not hold.

    Elsewhere the id is the whole path: runs of one id are one run in wandb, and folders such as `seed1` of
    two experiments have the same name.
    """
    folder, base = Path(os.path.abspath(output_dir)), Path(os.path.abspath(root))
    inside = folder != base and folder.is_relative_to(base)
    path = str(folder.relative_to(base)) if inside else str(folder).lstrip("/")
    name = path if inside else folder.name
    return name[-_LONGEST_NAME:], re.sub(r"[/\\#?%:]", "_", path[-_LONGEST_NAME:])


def run_arguments(output_dir: Path, cfg: WandbConfig) -> dict[str, Any]:
    """What `wandb.init` is called with, besides settings and the configuration that is shown."""
    name, run_id = run_names(output_dir, cfg.wandb_workspace_root)
    return {
        "mode": wandb_mode(),
        "entity": cfg.wandb_entity_name or None,
        "project": cfg.wandb_project_name,
        "group": cfg.wandb_group or None,
        "name": name,
        "id": cfg.wandb_id or run_id,
        "dir": str(cfg.wandb_dir or output_dir),
        "tags": list(cfg.tags),
        # Only where it lies: what it shows is private text.
        "notes": f"Report and rollouts, where this run was: {os.path.abspath(output_dir)}/report/index.html",
        "resume": "never" if cfg.wandb_resume == "never" else "allow",
    }


class WandbRun(Closing):
    """Sends what is new in the metric files of a run."""

    def __init__(self, output_dir: Path, cfg: Config) -> None:
        take_key()
        os.environ["WANDB_MODE"] = wandb_mode()  # wandb's telemetry does not see the mode of `init`
        import wandb

        self._wandb = wandb
        self._output_dir = output_dir
        self._sent_path = output_dir / ROLE / "sent.json"
        self._sent: dict[str, int] = (
            json.loads(self._sent_path.read_text(encoding="utf-8")) if self._sent_path.exists() else {}
        )
        self._tails = {
            role: LineTail(output_dir / role / "metrics.jsonl", offset=self._sent.get(role, 0))
            for role in SENDERS
        }
        settings = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
        )
        arguments = run_arguments(output_dir, cfg.wandb)
        os.makedirs(arguments["dir"], exist_ok=True)
        shown = masked(cfg.model_dump(mode="json"), read_secrets(output_dir))
        self._run = wandb.init(settings=settings, config=shown, **arguments)
        self._run.define_metric("*", step_metric=_PROGRESS)
        log.info("wandb run %s (%s)", arguments["name"], arguments["mode"])

    def send_news(self) -> None:
        """Every whole line since the last call; a damaged one is named and left out."""
        for tail in self._tails.values():
            for record in tail.records(metrics_record, on_damage=log.warning):
                self._send(record)
        if (sent := {role: tail.offset for role, tail in self._tails.items()}) != self._sent:
            self._sent = sent
            write_whole(self._sent_path, json.dumps(sent))

    def _send(self, record: dict[str, Any]) -> None:
        # wandb drops records whose own step goes back, which an evaluation that ends late would be.
        named = {_PROGRESS if name == "step" else name: value for name, value in record.items()}
        self._run.log({name: self._shown(value) for name, value in named.items() if name != "time"})

    def _shown(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._wandb.Histogram(np_histogram=(value["counts"], value["edges"]))
        return value

    def close(self) -> None:
        complete = (self._output_dir / "finetune" / "summary.json").exists()
        self._run.finish(exit_code=0 if complete else 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Send until SIGTERM, then what is left."""
    parser = CommandParser(description="Send the metrics of a run to wandb.")
    parser.add_argument("output_dir", type=Path)
    output_dir = parser.parse_args(argv).output_dir
    setup_logging(output_dir, ROLE, ROLE)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher's, who ends this process last
    beat = heartbeat_path(output_dir, ROLE)
    with WandbRun(output_dir, load(output_dir)) as run:
        while not ended.wait(EVERY_S):
            run.send_news()
            beat.touch()  # from the loop itself: a service of wandb's that stands still holds it up
        run.send_news()
    return 0


if __name__ == "__main__":
    sys.exit(main())
