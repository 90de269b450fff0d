"""Sliding windows, capped scores and sinks on rows, against every sample alone with its mask written out."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from pipelinerl.modeling import capped_attention
from pipelinerl.modeling.attention import varlen_attention
from pipelinerl.modeling.model import hidden_states, prepare_model, sliding_window
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.prefixes import Prefixes, shared_with_previous
from pipelinerl.modeling.row import Row
from pipelinerl.modeling.segments import Segments

HEADS, SHARED, SIZE, SCALE = 4, 2, 8, 0.4


def alone(
    states: list[torch.Tensor], window: int | None, cap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """`[n, H, D]` of one sample's query, key and value `[H, n, D]`, from the whole matrix of its scores."""
    query, key, value = states
    key, value = (one.repeat_interleave(HEADS // SHARED, 0) for one in (key, value))
    scores = query @ key.transpose(1, 2) * SCALE
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    places = torch.arange(query.shape[1])
    distance = places[:, None] - places
    hidden = (distance < 0) | (distance >= (window or len(places)))
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(places), 1)], 2)
    return (scores.softmax(-1)[..., : len(places)] @ value).transpose(0, 1)


def random_states(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(1, heads, length, SIZE) for heads in (HEADS, SHARED, SHARED)]
    return [(2 * torch.randn(shape, generator=generator)).requires_grad_() for shape in shapes]


TEXTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=24), min_size=1, max_size=6)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    texts=TEXTS,
    window=st.sampled_from([None, 1, 2, 3, 7, 23, 24, 40]),
    cap=st.sampled_from([None, 3.0]),
    with_sinks=st.booleans(),
    share=st.booleans(),
    told=st.booleans(),
    block=st.sampled_from([1, 5, 256]),
)
def test_rows_give_what_every_sample_alone_gives(
    texts: list[list[int]],
    window: int | None,
    cap: float | None,
    with_sinks: bool,
    share: bool,
    told: bool,
    block: int,
) -> None:
    """Results and gradients; `told` is whether the row was built for this window."""
    ids = [np.array(one) for one in (sorted(texts) if share else texts)]
    bounds = np.cumsum([0, *map(len, ids)])
    prefixes = Prefixes(bounds, shared_with_previous(ids) if share else np.zeros(len(ids), np.int32))
    segments = (
        Segments.from_prefixes(prefixes, window=window if told else None)
        if share
        else Segments.from_offsets(bounds)
    )
    length = len(prefixes.computed)
    states, exact = random_states(length), [one.detach().double() for one in random_states(length)]
    sinks = torch.linspace(-1, 2, HEADS).requires_grad_() if with_sinks else None
    exact_sinks = None if sinks is None else sinks.detach().double().requires_grad_()
    for one in exact:
        one.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capped_attention, "BLOCK", block)
        found, _ = varlen_attention(
            torch.nn.Module(),
            states[0],
            states[1],
            states[2],
            None,
            scaling=SCALE,
            segments=segments,
            sliding_window=window,
            softcap=cap,
            s_aux=sinks,
        )
        upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
        (found * upstream).sum().backward()
    expected = torch.zeros(length, HEADS, SIZE, dtype=torch.float64)
    for begin, end, count in zip(bounds, bounds[1:], prefixes.shared, strict=False):
        path = torch.from_numpy(prefixes.path[begin:end])
        own = alone([one[0, :, path] for one in exact], window, cap, exact_sinks)
        expected = expected.index_copy(0, path[count:], own[count:])
    (expected * upstream[0].double()).sum().backward()
    torch.testing.assert_close(found[0].double(), expected, atol=1e-5, rtol=1e-5)
    pairs = [*zip(states, exact, strict=True), *([(sinks, exact_sinks)] if sinks is not None else [])]
    for one, other in pairs:
        assert one.grad is not None and other is not None and other.grad is not None
        size = max(1.0, float(other.grad.abs().max()))
        torch.testing.assert_close(one.grad.double(), other.grad, atol=1e-5 * size, rtol=1e-5)


def test_a_window_cuts_the_keys_that_are_gathered() -> None:
    """A prompt of 40 tokens with four answers of 3: of the prompt every answer but the first sees 5."""
    texts = [np.array([*range(40), 50 + n, 1, 2]) for n in range(4)]
    prefixes = Prefixes(np.cumsum([0, *map(len, texts)]), shared_with_previous(texts))
    segments = Segments.from_prefixes(prefixes, window=6)
    whole, near = segments.keys_within(None), segments.keys_within(6)
    assert whole is not None and whole.lengths == (43, 43, 43, 43)
    assert near is not None and near.lengths == (43, 8, 8, 8)
    assert near.rows.tolist() == [
        *range(43),
        *(k for n in range(3) for k in (*range(35, 40), *range(43 + 3 * n, 46 + 3 * n))),
    ]
    assert segments.keys_within(7) is whole  # of another model
    wide = Segments.from_prefixes(prefixes, window=43)
    assert wide.keys_within(43) is wide.keys and wide.levels_within(43) is wide.levels
    narrow = segments.levels_within(6)
    assert narrow is not None and not narrow.parts.any()


SMALL: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 4}
MODELS: dict[str, dict[str, Any]] = {
    "Mistral": {},
    "Gemma2": LAYERS | CAPS | {"head_dim": 4},
    "Gemma3": LAYERS | {"head_dim": 4, "query_pre_attn_scalar": 4},
    "Qwen2": LAYERS | {"use_sliding_window": True},
}


def windowed(family: str, window: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    made = getattr(transformers, config)(**SMALL | MODELS[family], sliding_window=window)
    made._attn_implementation = "eager"  # of transformers' others not every one caps
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(made)
    return model.eval()


@settings(max_examples=4, deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", MODELS)
@given(
    lengths=st.lists(st.integers(2, 20), min_size=1, max_size=4),
    window=st.sampled_from([1, 3, 8, 32]),
    common=st.integers(0, 12),
)
def test_scores_and_gradients_of_a_row_are_those_of_the_models_own_logits(
    family: str, dtype: torch.dtype, lengths: list[int], window: int, common: int
) -> None:
    reference = windowed(family, window).train()
    policy = Policy(prepare_model(copy.deepcopy(reference)))
    assert policy.window == window
    generator = torch.Generator().manual_seed(sum(lengths))
    start = torch.randint(31, (common,), generator=generator)
    texts = [torch.cat([start, torch.randint(31, (n,), generator=generator)]) for n in lengths]
    texts = sorted(texts, key=torch.Tensor.tolist)
    bounds = np.cumsum([0, *map(len, texts)])
    prefixes = Prefixes(bounds, shared_with_previous([one.numpy() for one in texts]))
    ids, positions = torch.cat(texts).numpy(), np.concatenate([np.arange(len(one)) for one in texts])
    expected, found = [], []
    reference.to(dtype), policy.to(dtype)
    for text in texts:
        logits = reference(input_ids=text[None], use_cache=False).logits[0, :-1].float() / 0.7
        expected.append(logits.log_softmax(-1).gather(1, text[1:, None])[:, 0])
    at = np.flatnonzero(positions > 0)
    for row in (Row.of(ids, positions, bounds), Row.of(ids, positions, bounds, prefixes)):
        scores, _ = policy(
            torch.from_numpy(row.input_ids),
            torch.from_numpy(row.position_ids),
            row.segments("cpu", policy.window),
            torch.from_numpy(row.computed(at - 1)),
            torch.from_numpy(ids[at]),
            0.7,
        )
        found.append(scores.logprobs)
    limit = 2e-5 if dtype == torch.float32 else 0.3
    for one in found:
        torch.testing.assert_close(one, torch.cat(expected), atol=limit, rtol=limit)
    if dtype == torch.bfloat16:
        return
    torch.cat(expected).sum().backward()
    wanted = dict(reference.named_parameters())
    for one in found:
        policy.zero_grad()
        one.sum().backward()
        for name, parameter in policy.model.named_parameters():
            size = max(1.0, float(wanted[name].grad.abs().max()))
            torch.testing.assert_close(parameter.grad, wanted[name].grad, atol=1e-5 * size, rtol=1e-5)


def test_a_layer_that_does_not_tell_its_window_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers' masks would have it; rows have no mask."""
    model = windowed("Qwen2", 4)
    model.model.layers[0].self_attn.sliding_window = None
    with pytest.raises(ValueError, match=r"does not tell its attention the sliding window .*\(layer 0: None"):
        prepare_model(model)


def test_a_window_that_is_switched_off_is_none() -> None:
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, sliding_window=4))
    assert sliding_window(model) is None
    prepare_model(model)


def test_dense_rows_know_of_no_window() -> None:
    """With the defaults every run is what it was: no second set of keys, no mask."""
    torch.manual_seed(0)
    policy = Policy(prepare_model(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))))
    assert policy.window is None
    texts = [np.array([1, 2, 3, n]) for n in range(3)]
    prefixes = Prefixes(np.cumsum([0, 4, 4, 4]), shared_with_previous(texts))
    segments = Segments.from_prefixes(prefixes, window=policy.window)
    assert segments.near is None and segments.keys_within(None) is segments.keys
    hidden_states(
        policy.model, torch.tensor([[1, 2, 3, 0, 1, 2]]), torch.tensor([[0, 1, 2, 3, 3, 3]]), segments
    )
