"""Reference log-probabilities from engines equal those of the model in this process."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import dynamic_module_utils

from pipelinerl.base.waits import WaitExpired
from pipelinerl.modeling.loading import DamagedModel
from pipelinerl.preprocess import engine_reference
from pipelinerl.preprocess.engine_reference import EngineReference
from pipelinerl.preprocess.reference import ReferenceScorer
from pipelinerl.preprocess.scoring import reference_scorer
from tests.support.builders import preprocess_config, record, samples
from tests.support.engine_harness import EOS, build_model, running_engine
from tests.support.policy import tiny_model


async def test_engines_score_what_the_model_scores(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "model", tied=True)
    texts = samples([record("g", i, 0, 0.0, i) for i in range(8)])
    (long,) = samples([record("g", 9, 0, 0.0, 9)])
    long.input_ids = np.full(512, EOS - 1, np.int32)
    long.labels = np.where(np.arange(512) < 500, -100, EOS - 1).astype(np.int32)
    async with running_engine(folder) as first, running_engine(folder) as second:
        engines = EngineReference([first.url, second.url], 60)
        found = await asyncio.to_thread(engines.score, [*texts, long])
        assert first.server is not second.server
    expected = ReferenceScorer(str(folder), 1.0, 64).score(texts)
    for ours, theirs, text in zip(found, expected, texts):
        assert ours is not None and theirs is not None and ours.shape == text.old_logprobs.shape
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert found[-1] is None  # no room in the context for the token that an engine must generate


def test_the_scorer_is_what_the_placement_says(tmp_path: Path) -> None:
    assert reference_scorer(preprocess_config(tmp_path)) is None
    with_kl = {"finetune": {"rl": {"kl_coef": 0.1}}}
    tiny_model().save_pretrained(tmp_path / "model")
    assert isinstance(reference_scorer(preprocess_config(tmp_path, **with_kl)), ReferenceScorer)
    assert isinstance(
        reference_scorer(preprocess_config(tmp_path, **with_kl, jobs=engines(1))), EngineReference
    )


OWN_CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class OwnConfig(Qwen3Config):
    model_type = "own"

class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


def test_a_reference_of_a_class_beside_its_weights_is_loaded_where_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the trainer loads it, by the same key."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # the folder above is added to it
    folder, model = tmp_path / "model", tiny_model()
    model.save_pretrained(folder)
    (folder / "own.py").write_text(OWN_CODE)
    described = json.loads((folder / "config.json").read_text()) | {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(described))
    keys = {"rl": {"kl_coef": 0.1}, "load_as_bf16": False}
    with pytest.raises(DamagedModel, match="custom code"):
        reference_scorer(preprocess_config(tmp_path, finetune=keys))
    texts = samples([record("g", i, 0, 0.0, i) for i in range(3)])
    found = reference_scorer(preprocess_config(tmp_path, finetune={**keys, "trust_remote_code": True}))
    plain = tmp_path / "plain"
    model.save_pretrained(plain)
    expected = ReferenceScorer(str(plain), 1.0, 24)
    for ours, theirs in zip(found.score(texts), expected.score(texts), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def engines(count: int) -> list[dict[str, object]]:
    """Jobs of engines that serve the reference."""
    return [
        {"kind": "preprocessor_llm", "idx": i, "name": f"ref_vllm_{i}", "url": f"http://127.0.0.1:{i + 1}"}
        for i in range(count)
    ]


def test_so_many_texts_are_under_way_at_each_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def score(text: object, clients: object, wait: object) -> np.ndarray:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return np.zeros(1, np.float32)

    monkeypatch.setattr(engine_reference, "_score", score)
    cfg = preprocess_config(
        tmp_path, finetune={"rl": {"kl_coef": 0.1}}, preprocess={"n_workers": 3}, jobs=engines(2)
    )
    texts = samples([record("g", i, 0, 0.0, i) for i in range(20)])
    assert len(reference_scorer(cfg).score(texts)) == 20
    assert most == 3 * 2


def test_engines_that_do_not_answer_are_a_named_wait() -> None:
    reference = EngineReference(["http://127.0.0.1:9"], 0.3)
    with pytest.raises(WaitExpired, match=r"reference log-probabilities from the engines: .*connection"):
        reference.score(samples([record("g", 0, 0, 0.0, 0)]))


async def test_a_dead_engine_is_made_up_for_by_the_other(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "model", tied=True)
    async with running_engine(folder) as engine:
        reference = EngineReference(["http://127.0.0.1:9", engine.url], 60)
        found = await asyncio.to_thread(
            reference.score, samples([record("g", i, 0, 0.0, i) for i in range(4)])
        )
    assert all(scores is not None for scores in found)
