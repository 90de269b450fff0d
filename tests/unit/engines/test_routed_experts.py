"""The experts that an engine says are those of the weights that sampled, whatever was cached or updated."""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.async_llm import _call, make_training_text
from pipelinerl.engines.answers import InvalidAnswer, LiveAnswer, read_generation
from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.cpu.model import PackedModel, UnsupportedModel
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.weights.transports.file import FileTransport
from tests.support.engine_harness import VOCAB, RunningEngine, random_prompt, reference, running_engine, until
from tests.support.tiny_model import build_tokenizer, mixture_lm

ON: dict[str, Any] = {"enable_return_routed_experts": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two mixtures of experts of one shape: 8 experts, 2 of them for each token, in 4 layers."""
    made = []
    for seed in range(2):
        made.append(tmp_path_factory.mktemp(f"mixture{seed}"))
        mixture_lm(VOCAB, spread=0.15, seed=seed).save_pretrained(made[-1])
    return made


def chosen(model: PreTrainedModel, ids: list[int], cache: Any = None) -> np.ndarray:
    """Experts of each token by transformers' own router logits, `[T, layers, 2]` in ascending order."""
    rows = torch.tensor([ids])
    with torch.no_grad():
        logits = model(rows, past_key_values=cache, output_router_logits=True).router_logits
    return np.stack([np.sort(one.topk(2).indices.numpy(), -1) for one in logits], 1)


def said(choice: dict[str, Any]) -> np.ndarray:
    return np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)


async def asked(engine: RunningEngine, prompt: list[int], **sampling: Any) -> list[dict[str, Any]]:
    fields = {"ignore_eos": True, "logprobs": 0, **sampling}
    answer = await engine.post("/inference/v1/generate", {"token_ids": prompt, "sampling_params": fields})
    return list(answer["choices"])


async def test_a_stream_says_the_experts_of_all_tokens_at_its_end(folders: list[Path]) -> None:
    prompt, sampling = random_prompt(30), SamplingParams(max_tokens=9, seed=1, ignore_eos=True)
    async with running_engine(folders[0], **ON) as engine:
        whole = await engine.client.generate(prompt, sampling)
        live = LiveAnswer(lambda tokens: None)
        streamed = await engine.client.generate(prompt, sampling, live=live)
    assert whole.routed_experts is not None and whole.routed_experts.shape == (38, 4, 2)
    assert streamed.routed_experts is not None
    np.testing.assert_array_equal(streamed.routed_experts, whole.routed_experts)


async def test_prompt_and_answer_have_the_experts_of_one_full_forward(folders: list[Path]) -> None:
    """Pieces of prompts, several sequences, blocks of the prefix cache, a dialogue that goes on."""
    model, stem = reference(folders[0]), random_prompt(100)
    async with running_engine(folders[0], max_prefill_tokens=30, **ON) as engine:
        for turn in range(3):
            prompt = [*stem, *random_prompt(7 * turn, turn)]
            choices = await asked(engine, prompt, max_tokens=9, n=3, seed=turn)
            for choice in choices:
                ids, routes = [*prompt, *choice["token_ids"]], said(choice)
                assert routes.dtype == np.uint8 and routes.shape == (len(ids) - 1, 4, 2)
                np.testing.assert_array_equal(np.sort(routes, -1), chosen(model, ids[:-1]))
            stem = [*prompt, *choices[0]["token_ids"]]
        assert (await engine.client.metrics())["vllm:prefix_cache_hits_total"] > 200


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_tokens_sampled_before_an_update_keep_the_experts_of_the_old_weights(
    folders: list[Path], tmp_path: Path, kv: str
) -> None:
    transport, models = FileTransport(tmp_path), [reference(one) for one in folders]
    clears = str(kv == "recompute").lower()
    async with running_engine(folders[0], **ON) as engine:
        await engine.post("/update_weight_version", {"weight_version": "0"})
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        prompt = random_prompt(40)
        answer = asyncio.create_task(asked(engine, prompt, max_tokens=150, seed=5))
        await until(lambda: engine.server.engine.metrics.generation_tokens > 10)
        info = transport.stage(1, models[1].named_parameters()).info
        await engine.post(f"/pause?mode=keep&clear_cache={clears}")
        await engine.post("/start_weight_update")
        await engine.post("/update_weights", {"update_info": info})
        await engine.post("/finish_weight_update", {"weight_version": "1"})
        await engine.post("/resume")
        (choice,) = await answer
    old, new = choice["weight_versions"]
    ids, cut = [*prompt, *choice["token_ids"]], len(prompt) + old["end"] - 1
    routes = np.sort(said(choice), -1)
    assert len(routes) == len(ids) - 1 and new["end"] > old["end"] > 10
    np.testing.assert_array_equal(routes[:cut], chosen(models[0], ids[:cut]))
    if kv == "recompute":
        np.testing.assert_array_equal(routes[cut:], chosen(models[1], ids[:-1])[cut:])
    else:
        cache = models[0](torch.tensor([ids[:cut]]), use_cache=True).past_key_values
        np.testing.assert_array_equal(routes[cut:], chosen(models[1], ids[cut:-1], cache))


async def test_a_call_and_its_sample_carry_them(folders: list[Path]) -> None:
    async with running_engine(folders[0], **ON) as engine:
        prompt = np.array(random_prompt(20), np.int32)
        generation = await engine.client.generate(prompt, SamplingParams(max_tokens=5, ignore_eos=True))
    llm = TrainableLLM(model_name="m", tokenizer=build_tokenizer(), collect_logprobs=True)
    call = _call(llm, Prompt(token_ids=prompt.tolist()), generation)
    text = make_training_text(llm, call)
    assert text.routed_experts is not None and text.routed_experts.shape == (24, 4, 2)
    assert "routed_experts" not in call.model_dump()  # nobody reads a megabyte of them


async def test_an_engine_that_was_not_asked_says_nothing(folders: list[Path]) -> None:
    async with running_engine(folders[0]) as engine:
        (choice,) = await asked(engine, random_prompt(9), max_tokens=2)
    assert "routed_experts" not in choice


def test_a_dense_model_has_none_to_say(tied_model: Path) -> None:
    with pytest.raises(UnsupportedModel, match="--enable-return-routed-experts: Qwen3ForCausalLM has no exp"):
        PackedModel(EngineSettings(model=tied_model, **ON))


def body(array: np.ndarray | None, data: bytes = b"") -> bytes:
    """An answer of two tokens, as vLLM writes it."""
    file = io.BytesIO()
    if array is not None:
        np.save(file, array)
    content = [{"token": f"token_id:{t}", "token_id": t, "logprob": -1.0} for t in (5, 6)]
    choice = {"token_ids": [5, 6], "finish_reason": "stop", "logprobs": {"content": content}}
    choice["routed_experts"] = base64.b64encode(data or file.getvalue()).decode()
    return msgspec.json.encode({"choices": [choice]})


def test_an_answer_is_read_as_vllm_writes_it() -> None:
    prompt, routes = np.array([1, 2, 3], np.int32), np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    found = read_generation(body(routes), prompt, 0).routed_experts
    assert found is not None and found.dtype == np.uint8
    np.testing.assert_array_equal(found, routes)
    wide = read_generation(body(routes.astype(np.uint16) + 300), prompt, 0).routed_experts
    assert wide is not None and wide.max() == 315


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (body(np.zeros((6, 2, 2), np.uint8)), "expected uint8 or uint16 of at most 5 tokens"),
        (body(np.zeros((4, 2), np.uint8)), r"shape \(4, 2\)"),
        (body(np.zeros((4, 2, 2), np.float32)), "float32"),
        (body(None, b"not an array"), "cannot be read"),
        (body(np.array([{}], object)), "cannot be read"),
    ],
)
def test_a_record_that_cannot_be_one_is_refused(wrong: bytes, reason: str) -> None:
    with pytest.raises(InvalidAnswer, match=reason):
        read_generation(wrong, np.array([1, 2, 3], np.int32), 0)
