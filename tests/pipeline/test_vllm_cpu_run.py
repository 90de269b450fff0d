"""A whole run that a real vLLM serves, started and supervised by the launcher, on the CPU.

Skipped unless `VLLM_PYTHON=/path/to/python` names the interpreter of an environment with a CPU build of vLLM.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks.architectures import BY_NAME
from benchmarks.gpu.runs import LimitedRun, launcher, values
from benchmarks.served_architectures import measured
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.engines.vllm.options import VllmVersion
from pipelinerl.observe.history import read_metrics
from tests.pipeline.conftest import ROOT
from tests.support.contract.live_vllm import Installation, plug_in
from tests.support.tiny_model import build_tokenizer

PYTHON = os.environ.get("VLLM_PYTHON", "")
STEPS, TEXTS = 3, 16
DEADLINE_S = 800.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no interpreter with vLLM"),
]


def test_the_privacy_agent_trains_with_vllm_and_engine_and_trainer_agree(tmp_path: Path) -> None:
    overrides = [
        *("+domain=privacy_hopqa", "hardware=cpu", "+preset=vllm_cpu", f"vllm_config.python={PYTHON}"),
        *("privacy_hopqa.world.size=tiny", "privacy_hopqa.max_examples=4", "finetune.attempts=4"),
        f"finetune.gradient_accumulation_passes={TEXTS}",
        f"finetune.max_train_steps={STEPS}",
        *("actor.llm_max_rollouts=16", "max_lag=64", "weights.parity_every=1"),
    ]
    path = os.pathsep.join([str(ROOT), str(plug_in(tmp_path / "site", Installation(PYTHON)))])
    out = tmp_path / "run"
    run = LimitedRun(launcher(out, overrides), tmp_path / "log", {**os.environ, "PYTHONPATH": path})
    assert run.end(DEADLINE_S) == 0, run.said(40)
    compared = values(read_metrics(out, "finetune"), "weights/parity_max_abs")
    assert len(compared) >= STEPS and max(compared) < 1e-4
    exact = VllmVersion.parse(installed_version(PYTHON) or "").reports_versions
    last = read_metrics(out, "actor")[-1]
    assert last["actor/requests/exact_versions"] == float(exact)
    assert last["actor/requests/prefix_cache_share"] > 0, "four attempts at each prompt"
    assert (out / "report" / "report.md").is_file()


SHAPE: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
SHAPE |= {"num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": 1024}
SHAPE |= {"bos_token_id": None, "pad_token_id": None, "initializer_range": 0.1}
WINDOWS = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}


@pytest.mark.parametrize(
    ("architecture", "more"),
    [("Mistral", {"sliding_window": 12}), ("Gemma3", WINDOWS), ("Qwen3Moe", EXPERTS)],
    ids=["mistral", "gemma3", "qwen3_moe"],
)
def test_tiny_models_with_windows_or_experts_agree_with_vllm_after_every_update(
    tmp_path: Path, architecture: str, more: dict[str, Any]
) -> None:
    """Texts are longer than the windows."""
    tokenizer = build_tokenizer()
    model = tmp_path / "model"
    tokenizer.save_pretrained(str(model))
    config: Any = getattr(transformers, f"{architecture}{'Text' * (architecture == 'Gemma3')}Config")
    sizes = SHAPE | more | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    getattr(transformers, f"{architecture}ForCausalLM")(config(**sizes)).save_pretrained(model)
    overrides = [
        *("+domain=guessing", "hardware=cpu", "+preset=vllm_cpu", f"vllm_config.python={PYTHON}"),
        *(f"model_path={model}", "max_lag=64", "dataset_loader_params={count: 6, max_guesses: 2}"),
        *(f"finetune.max_train_steps={STEPS}", f"finetune.gradient_accumulation_passes={TEXTS}"),
        *("finetune.learning_rate=0.01", "weights.parity_every=1"),
    ]
    path = os.pathsep.join([str(ROOT), str(plug_in(tmp_path / "site", Installation(PYTHON)))])
    out = tmp_path / "run"
    run = LimitedRun(launcher(out, overrides), tmp_path / "log", {**os.environ, "PYTHONPATH": path})
    assert run.end(DEADLINE_S) == 0, run.said(40)
    compared = values(read_metrics(out, "finetune"), "weights/parity_max_abs")
    assert len(compared) >= STEPS and max(compared) < 1e-4


@pytest.mark.parametrize(
    ("family", "allowed"),
    [("GptOss", 1e-4), ("VaultGemma", 1e-4), ("HunYuanMoEV1", 1e-4), ("Apertus", 2e-2)],
)
def test_vllm_has_every_tensor_of_each_version(family: str, allowed: float) -> None:
    """Tensors that loaders copy themselves, a tied head, single experts, constants beside parameters.

    vLLM has Apertus' activation in bfloat16; with constants of another version it was 4 nats off.
    """
    row = measured(BY_NAME[family], PYTHON)
    assert max(row["before"], row["after"], row["again"]) < allowed, row
