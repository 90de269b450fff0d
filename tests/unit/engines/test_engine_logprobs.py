"""What the engine reports is what the model's own forward gives."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from pipelinerl.engines.client import Generation, SamplingParams
from pipelinerl.engines.cpu import forwards
from pipelinerl.engines.cpu import model as packed_model
from pipelinerl.engines.cpu.model import PackedModel, UnsupportedModel
from pipelinerl.engines.cpu.settings import EngineSettings
from tests.support.engine_harness import (
    EOS,
    VOCAB,
    build_llama,
    full_logprobs,
    random_prompt,
    reference,
    running_engine,
)

TOLERANCE = 2e-5
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 4}


def difference(one: Generation, model: Any, temperature: float = 1.0) -> np.ndarray:
    """float32 [T]: how far each log-probability is from that of one full forward."""
    ids = np.concatenate([one.prompt_ids, one.token_ids])
    return np.abs(one.logprobs - full_logprobs(model, ids, temperature)[len(one.prompt_ids) - 1 :])


@pytest.mark.parametrize("forward", ["FusedForward", "TransformersForward"])
@pytest.mark.parametrize("architecture", ["untied_model", "llama_model"])
async def test_logprobs_equal_the_full_forward(
    architecture: str,
    forward: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if forward != "FusedForward":  # which both architectures take by themselves
        monkeypatch.setattr(packed_model, "fused_forward_applies", lambda _: False)
    folder = request.getfixturevalue(architecture)
    model = reference(folder)
    async with running_engine(folder) as engine:
        assert engine.backend.model.forward_name == forward
        lengths = {1: 1.0, 2: 0.7, 4: 1.0, 63: 0.7, 64: 1.0, 65: 0.7, 200: 1.0, 350: 0.7}
        generations = await asyncio.gather(
            *(
                engine.client.generate(
                    random_prompt(length, seed=length),
                    SamplingParams(max_tokens=60, temperature=temperature, seed=1, ignore_eos=True),
                )
                for length, temperature in lengths.items()
            )
        )
    for one, temperature in zip(generations, lengths.values(), strict=True):
        assert difference(one, model, temperature).max() <= TOLERANCE


async def test_logprobs_stay_exact_over_900_tokens(tied_model: Path) -> None:
    model = reference(tied_model)
    async with running_engine(tied_model, max_model_len=1024, max_num_seqs=2) as engine:
        one = await engine.client.generate(
            random_prompt(100), SamplingParams(max_tokens=900, seed=3, ignore_eos=True)
        )
    found = difference(one, model)
    assert found.max() <= TOLERANCE
    assert found.mean() <= 1e-6


async def test_prompt_logprobs_are_at_temperature_1_and_survive_chunks(tied_model: Path) -> None:
    prompt = random_prompt(200)
    async with running_engine(tied_model, max_prefill_tokens=48) as engine:
        scores = await engine.client.prompt_logprobs(prompt)
        answer = await engine.post(
            "/inference/v1/generate",
            {
                "token_ids": prompt,
                "sampling_params": {"max_tokens": 1, "temperature": 0.3, "prompt_logprobs": 0},
            },
        )
    np.testing.assert_allclose(scores, full_logprobs(reference(tied_model), prompt), atol=TOLERANCE)
    assert answer["prompt_logprobs"][0] is None
    for position in (1, 48, 199):
        entry = answer["prompt_logprobs"][position][str(prompt[position])]
        assert entry["logprob"] == pytest.approx(scores[position - 1], abs=TOLERANCE)
        assert entry["rank"] >= 1


async def test_bfloat16_runs_with_a_float32_head(tied_model: Path) -> None:
    model = reference(tied_model)
    async with running_engine(tied_model, dtype="bfloat16") as engine:
        one = await engine.client.generate(
            random_prompt(30), SamplingParams(max_tokens=30, seed=1, ignore_eos=True)
        )
    assert difference(one, model).mean() < 0.1
    # bfloat16 has eight bits of mantissa; values that need more can only come from a float32 head.
    assert (np.abs(one.logprobs * 256 % 1) > 1e-3).any()


def rotation(kind: str, **fields: Any) -> dict[str, Any]:
    common = {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    return {"rope_parameters": {"rope_type": kind, **common, **fields}}


@pytest.mark.parametrize(
    ("forward", "fields"),
    [
        ("TransformersForward", {"attention_bias": True}),
        ("TransformersForward", {"mlp_bias": True}),
        ("TransformersForward", {"hidden_act": "gelu"}),
        # Its angles would follow from the longest text that the engine takes.
        (
            "TransformersForward",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
        ),
        ("FusedForward", rotation("llama3", low_freq_factor=1.0, high_freq_factor=4.0)),
        ("FusedForward", rotation("yarn")),
        ("FusedForward", {"head_dim": 32, "rms_norm_eps": 1e-2}),
    ],
)
async def test_a_llama_is_fused_only_where_that_is_right(
    tmp_path: Path, forward: str, fields: dict[str, Any]
) -> None:
    build_llama(tmp_path, **fields)
    async with running_engine(tmp_path) as engine:
        assert engine.backend.model.forward_name == forward
        runs = await asyncio.gather(
            *(
                engine.client.generate(random_prompt(length), SamplingParams(max_tokens=20, ignore_eos=True))
                for length in (3, 100)
            )
        )
    for one in runs:
        assert difference(one, reference(tmp_path)).max() <= TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_logits_are_scaled_as_the_architecture_says(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(0)
    more = {"hidden_size": 64, "intermediate_size": 96, "initializer_range": 0.3, "logits_scaling": 6.0}
    GraniteForCausalLM(GraniteConfig(**SIZES | more)).save_pretrained(tmp_path)
    async with running_engine(tmp_path, dtype=dtype) as engine:
        one = await engine.client.generate(
            random_prompt(30), SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
        )
    found = difference(one, reference(tmp_path))
    assert found.max() <= TOLERANCE if dtype == "float32" else found.mean() < 0.1


WINDOW: dict[str, Any] = {"sliding_window": 20, "num_key_value_heads": 2, "initializer_range": 0.15}
WINDOW |= {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 512}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0, "head_dim": 16}
WINDOWED: list[tuple[Any, Any, dict[str, Any]]] = [
    (MistralConfig, MistralForCausalLM, {}),
    (Gemma3TextConfig, Gemma3ForCausalLM, LAYERS | {"head_dim": 16}),
    (Gemma2Config, Gemma2ForCausalLM, LAYERS | CAPS),
    (Qwen3Config, Qwen3ForCausalLM, LAYERS | {"use_sliding_window": True, "head_dim": 16}),
    (
        GptOssConfig,
        GptOssForCausalLM,
        LAYERS | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("config", "family", "fields"), WINDOWED, ids=lambda one: getattr(one, "__name__", "")
)
async def test_windows_caps_and_sinks_give_the_models_own_logprobs(
    config: Any, family: Any, fields: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    """Prompts and answers shorter and longer than the window, in pieces, many at a time."""
    torch.manual_seed(0)
    family(config(**SIZES | WINDOW | fields)).save_pretrained(tmp_path)
    model = reference(tmp_path)
    model.set_attn_implementation("eager")
    async with running_engine(tmp_path, dtype=dtype, max_prefill_tokens=48) as engine:
        runs = await asyncio.gather(
            *(
                engine.client.generate(
                    random_prompt(length, seed=length),
                    SamplingParams(max_tokens=30, temperature=0.7, seed=1, ignore_eos=True),
                )
                for length in (1, 5, 19, 20, 21, 100, 150)
            )
        )
    for one in runs:
        found = difference(one, model, 0.7)
        assert found.max() <= TOLERANCE if dtype == "float32" else found.mean() < 0.3


def test_an_architecture_that_cannot_be_served_right_is_refused_at_start(tmp_path: Path) -> None:
    chunks = {"layer_types": ["chunked_attention", "full_attention"], "intermediate_size": 64}
    LlamaForCausalLM(LlamaConfig(hidden_size=64, **SIZES | chunks)).save_pretrained(tmp_path / "chunks")
    with pytest.raises(UnsupportedModel, match="layers of type chunked_attention: only full_attention and"):
        PackedModel(EngineSettings(model=tmp_path / "chunks"))
    recurrent = RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)
    RwkvForCausalLM(recurrent).save_pretrained(tmp_path / "recurrent")
    with pytest.raises(UnsupportedModel, match="layers without attention: only full_attention and"):
        PackedModel(EngineSettings(model=tmp_path / "recurrent"))
    config = BloomConfig(hidden_size=64, vocab_size=VOCAB, n_layer=2, n_head=4)
    BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    with pytest.raises(UnsupportedModel, match=r"packed forward differs from the model.s own"):
        PackedModel(EngineSettings(model=tmp_path / "bloom"))
    damaged = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=64, **SIZES))
    damaged.model.norm.weight.data[3] = float("inf")  # no architecture would serve it
    damaged.save_pretrained(tmp_path / "damaged")
    with pytest.raises(UnsupportedModel, match="hold NaN or infinity, so its weights are damaged"):
        PackedModel(EngineSettings(model=tmp_path / "damaged"))


@cache
def made_deep() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, initializer_range=0.3, **SIZES | {"num_hidden_layers": 60}
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def deep_model(monkeypatch: pytest.MonkeyPatch) -> EngineSettings:
    """60 layers, whose float32 rounding exceeds what the check allows without asking for its cause."""
    # Loading it, which takes most of a test, is not what is tested.
    monkeypatch.setattr(
        packed_model, "load_causal_lm", lambda _, dtype, **options: deepcopy(made_deep()).to(dtype)
    )
    return EngineSettings(model=Path("deep"), max_num_seqs=2, max_model_len=64)


def test_a_deep_model_is_served_although_its_rounding_exceeds_the_limit(
    deep_model: EngineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="pipelinerl.engines.cpu.model"):
        PackedModel(deep_model)
    assert "nats from its forward in torch.float64" in caplog.text  # a limit alone would have refused it


@pytest.mark.parametrize(
    ("fault", "forward"), [("scaling", "FusedForward"), ("position", "TransformersForward")]
)
def test_a_deep_model_that_is_computed_wrongly_is_refused(
    deep_model: EngineSettings, fault: str, forward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_model, "fused_forward_applies", lambda _: forward == "FusedForward")
    chosen = getattr(packed_model, forward)
    right = chosen.__call__

    def wrong(self: Any, batch: Any, rows: list[int]) -> torch.Tensor:
        if fault == "position":
            batch = replace(batch, positions=batch.positions + (batch.positions > 20))
        return right(self, batch, rows)

    def attend(query: torch.Tensor, layer: int, *rest: Any) -> torch.Tensor:
        return right_attend(query * (1.001 if layer == 30 else 1.0), layer, *rest)

    right_attend = forwards.attend
    monkeypatch.setattr(chosen, "__call__", wrong)
    if fault == "scaling":
        monkeypatch.setattr(forwards, "attend", attend)
    with pytest.raises(UnsupportedModel, match="rounding does not explain it"):
        PackedModel(deep_model)


async def test_end_id_is_part_of_the_output(tied_model: Path) -> None:
    async with running_engine(tied_model) as engine:
        runs = await asyncio.gather(
            *(
                engine.client.generate(random_prompt(5, seed), SamplingParams(max_tokens=400, seed=seed))
                for seed in range(8)
            )
        )
        stopped = [one for one in runs if one.finish_reason == "stop"]
        assert stopped, "none of eight streams met the end id in 400 tokens"
        for one in stopped:
            assert one.token_ids[-1] == EOS
            assert EOS not in one.token_ids[:-1]
            assert one.stop_reason is None
        longest = max(range(8), key=lambda seed: len(runs[seed].token_ids))
        stop = int(runs[longest].token_ids[3])
        again = await engine.client.generate(
            random_prompt(5, longest), SamplingParams(max_tokens=400, seed=longest, stop_token_ids=(stop,))
        )
        assert again.finish_reason == "stop"
        assert again.stop_reason == stop
        assert again.token_ids[-1] == stop
