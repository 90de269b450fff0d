"""Samples that begin alike are computed once from there on, and every gradient is what it was."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from pipelinerl.config.finetune import LoraConfig, RLConfig
from pipelinerl.config.staleness import Staleness
from pipelinerl.finetune.metrics import METRICS, Reducer
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step
from pipelinerl.finetune.rl.losses import LOSSES, Coefficients
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.lora import add_adapters
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.value_head import build_value_head
from pipelinerl.preprocess.reference import ReferenceScorer
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.builders import ready, write_steps
from tests.support.policy import VOCAB, learner, tiny_model
from tests.support.tiny_model import hybrid_lm
from tests.support.training import Deadly, Killed, saved, train

ROW = 24
NEWEST = 10
"""The last announced version; the n-th sample is of version n."""
# Two ids, so that samples agree for a while, equal each other and are prefixes of each other.
IDS = st.lists(st.integers(1, 2), min_size=1, max_size=10)
TEXTS = st.lists(st.tuples(IDS, st.integers(0, 10)), min_size=1, max_size=14)


def sample_of(number: int, ids: Sequence[int], prompt: int) -> Sample:
    """Its first `prompt` tokens are not learned, and perhaps none of them are."""
    tokens = np.array(ids, np.int32)
    labels = tokens.copy()
    labels[: min(prompt, len(ids))] = MASKED_TOKEN_ID
    count = int((labels != MASKED_TOKEN_ID).sum())
    drawn = np.random.default_rng(number)
    old = -drawn.random(count).astype(np.float32) - 1
    return ready(
        number,
        float(drawn.normal()),
        rollout_index=number,
        input_ids=tokens,
        labels=labels,
        old_logprobs=old,
        ref_logprobs=old - drawn.random(count).astype(np.float32),
        weight_versions=[(number, 0, count)] if count else [],
        # Of a teacher, for every other sample.
        token_advantages=drawn.normal(size=count).astype(np.float32) if number % 2 else None,
    )


def samples_of(texts: Sequence[tuple[list[int], int]]) -> list[Sample]:
    return [sample_of(number, ids, prompt) for number, (ids, prompt) in enumerate(texts)]


def expert_lm() -> PreTrainedModel:
    """Two of four experts for each token, in both layers."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        initializer_range=0.3,
    )
    return Qwen3MoeForCausalLM(config)


def flat(ranks: list[list[PipelineBatchEncoding]]) -> list[PipelineBatchEncoding]:
    return [batch for rank in ranks for batch in rank]


OF_TOKENS = [metric for metric in METRICS if metric.reducer is not Reducer.STEP]
SUMMED = [
    place
    for place, metric in enumerate(OF_TOKENS)
    if metric.reducer in (Reducer.SUM, Reducer.TEXT_MEAN) and metric.name != "rl/input_size"
]
"""Places of what adds up over micro-batches and is the same for shared and unshared rows."""


def trained(
    batches: Sequence[PipelineBatchEncoding],
    rl: RLConfig,
    value_head: bool = False,
    lora: bool = False,
    experts: bool = False,
    states: bool = False,
    max_lag: int | None = None,
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Gradients of a step, and the sums of its statistics."""
    model = prepare_model(expert_lm()) if experts else tiny_model()
    if states:
        model = prepare_model(hybrid_lm("qwen3_5", VOCAB))
    if lora:
        add_adapters(model, LoraConfig(enabled=True, r=2))
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.data.normal_(0, 0.3)
    head = build_value_head(model) if value_head else None
    if head is not None:
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(2))
    one = learner(rl, model, value_head=head)
    coefficients = Coefficients(0.1, 0.02)
    found = [
        one.accumulate(batch, targets_of(batch, rl, NEWEST, Staleness(max_lag)), coefficients)
        for batch in batches
    ]
    vectors = [measured.vector.numpy() for measured in found if measured is not None]
    gradients = {name: p.grad for name, p in one.policy.named_parameters() if p.grad is not None}
    return gradients, np.sum([vector[SUMMED] for vector in vectors] or [np.zeros(len(SUMMED))], axis=0)


def assert_equal(samples: list[Sample], rl: RLConfig, ranks: int = 1, **kind: Any) -> None:
    plain = flat(assemble_step(samples, 0, ROW, ranks))
    shared = flat(assemble_step(samples, 0, ROW, ranks, share=True))
    expected, statistics = trained(plain, rl, **kind)
    found, others = trained(shared, rl, **kind)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        size = max(1.0, float(gradient.abs().max()))
        # Sums in another order: with weights of 20 and an adapter's chain of products some processors differ
        # by 1.4e-5 where others stay below 1e-5. Layers with a state divide the first tokens' results, which
        # are small, by their size.
        limit = 1e-4 if kind.get("states") else 3e-5
        torch.testing.assert_close(found[name], gradient, atol=limit * size, rtol=0)
    np.testing.assert_allclose(others, statistics, atol=1e-4, rtol=1e-5)


@settings(max_examples=25)
@given(TEXTS, st.sampled_from(LOSSES), st.booleans(), st.integers(1, 2))
def test_shared_equals_unshared(
    texts: list[tuple[list[int], int]], loss: str, value_head: bool, ranks: int
) -> None:
    rl = RLConfig(policy_loss=loss, epsilon_high=4.0, kl_coef=0.1, entropy_bonus=0.02, value_loss_coef=0.3)
    assert_equal(samples_of(texts), rl, ranks, value_head=value_head)


DIALOGUES = [
    *(([1, 2, 1, 1, 2, 2, last], 4) for last in (1, 2, 2)),
    *(([1, 2, 1, 1, 2, 2, 1, 1, last, 2], 8) for last in (1, 2)),
    ([1, 2, 1, 1, 2, 2, 1, 1, 1, 2], 3),
    ([2], 0),
    ([1, 2, 1], 3),
]
"""A stage's prompt of several attempts, the next stage behind one of them, a text that goes through both."""


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["plain", "value_head", "lora", "experts", "states"])
def test_every_loss_with_stages_equals_unshared(loss: str, kind: str) -> None:
    if kind == "lora":
        pytest.importorskip("peft")
    samples = samples_of(DIALOGUES)
    (batch,) = flat(assemble_step(samples, 0, 2 * ROW, share=True))
    assert batch.n_computed < 0.4 * batch.n_tokens
    rl = RLConfig(policy_loss=loss, epsilon_high=4.0, kl_coef=0.1, entropy_bonus=0.02, value_loss_coef=0.3)
    assert_equal(samples, rl, **({} if kind == "plain" else {kind: True}))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_stale_overlong_and_weighted_samples_equal_unshared(loss: str, ranks: int) -> None:
    """Equal texts that differ in all that is not their ids, trained at a temperature, with everything on."""
    pytest.importorskip("peft")
    samples = samples_of([*DIALOGUES, *DIALOGUES])
    for number, sample in enumerate(samples):
        sample.overflow, sample.group_tokens = float(number % 5 == 0), 3.0 + number
        sample.loss_weight_scale, sample.kl_weight_scale = 1.0 + number, 2.0 - number / 10
    rl = RLConfig(
        policy_loss=loss,
        temperature=0.6,
        group_normalization=True,
        overlong_filtering=True,
        value_loss_coef=0.3,
    )
    (batch, *_) = flat(assemble_step(samples, 0, 2 * ROW, share=True))
    targets = targets_of(batch, rl, NEWEST, Staleness(6))
    assert 0 < targets.stale.sum() < len(targets.stale)
    assert_equal(samples, rl, ranks, value_head=True, lora=True, max_lag=6)


def test_a_shared_row_is_read_back_and_checked() -> None:
    (batch,) = flat(assemble_step(samples_of(DIALOGUES), 0, 2 * ROW, share=True))
    again = PipelineBatchEncoding.from_record(batch.to_record())
    assert again.shared is not None and batch.shared is not None
    np.testing.assert_array_equal(again.shared, batch.shared)
    old = batch.to_record()
    del old["shared"]
    assert PipelineBatchEncoding.from_record(old).prefixes is None
    for wrong in (batch.shared + 1, -batch.shared, batch.shared[:-1]):
        with pytest.raises(ValueError, match=r"column shared .* does not fit"):
            PipelineBatchEncoding.from_record(batch.to_record() | {"shared": wrong})


def test_records_tell_what_is_shared_whatever_a_resumed_run_is_configured_for(tmp_path: Path) -> None:
    begin, alone, straight, resumed = [1, 2, 3, 4, 5], *(tmp_path / name for name in "abc")
    for folder in (alone, straight, resumed):
        write_steps(folder, 4, 6, share=folder != alone, begin=begin)
    train(alone, share_prefixes=False)
    train(straight)
    with pytest.raises(Killed):
        train(resumed, Deadly(18))
    train(resumed, share_prefixes=False)
    for name, tensor in saved(straight).items():
        torch.testing.assert_close(tensor, saved(alone)[name], atol=1e-4, rtol=1e-4)
        assert torch.equal(tensor, saved(resumed)[name])


def test_without_sharing_or_packing_every_token_is_computed() -> None:
    samples = samples_of(DIALOGUES)
    for batch in flat(assemble_step(samples, 0, ROW)):
        assert batch.shared is None and batch.n_computed == batch.n_tokens
    alone = flat(assemble_step(samples, 0, ROW, packing=False, share=True))
    assert [batch.n_texts for batch in alone] == [1] * len(samples)
    assert all(batch.shared is None for batch in alone)


@pytest.mark.parametrize("states", [False, True])
def test_the_reference_scores_shared_prefixes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: bool
) -> None:
    model = hybrid_lm("qwen3_5", VOCAB) if states else tiny_model()
    model.save_pretrained(tmp_path)
    samples = [*samples_of(DIALOGUES), sample_of(50, [2, 1, 1], 0)]
    computed: list[int] = []
    scores: list[list[Any]] = []
    for share in (False, True):
        scorer = ReferenceScorer(str(tmp_path), 0.7, ROW, share_prefixes=share)
        policy = scorer._policy

        def counting(ids: torch.Tensor, *rest: Any, policy: Any = policy) -> Any:
            computed.append(ids.shape[1])
            return policy(ids, *rest)

        monkeypatch.setattr(scorer, "_policy", counting)
        scores.append(scorer.score(samples))
        computed.append(-1)
    for expected, found in zip(*scores, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    end = computed.index(-1)
    assert sum(computed[end + 1 : -1]) < 0.5 * sum(computed[:end])


def test_dropout_of_attention_is_refused_as_ever(model: PreTrainedModel) -> None:
    one = learner(RLConfig(), model)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    (batch,) = flat(assemble_step(samples_of(DIALOGUES), 0, 2 * ROW, share=True))
    with pytest.raises(ValueError, match="dropout"):
        one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
