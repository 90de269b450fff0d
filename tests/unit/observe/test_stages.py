"""Which stage is stuck, from what each role says it waits for."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.base.line_file import LineFile
from pipelinerl.base.waits import WaitExpired
from pipelinerl.observe.stages import ProgressWatch, stuck_stage


def waits(*names: str) -> dict[str, Any]:
    return {
        "waits": [{"name": name, "waited_s": 10.0 + i, "deadline_s": 60.0} for i, name in enumerate(names)]
    }


DATA = {"finetune": waits("samples of step 3"), "preprocess": waits("groups of rollouts for step 3")}


@pytest.mark.parametrize(
    ("status", "stage"),
    [
        ({}, "actor has not begun"),
        (DATA | {"actor": waits("an engine in rotation")}, "actor waits for an engine in rotation"),
        (
            DATA | {"actor": waits("2 rollout workers to be ready")},
            "actor waits for 2 rollout workers to be ready",
        ),
        (DATA | {"actor": {"active": 7}}, "actor: 7 rollouts are in flight and none ends"),
        (
            DATA | {"actor": {"active": 7, "engines_out": "http://e1"}},
            "actor: 7 rollouts are in flight and none ends; engines out of rotation: http://e1",
        ),
        (DATA | {"preprocess": waits()}, "preprocess is busy and does not come to an end"),
        (DATA | {"preprocess": waits("the end of training")}, "preprocess waits for the end of training"),
        (
            DATA | {"finetune": waits("the engines to take version 48")},
            "finetune waits for the engines to take version 48",
        ),
        (
            {"finetune": waits(), "actor": waits("a weight version after 48 from the trainer")},
            "finetune is busy and does not come to an end",
        ),
    ],
)
def test_the_first_stage_that_does_not_wait_for_data_is_stuck(status: Any, stage: str) -> None:
    assert stuck_stage(status) == stage


def say(output_dir: Path, at: float, wait: str) -> None:
    """The actor's status, written `at` seconds from now."""
    status = output_dir / "actor" / "status.json"
    status.parent.mkdir()
    status.write_text(json.dumps({"time": time.time() + at, **waits(wait)}))


def test_the_watch_speaks_at_its_deadline_and_any_progress_restarts_it(tmp_path: Path) -> None:
    watch = ProgressWatch(tmp_path, 100.0)
    for now in (0.0, 60.0, 120.0, 180.0):
        LineFile(tmp_path / "accounting" / "actor.jsonl").append(b"a rollout")
        watch.check(now)
    say(tmp_path, 1, "an engine in rotation")
    watch.check(279.0)
    expected = r"waited 100 s for a rollout or an optimizer step: actor waits for an"
    with pytest.raises(WaitExpired, match=expected):
        watch.check(280.0)


def test_the_status_of_an_earlier_start_is_not_believed(tmp_path: Path) -> None:
    say(tmp_path, -60, "an engine in rotation")
    watch = ProgressWatch(tmp_path, 1.0)
    watch.check(2.0)
    with pytest.raises(WaitExpired, match="actor has not begun"):
        watch.check(4.0)
