"""What the comparison with TRL makes of steps and of looks at an engine, and which keys it gives a run."""

import json
from pathlib import Path

import pytest

from benchmarks._figures import ROOT
from benchmarks.gpu.steady import EngineWatch, Step, steady, trl_steps
from benchmarks.gpu.trl import ARMS, figures_of, overrides
from benchmarks.gpu.trl_workload import WORKLOADS, prompts
from pipelinerl.base.tokenizing import encode, load_tokenizer, render_chat
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed


def test_a_steady_rate_is_that_of_all_texts_over_all_the_time_after_the_first_steps() -> None:
    steps = [Step(at, 10.0, 1.0, {}) for at in (5.0, 20.0, 21.0, 24.0)]
    watch = EngineWatch("http://127.0.0.1:1")
    watch.looks = [(19.0, 0, 0), (20.0, 0, 100), (22.0, 4, 300), (24.0, 2, 500), (25.0, 9, 900)]
    found = steady(steps, 2, watch, tokens=10)
    assert found["samples_per_s"] == found["trained_per_s"] == 20.0 / 4.0
    assert found["samples_per_s_median"] == pytest.approx((10.0 + 10.0 / 3.0) / 2)
    assert found["step_times_s"] == [1.0, 3.0] and found["trainer_samples_per_s"] == 10.0
    assert found["engine_idle_share"] == pytest.approx(1 / 3)
    assert found["engine_tokens_per_s"] == 100.0


def test_a_trainer_that_works_off_what_was_sampled_before_counts_as_what_is_sampled() -> None:
    steps = [Step(at, 10.0, 1.0, {}) for at in (5.0, 20.0, 22.0, 24.0)]
    watch = EngineWatch("http://127.0.0.1:1")
    watch.looks = [(20.0, 4, 100), (24.0, 2, 500)]
    found = steady(steps, 2, watch, tokens=50)
    assert found["trained_per_s"] == 5.0 and found["samples_per_s"] == 2.0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="3 steps were made, the first 2 do not count"):
        steady([Step(1.0, 1.0, 1.0, {})] * 3, 2, None, 1)


def test_texts_of_trl_are_counted_by_their_trained_tokens(
    tmp_path: Path,
) -> None:
    work, lines = WORKLOADS["cpu"], tmp_path / "steps.jsonl"
    assert trl_steps(lines, work) == []
    row = {"time": 7.0, "batch/trained_tokens_per_step": 6 * work.sampled}
    row |= {"perf/fwd_bwd_s": 1.5, "perf/optimizer_s": 0.5}
    lines.write_text(json.dumps({"time": 6.0}) + "\n" + json.dumps(row) + "\n" + '{"time": 8')
    assert trl_steps(lines, work) == [Step(7.0, 6.0, 2.0, row)]


def test_prompts_have_the_length_that_the_work_says() -> None:
    tokenizer = load_tokenizer(str(ROOT / "domains/guessing/checkpoint"))
    for work in WORKLOADS.values():
        for text in prompts(work, 3):
            rendered = render_chat(tokenizer, [{"role": "user", "content": text}])
            assert len(encode(tokenizer, rendered)) == work.prompt


def test_a_run_gets_the_work_that_trl_gets() -> None:
    cfg = typed(compose(overrides("gpu", WORKLOADS["gpu"], Path("domains/guessing/checkpoint"))).tree)
    assert cfg.max_lag == 4 * 256 and cfg.attempts == 8 and cfg.finetune.seq_length == 16_384
    assert cfg.engine.max_num_seqs == 512 and cfg.engine.max_model_len == 2048


def test_arms_are_compared_with_this_project_by_default() -> None:
    row = {
        "samples_per_s": 60.0,
        "samples_per_s_median": 61.0,
        "trained_per_s": 62.0,
        "trainer_samples_per_s": 70.0,
        "trainer_s": 4.0,
        "steps": 12,
    }
    slower = row | {"samples_per_s": 15.0, "trainer_samples_per_s": 35.0}
    found = {"ours": {"steady": row}, "trl": {"steady": slower}}
    figures = {one.name: one for one in figures_of(found, gpu=True)}
    assert figures["ours / trl"].value == 4.0 and figures["ours / trl"].met
    assert figures["ours / trl, trainers alone"].value == 2.0
    assert figures["ours: samples trained"].met
    assert list(ARMS) == ["ours", "trl", "unshared", "trl_tuned"]
