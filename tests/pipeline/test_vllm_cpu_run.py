"""A whole run that a real vLLM serves, started and supervised by the launcher, on the CPU.

Skipped unless `VLLM_PYTHON=/path/to/python` names the interpreter of an environment with a CPU build of vLLM.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.contract.live_vllm import plug_in
from tests.pipeline.conftest import ROOT, LauncherProcess

PYTHON = os.environ.get("VLLM_PYTHON", "")
STEPS, TEXTS = 3, 16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no interpreter with vLLM"),
]


def test_the_privacy_agent_trains_with_vllm_and_engine_and_trainer_agree(tmp_path: Path) -> None:
    overrides = [
        *("+domain=privacy_hopqa", "hardware=cpu", "+preset=vllm_cpu", f"vllm_config.python={PYTHON}"),
        *("privacy_hopqa.world.size=tiny", "privacy_hopqa.max_examples=4", "finetune.attempts=4"),
        f"finetune.gradient_accumulation_passes={TEXTS}",
        f"finetune.max_train_steps={STEPS}",
        *("actor.llm_max_rollouts=16", "max_lag=64", "weights.parity_every=1", "wandb.use_wandb=false"),
    ]
    path = os.pathsep.join([str(ROOT), str(plug_in(tmp_path / "site"))])
    run = LauncherProcess(tmp_path / "run", overrides, {"PYTHONPATH": path})
    try:
        run.until(lambda: (run.output_dir / "launcher" / "completed.json").is_file(), "the run's end", 600.0)
        assert run.wait() == 0, run.err or run.out[-2000:]
    finally:
        run.close()
    trainer = records(run.output_dir / "finetune")
    compared = [one["weights/parity_max_abs"] for one in trainer if "weights/parity_max_abs" in one]
    assert len(compared) >= STEPS and max(compared) < 1e-4
    last = records(run.output_dir / "actor")[-1]
    assert last["actor/requests/exact_versions"] == 1.0
    assert list((run.output_dir / "report").glob("report.md"))


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
