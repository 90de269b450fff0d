"""A teacher's log-probability of each sampled token beside the policy's is the advantage of that token."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.base.waits import WaitExpired
from pipelinerl.config.finetune import RLConfig
from pipelinerl.config.roles import TeacherConfig
from pipelinerl.finetune.rl.batch import assemble_step, encode
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.preprocess.metrics import PreprocessMetrics
from pipelinerl.preprocess.reference import ReferenceScorer
from pipelinerl.preprocess.scoring import Teachers, teachers
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.builders import group, preprocess_config, record, samples
from tests.support.engine_harness import build_model, full_logprobs, running_engine
from tests.support.policy import VOCAB, learner, tiny_model
from tests.unit.preprocess.conftest import Bench


def text(number: int, **fields: Any) -> Sample:
    (sample,) = samples([record("g", number, 0, 0.0, number, **fields)])
    return sample


def sampled_by(sample: Sample, seed: int, temperature: float = 1.0) -> np.ndarray:
    """float32 `[labels]` of the tiny model of a seed, by one plain forward."""
    scores = full_logprobs(tiny_model(seed), sample.input_ids, temperature)
    return np.concatenate([np.zeros(1, np.float32), scores])[sample.labels != MASKED_TOKEN_ID]


def nothing(name: str, reverse_kl: np.ndarray) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The teacher: the tiny model of seed 1."""
    tiny_model(1).save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_policy_as_its_own_teacher_gives_no_advantage(folder: Path, temperature: float) -> None:
    chosen = [text(number) for number in range(6)]
    for sample in chosen:
        sample.old_logprobs = sampled_by(sample, 1, temperature)
    scorers = {"here": ReferenceScorer(str(folder), temperature, 24)}
    assert Teachers(TeacherConfig(model_path="here"), scorers).advise(chosen, nothing) == []
    for sample in chosen:
        assert sample.token_advantages is not None
        np.testing.assert_allclose(sample.token_advantages, 0, atol=2e-5)


def test_another_teacher_gives_the_difference_of_each_token_times_the_weight(folder: Path) -> None:
    chosen = [text(number) for number in range(6)]
    chosen[0].labels = chosen[0].input_ids.copy()  # its first token too, which nothing predicts
    chosen[0].old_logprobs = np.full(len(chosen[0].labels), -1.5, np.float32)
    scorers = {"here": ReferenceScorer(str(folder), 1.0, 24)}
    seen: dict[str, list[float]] = {}
    advise = Teachers(TeacherConfig(model_path="here", weight=0.5), scorers).advise
    assert advise(chosen, lambda name, kl: seen.setdefault(name, []).extend(kl.tolist())) == []
    differences = [sampled_by(sample, 1) - sample.old_logprobs for sample in chosen]
    differences[0][0] = 0
    for sample, difference in zip(chosen, differences, strict=True):
        np.testing.assert_allclose(sample.token_advantages, 0.5 * difference, atol=2e-5)
    expected = -np.concatenate([differences[0][1:], *differences[1:]])
    np.testing.assert_allclose(seen.pop("default"), expected, atol=2e-5)
    assert not seen


def every_next_token(prompt: list[int]) -> list[Sample]:
    """One sample for each token of the vocabulary behind a prompt, counted as often as the policy says it."""
    policy = tiny_model()
    with torch.no_grad():
        odds = policy(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1).numpy()
    found = []
    for token in range(VOCAB):
        (sample,) = samples([record("g", token, 0, 0.0, 1)])
        sample.input_ids = np.array([*prompt, token], np.int32)
        sample.labels = np.array([MASKED_TOKEN_ID] * len(prompt) + [token], np.int32)
        sample.old_logprobs = sample.ref_logprobs = odds[token : token + 1]
        sample.weight_versions = [(0, 0, 1)]
        sample.loss_weight_scale = VOCAB * float(np.exp(odds[token]))  # a step's samples weigh 1/B
        found.append(sample)
    return found


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("loss", ["reinforce", "ppo", "cispo"])
def test_the_gradient_is_that_of_the_reverse_kl_at_the_states_of_the_policy(
    folder: Path, loss: str, share: bool
) -> None:
    """Over all next tokens the expected policy gradient is autograd's of sum p (log p - log q)."""
    prompts = [3, 7, 2], [3, 7, 11, 5]
    policy, teacher = tiny_model(), tiny_model(1)
    divergence = torch.zeros(())
    for prompt in prompts:
        ids = torch.tensor([prompt])
        log_p = policy(ids).logits[0, -1].log_softmax(-1)
        log_q = teacher(ids).logits[0, -1].log_softmax(-1).detach()
        divergence = divergence + (log_p.exp() * (log_p - log_q)).sum()
    divergence.backward()

    chosen = [sample for prompt in prompts for sample in every_next_token(prompt)]
    for number, sample in enumerate(chosen):
        sample.rollout_index = number
        sample.loss_weight_scale *= len(prompts)
    scorers = {"here": ReferenceScorer(str(folder), 1.0, 64)}
    Teachers(TeacherConfig(model_path="here"), scorers).advise(chosen, nothing)
    one = learner(RLConfig(policy_loss=loss, epsilon_high=4.0), tiny_model())
    for batch in assemble_step(chosen, 0, 80, share=share)[0]:
        one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
    found = {name: p.grad for name, p in one.model.named_parameters()}
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, atol=2e-5, rtol=1e-4)


def test_rewards_and_teacher_add_up_for_each_token() -> None:
    alone, beside, without = text(1), text(2), text(3)
    alone.token_advantages = np.linspace(-1, 1, len(alone.old_logprobs), dtype=np.float32)
    beside.advantage, without.advantage = 0.75, -2.0
    beside.token_advantages = np.linspace(0, 1, len(beside.old_logprobs), dtype=np.float32)
    batch = encode([alone, beside, without], 0, 3)
    expected = [
        alone.token_advantages,
        0.75 + beside.token_advantages,
        np.full(len(without.old_logprobs), -2),
    ]
    found = targets_of(batch, RLConfig()).advantages
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-7)


CHOSEN = TeacherConfig(model_path="all", by_role={"critic": "c"}, by_domain={"math": "m"})


class Constant:
    """Every token has one log-probability."""

    def __init__(self, value: float) -> None:
        self._value = value

    def score(self, given: Any) -> list[np.ndarray | None]:
        return [np.full(len(sample.old_logprobs), self._value, np.float32) for sample in given]


SCORERS = {"all": Constant(-1), "c": Constant(-2), "m": Constant(-3)}


def of_domain(number: int, domain: str, **fields: Any) -> Sample:
    one = record("g", number, 0, 0.0, number, **fields)
    (sample,) = samples([one | {"metadata": one["metadata"] | {"domain": domain}}])
    return sample


def test_a_sample_has_the_teacher_of_its_role_then_of_its_domain() -> None:
    chosen = [of_domain(0, "math", role="critic"), of_domain(1, "math", role="policy"), text(2)]
    Teachers(CHOSEN, SCORERS).advise(chosen, nothing)
    for sample, value in zip(chosen, (-2, -3, -1), strict=True):
        np.testing.assert_allclose(sample.token_advantages, value - sample.old_logprobs, rtol=1e-6)


@pytest.mark.parametrize("with_rewards", [False, True])
def test_a_sample_without_a_teacher_learns_from_rewards_or_is_dropped(with_rewards: bool) -> None:
    teacher = TeacherConfig(by_domain={"math": "m"}, with_rewards=with_rewards)
    chosen = [of_domain(0, "math"), of_domain(1, "tir"), of_domain(2, "tir", masked=True)]
    unscored = Teachers(teacher, SCORERS).advise(chosen, nothing)
    assert [sample.rollout_index for sample in unscored] == ([] if with_rewards else [1])
    assert [sample.token_advantages is not None for sample in chosen] == [True, False, False]


@pytest.mark.parametrize("bench", [{}, {"teacher": {"model_path": "all"}}], indirect=True)
def test_alone_a_teacher_leaves_nothing_of_the_rewards(bench: Bench) -> None:
    alone = bench.preprocess.cfg.teacher.alone
    if alone:
        bench.preprocess._teachers = Teachers(bench.preprocess.cfg.teacher, SCORERS)
    bench.preprocess.take_groups([group(0, steps=2)])
    assert bench.preprocess.write_steps()
    (batch,) = bench.batches()[:1]
    learned = batch.labels[0] != MASKED_TOKEN_ID
    found = batch.advantages[0][learned]
    if alone:
        np.testing.assert_allclose(found, -1 - batch.old_logprobs[0][learned], rtol=1e-5)
    else:
        assert set(np.round(np.abs(found), 5)) == {np.float32(0.66667)}


class Silent:
    """Scores no sample of rollout 0, and says of rollout 1 what is no number."""

    def score(self, given: Any) -> list[np.ndarray | None]:
        return [
            None
            if sample.rollout_index == 0
            else np.full(len(sample.old_logprobs), np.nan if sample.rollout_index == 1 else -1, np.float32)
            for sample in given
        ]


@pytest.mark.parametrize("bench", [{"teacher": {"model_path": "all"}}], indirect=True)
def test_samples_that_a_teacher_cannot_score_are_dropped_and_counted(bench: Bench) -> None:
    bench.preprocess._teachers = Teachers(bench.preprocess.cfg.teacher, {"all": Silent()})
    bench.preprocess.take_groups([group(0)])
    assert bench.discarded.counts == {"no_teacher": 2}
    assert bench.ends() == {("filtered", "no_teacher"): 2}


def test_metrics_tell_each_teachers_divergence() -> None:
    metrics = PreprocessMetrics()
    metrics.add_teacher("role/critic", np.array([1.0, 3.0]))
    metrics.add_teacher("role/critic", np.array([-1.0]))
    metrics.add_teacher("default", np.array([0.5]))
    found = {name: value for name, value in metrics.record({}).items() if name.startswith("teacher/")}
    assert found == {
        "teacher/role/critic/reverse_kl": 1.0,
        "teacher/role/critic/samples": 2,
        "teacher/default/reverse_kl": 0.5,
        "teacher/default/samples": 1,
    }


async def test_an_engine_as_teacher_says_what_the_model_does(tmp_path: Path) -> None:
    path = build_model(tmp_path / "model", tied=True)
    exact = {"load_as_bf16": False}
    in_process = preprocess_config(tmp_path, teacher={"model_path": str(path)}, finetune=exact)
    ours, theirs = ([text(number) for number in range(5)] for _ in range(2))
    local = teachers(in_process)
    assert local is not None
    local.advise(ours, nothing)
    async with running_engine(path) as engine:
        remote = teachers(preprocess_config(tmp_path, teacher={"url": engine.url}))
        assert remote is not None
        assert await asyncio.to_thread(remote.advise, theirs, nothing) == []
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_advantages is not None and other.token_advantages is not None
        np.testing.assert_allclose(one.token_advantages, other.token_advantages, atol=2e-5)


def test_a_teacher_that_is_gone_is_a_named_wait(tmp_path: Path) -> None:
    cfg = preprocess_config(tmp_path, teacher={"url": "http://127.0.0.1:9", "deadline_s": 0.3})
    gone = teachers(cfg)
    assert gone is not None
    with pytest.raises(WaitExpired, match=r"log-probabilities from the teacher at http://127.0.0.1:9"):
        gone.advise([text(0)], nothing)


def test_without_a_teacher_there_is_none(tmp_path: Path) -> None:
    assert teachers(preprocess_config(tmp_path)) is None
