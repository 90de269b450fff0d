"""The wandb process: offline without a key, one run for all roles, continued where it was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from pipelinerl.base.masking import without_secrets
from pipelinerl.config import Config, save
from pipelinerl.config.machine import WandbConfig
from pipelinerl.launcher.placement import derive
from pipelinerl.observe.metrics import MetricsWriter, histogram
from pipelinerl.observe.wandb_run import KEY_FILE, WandbRun, run_arguments, run_names, take_key, wandb_mode
from tests.support.processes import DEADLINE_S, until


def test_wandb_is_offline_unless_there_is_a_key(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert wandb_mode(home) == "offline"
    assert wandb_mode({**home, "WANDB_API_KEY": "x"}) == "online"
    assert wandb_mode({**home, "WANDB_API_KEY": "x", "WANDB_MODE": "disabled"}) == "disabled"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert wandb_mode(home) == "online"
    assert wandb_mode({**home, "WANDB_BASE_URL": "https://wandb.example.org"}) == "offline"
    assert wandb_mode({**home, "NETRC": str(tmp_path / "absent")}) == "offline"


def test_the_key_may_be_in_a_file_as_for_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's roles log in with what the file that WANDB_API_KEY_PATH names holds, stripped."""
    file = tmp_path / "key"
    home = {"HOME": str(tmp_path), KEY_FILE: str(file)}
    assert wandb_mode(home) == "offline"
    file.write_text("0123abcd\n")
    assert wandb_mode(home) == "online" and wandb_mode({**home, "WANDB_MODE": "offline"}) == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "another")
    monkeypatch.setenv("WANDB_API_KEY_PATH", str(file))
    take_key()
    assert os.environ["WANDB_API_KEY"] == "0123abcd"
    assert "0123abcd" not in without_secrets("refused: 0123abcd")


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("results/guessing/run1", ("guessing/run1", "guessing_run1")),
        ("/elsewhere/run1", ("run1", "elsewhere_run1")),
        ("/elsewhere/other/run1", ("run1", "elsewhere_other_run1")),
    ],
)
def test_a_run_is_named_like_its_folder(folder: str, names: tuple[str, str]) -> None:
    """Runs of one id are one run in wandb: two folders never share it."""
    assert run_names(Path(folder), "results") == names


def test_what_is_configured_reaches_wandb(tmp_path: Path) -> None:
    cfg = WandbConfig(wandb_id="x", wandb_group="g", wandb_dir="/d", tags=["t"], wandb_resume="never")
    found = run_arguments(tmp_path, cfg)
    assert found["notes"].endswith(f"{tmp_path}/report/index.html")
    expected = {"id": "x", "group": "g", "dir": "/d", "tags": ["t"], "resume": "never", "mode": wandb_mode()}
    assert expected.items() <= found.items()


def test_curves_run_over_the_axis_that_the_pages_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = Config(output_dir=str(tmp_path))
    cfg = cfg.model_copy(update={"derived_": derive(cfg, [])})
    save(OmegaConf.create(cfg.model_dump(mode="json", by_alias=True)), tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")  # which the process sets for itself
    axes: dict[str, str] = {}
    shown: list[dict[str, object]] = []
    fake = SimpleNamespace(
        define_metric=lambda name, step_metric: axes.update({name: step_metric}),
        log=shown.append,
    )
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(Settings=lambda **_: None, init=lambda **_: fake)
    )
    with MetricsWriter(tmp_path, "finetune") as trainer:
        trainer.log({"stats/completed_steps": 2}, step=32)
    WandbRun(tmp_path, cfg).send_news()
    assert axes == {"*": "texts"} and shown == [{"texts": 32, "stats/completed_steps": 2}]
    for page in ("from_upstream", "metrics"):
        text = (Path(__file__).resolve().parents[3] / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert "`texts`" in text and "`stats/completed_steps`" in text


LOCAL_ONLY = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError(f"network access: {args}")
socket.getaddrinfo = refuse
connect = socket.socket.connect
def local_only(self, address):
    if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
        refuse(address)
    return connect(self, address)
socket.socket.connect = local_only
from pipelinerl.observe.wandb_run import main
sys.exit(main(sys.argv[1:]))
"""


def sent(run: Path) -> dict[str, int]:
    path = run / "wandb" / "sent.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def test_all_roles_are_in_one_offline_run_without_network_and_without_prompting(tmp_path: Path) -> None:
    run = tmp_path / "run"
    cfg = Config(output_dir=str(run))
    cfg = cfg.model_copy(update={"derived_": derive(cfg, [])})
    save(OmegaConf.create(cfg.model_dump(mode="json", by_alias=True)), run)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {"HOME": str(tmp_path)}
    for start in range(2):  # the second goes on behind what the first has sent
        with MetricsWriter(run, "actor") as actor, MetricsWriter(run, "finetune") as trainer:
            actor.log({"actor/reward_mean": 0.5, "lag": histogram([1], [0, 1, 2])}, step=start)
            trainer.log({"rl/loss": 0.25}, step=start)
        with (run / "actor" / "metrics.jsonl").open("ab") as torn:
            torn.write(b"half a line\n{" if start else b"")
        sizes = {role: (run / role / "metrics.jsonl").stat().st_size for role in ("actor", "finetune")}
        with (tmp_path / "stderr").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", LOCAL_ONLY, str(run)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )

        def is_sent(process: subprocess.Popen[bytes] = process, size: int = sizes["finetune"]) -> bool:
            assert process.poll() is None
            return sent(run).get("finetune") == size

        until(is_sent, "the last record")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert sent(run) == {"actor": sizes["actor"] - start, "preprocess": 0, "finetune": sizes["finetune"]}
    assert "network access" not in (tmp_path / "stderr").read_text(), "which wandb's threads only log"
    files = list((run / "wandb").glob("offline-run-*_run/*.wandb"))
    assert len(files) == 2
    # The metrics' names are in the file: what was logged can be synchronised later.
    for file in files:
        content = file.read_bytes()
        assert b"actor/reward_mean" in content and b"rl/loss" in content and b"half a line" not in content
