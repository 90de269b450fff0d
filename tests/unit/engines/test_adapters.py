"""Adapters that travel alone: the same weights as a merged version, added to those of the engine's start."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

pytest.importorskip("peft")

from pipelinerl.config import Job
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.wire import permanent_words
from pipelinerl.finetune.broadcast import EngineBroadcaster
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.lora import adapter_tensors, add_adapters
from pipelinerl.modeling.model import distinct_parameters, prepare_model
from pipelinerl.weights.parity import check_loaded
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.builders import trainer_config
from tests.support.engine_harness import (
    EOS,
    VOCAB,
    RunningEngine,
    build_llama,
    build_model,
    full_logprobs,
    random_prompt,
    reference,
    running_engine,
    until,
)
from tests.support.training import unheard

LORA = LoraConfig(enabled=True, r=4, alpha=6.0)
INIT: dict[str, Any] = {"init_info": {}}
PAUSE = "/pause?mode=keep&clear_cache=false"


def build_gpt2(folder: Path) -> Path:
    """Its layers keep their weights transposed."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024}
    ids = {"vocab_size": VOCAB, "eos_token_id": EOS, "bos_token_id": None}
    GPT2LMHeadModel(GPT2Config(**shape, **ids, initializer_range=0.15)).save_pretrained(folder)
    return folder


MODELS = {
    "tied Qwen3": lambda folder: build_model(folder, tied=True),
    "untied Llama": lambda folder: build_llama(folder, tie_word_embeddings=False),
    "Llama with biases": lambda folder: build_llama(folder, attention_bias=True),
    "GPT-2": build_gpt2,
}


def trained(folder: Path, seed: int = 0, lora: LoraConfig = LORA) -> PreTrainedModel:
    """The trainer's model with random adapters, large enough to change every distribution."""
    model = prepare_model(reference(folder))
    add_adapters(model, lora)
    draw(model, seed)
    return model.eval()


def draw(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.normal_(0, 0.1, generator=generator)


def adapters(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(adapter_tensors(model, torch.Tensor.detach).items())


def alone(folder: Path, lora: LoraConfig = LORA) -> FileTransport:
    return FileTransport(folder, adapter_scale=lora.scale)


def in_use(engine: RunningEngine) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in engine.backend.model.module.named_parameters()}


@asynccontextmanager
async def publishing(url: str, transport: FileTransport) -> Any:
    """A publisher that has agreed on the transport with the engine."""
    publisher = Publisher([url], transport)
    try:
        await asyncio.to_thread(publisher.wait_ready, 100)
        yield publisher
    finally:
        publisher.close()


@pytest.mark.parametrize("kind", MODELS)
async def test_adapters_alone_are_the_weights_that_a_merged_version_brings(tmp_path: Path, kind: str) -> None:
    """Bit for bit, several times over: a version replaces the adapters of the one before."""
    folder, prompt = MODELS[kind](tmp_path / "model"), random_prompt(40)
    model = trained(folder)
    async with running_engine(folder) as engine, running_engine(folder) as other:
        untrained = await engine.client.prompt_logprobs(prompt)
        async with (
            publishing(engine.url, alone(tmp_path / "alone")) as publisher,
            publishing(other.url, FileTransport(tmp_path / "merged")) as merging,
        ):
            for version in (1, 2, 3):
                draw(model, seed=version)
                report = await asyncio.to_thread(publisher.publish, version, adapters(model))
                merged = await asyncio.to_thread(merging.publish, version, distinct_parameters(model))
                await asyncio.to_thread(check_loaded, publisher)
                assert report.bytes < merged.bytes / 2
                expected = in_use(other)
                for name, parameter in in_use(engine).items():
                    assert torch.equal(parameter, expected[name]), name
                found = await engine.client.prompt_logprobs(prompt)
                assert np.abs(found - await other.client.prompt_logprobs(prompt)).max() <= 1e-5
                # What peft computes beside the weights, in another order.
                np.testing.assert_allclose(found, _through_adapters(model, prompt), atol=1e-4)
                assert np.abs(found - untrained).max() > 0.5
                one = await engine.client.generate(
                    random_prompt(5), SamplingParams(max_tokens=3, ignore_eos=True)
                )
                assert one.versions == [(version, 0, 3)]


@torch.no_grad()
def _through_adapters(model: PreTrainedModel, prompt: list[int]) -> np.ndarray:
    ids = torch.tensor([prompt])
    hidden = model.get_decoder()(
        input_ids=ids, position_ids=torch.arange(len(prompt))[None], use_cache=False
    ).last_hidden_state
    logprobs = model.get_output_embeddings()(hidden)[0, :-1].log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[:, 0].numpy()


async def test_a_layer_that_has_no_adapter_any_more_has_its_first_weights(
    llama_model: Path, tmp_path: Path
) -> None:
    """Also where its weights share memory with those of others, as queries and keys do."""
    few = LoraConfig(enabled=True, r=2, alpha=6.0, target_modules=["q_proj"])
    prompt = random_prompt(40)
    transports = alone(tmp_path / "all"), alone(tmp_path / "few", few)
    models = trained(llama_model), trained(llama_model, seed=1, lora=few)
    async with running_engine(llama_model) as engine:
        assert engine.backend.model.forward_name == "FusedForward"
        await engine.post("/init_weight_transfer_engine", INIT)
        for version, transport, model in zip((1, 2), transports, models, strict=True):
            await engine.update(transport.stage(version, adapters(model)).info)
            found = await engine.client.prompt_logprobs(prompt)
            plain = reference(llama_model)
            plain.load_state_dict(dict(distinct_parameters(model)), strict=False)
            np.testing.assert_allclose(found, full_logprobs(plain, prompt), atol=2e-5)


async def test_a_bfloat16_engine_rounds_the_sum_once(tied_model: Path, tmp_path: Path) -> None:
    model = trained(tied_model).to(torch.bfloat16)
    async with running_engine(tied_model, dtype="bfloat16") as engine:
        await engine.post("/init_weight_transfer_engine", INIT)
        await engine.update(alone(tmp_path).stage(1, adapters(model)).info)
        found = in_use(engine)
    for name, expected in distinct_parameters(model):
        assert torch.equal(found[name], expected), name


async def test_requests_in_flight_go_on_with_the_adapters_of_the_update(
    tied_model: Path, tmp_path: Path
) -> None:
    model = trained(tied_model)
    async with (
        running_engine(tied_model) as engine,
        publishing(engine.url, alone(tmp_path)) as publisher,
    ):
        await asyncio.to_thread(publisher.publish, 1, adapters(model))
        parameters = SamplingParams(max_tokens=400, temperature=1.0, ignore_eos=True)
        asked = [
            asyncio.create_task(engine.client.generate(random_prompt(8, seed), parameters))
            for seed in range(4)
        ]
        await until(lambda: engine.server.engine.metrics.generation_tokens >= 40)
        draw(model, seed=9)
        await asyncio.to_thread(publisher.publish, 2, adapters(model))
        for one in await asyncio.gather(*asked):
            assert [version for version, _, _ in one.versions] == [1, 2]
            (_, start, middle), (_, again, end) = one.versions
            assert start == 0 < middle == again < end == len(one.token_ids) == 400


async def test_an_engine_that_was_started_again_gets_the_adapters_of_the_last_version(
    tied_model: Path, tmp_path: Path
) -> None:
    model, prompt = trained(tied_model), random_prompt(40)
    async with running_engine(tied_model) as engine:
        port = int(engine.url.rpartition(":")[2])
        publisher = Publisher([engine.url], alone(tmp_path))
        await asyncio.to_thread(publisher.wait_ready, 100)
        await asyncio.to_thread(publisher.publish, 5, adapters(model))
        expected = await engine.client.prompt_logprobs(prompt)
    async with running_engine(tied_model, port=port) as engine:
        assert await asyncio.to_thread(publisher.stale_engines) == [engine.url]
        assert np.abs(await engine.client.prompt_logprobs(prompt) - expected).max() > 0.5
        report = await asyncio.to_thread(publisher.publish, 5, adapters(model))
        assert report.joined == [engine.url]
        await asyncio.to_thread(check_loaded, publisher)
        np.testing.assert_array_equal(await engine.client.prompt_logprobs(prompt), expected)
        assert await asyncio.to_thread(publisher.stale_engines) == []
    publisher.close()


REFUSED = {
    "half": "q_proj.lora_B.weight is half of no adapter",
    "layer": "adapters of model.layers.7.mlp.up_proj.weight, which is not in the model",
    "shape": "has adapters torch.float32 (64, 4) and torch.float32 (4, 63)",
    "rank": "has adapters torch.float32 (64, 4) and torch.float32 (3, 64)",
    "type": "has adapters torch.bfloat16",
    "whole": "model.embed_tokens.weight is half of no adapter",
}


def changed(change: str, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tensors = dict(adapters(model))
    first = "base_model.model.model.layers.0.self_attn.q_proj"
    if change == "half":
        del tensors[f"{first}.lora_A.weight"]
    elif change == "layer":
        for name in [one for one in tensors if "layers.1.mlp.up_proj" in one]:
            tensors[name.replace("layers.1", "layers.7")] = tensors[name]
    elif change == "shape":
        tensors[f"{first}.lora_A.weight"] = torch.ones(4, 63)
    elif change == "rank":
        tensors[f"{first}.lora_A.weight"] = torch.ones(3, 64)
    elif change == "whole":
        tensors = dict(distinct_parameters(model))
    return tensors


async def test_adapters_of_another_model_are_refused_for_good_and_change_nothing(
    tied_model: Path, tmp_path: Path
) -> None:
    model, prompt = trained(tied_model), random_prompt(40)
    async with running_engine(tied_model) as engine:
        await engine.post("/init_weight_transfer_engine", INIT)
        await engine.update(alone(tmp_path / "good").stage(1, adapters(model)).info)
        expected = await engine.client.prompt_logprobs(prompt)
        for change, said in REFUSED.items():
            kind = torch.bfloat16 if change == "type" else None
            transport = FileTransport(tmp_path / change, kind, adapter_scale=LORA.scale)
            await engine.post(PAUSE)
            await engine.post("/start_weight_update")
            info = {"update_info": transport.stage(2, changed(change, model).items()).info}
            answer = await engine.post("/update_weights", info, expect=400)
            words = permanent_words(answer["error"]["message"])
            assert words is not None and said in words and "given one model (model_path)" in words
            await engine.post("/resume")
            np.testing.assert_array_equal(await engine.client.prompt_logprobs(prompt), expected)


async def test_after_whole_weights_an_engine_takes_no_adapters(tied_model: Path, tmp_path: Path) -> None:
    """It has not kept what they belong to. The other way round it may."""
    model = trained(tied_model)
    async with running_engine(tied_model) as engine:
        async with publishing(engine.url, alone(tmp_path / "alone")) as publisher:
            await asyncio.to_thread(publisher.publish, 1, adapters(model))
        async with publishing(engine.url, FileTransport(tmp_path / "merged")) as publisher:
            await asyncio.to_thread(publisher.publish, 2, distinct_parameters(model))
            await asyncio.to_thread(check_loaded, publisher)
        async with publishing(engine.url, alone(tmp_path / "alone")) as publisher:
            with pytest.raises(WeightUpdateError, match=r"sent whole weights before.*weights\.lora=merged"):
                await asyncio.to_thread(publisher.publish, 3, adapters(model))


async def test_adapters_that_were_not_sent_are_named(tied_model: Path, tmp_path: Path) -> None:
    model = trained(tied_model)
    async with (
        running_engine(tied_model) as engine,
        publishing(engine.url, alone(tmp_path)) as publisher,
    ):
        await asyncio.to_thread(publisher.publish, 1, adapters(model))
        name, kept = list(engine.backend.weights._adapters.items())[3]
        kept[0, 0] += 1e-6
        with pytest.raises(WeightUpdateError, match=f"not what was sent: {name} is"):
            await asyncio.to_thread(check_loaded, publisher)


@pytest.mark.parametrize("how", ["auto", "adapter", "merged"])
async def test_the_trainer_compares_engines_with_itself_through_its_adapters(
    llama_model: Path, tmp_path: Path, how: str
) -> None:
    async with running_engine(llama_model) as engine:
        jobs = [Job(kind="actor_llm", idx=0, name="actor_vllm_0", url=engine.url)]
        weights = {"transport": "file", "lora": how, "directory": str(tmp_path / "weights")}
        cfg = trainer_config(tmp_path, reference(llama_model), lora=LORA, jobs=jobs, weights=weights)
        learner = build_learner(cfg, Ranks(), llama_model)
        draw(learner.model, seed=0)
        made = EngineBroadcaster(learner, cfg)
        try:
            await asyncio.to_thread(made.start)
            found = await asyncio.to_thread(made.publish, 1, unheard)
            assert found["weights/parity_max_abs"] <= 1e-4
            numbers = sum(
                p.numel() for n, p in learner.model.named_parameters() if is_adapter(n) != (how == "merged")
            )
            assert learner.elements == numbers and 0 < found["weights/bytes"] - 4 * numbers < 2**14
            # Other weights below the adapters than the trainer's: what is sent is right, its sum is not.
            loader = engine.backend.weights
            with torch.no_grad():
                for kept in loader._storages if how == "merged" else (loader._base or {}).values():
                    kept.view(torch.float32).mul_(1.5)
            if how == "merged":  # the next version puts everything right
                assert (await asyncio.to_thread(made.publish, 2, unheard))["weights/parity_max_abs"] <= 1e-4
            else:
                with pytest.raises(WeightUpdateError, match="log-probabilities differ"):
                    await asyncio.to_thread(made.publish, 2, unheard)
        finally:
            made.close()
