"""Clients of vLLM's token routes, unchanged, against the embedded engine and a recorded session."""

import importlib.util
import os
from typing import Any

import openai
import pytest

from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from tests.support.engine_harness import RunningEngine
from tests.support.text_model import byte_tokenizer

SAY: list[Any] = [{"role": "user", "content": "Say something."}]


def as_renderers_sends(model: str, ids: list[int]) -> dict[str, Any]:
    """What version 0.1.12 of the package `renderers` posts to `/inference/v1/generate`."""
    sampling = {"max_tokens": 6, "stop_token_ids": [0], "logprobs": 1, "skip_special_tokens": False}
    return {"model": model, "token_ids": ids, "sampling_params": sampling, "cache_salt": "7", "priority": 0}


def as_trl_sends(model: str, ids: list[int]) -> dict[str, Any]:
    """What the rollout worker of TRL's asynchronous GRPO posts to `/v1/completions`."""
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "n": 1}
    asked = {"return_token_ids": True, "logprobs": 0, "seed": 2**62 + 1}
    return {"model": model, "prompt": ids, "max_tokens": 6, **plain, **asked}


async def test_requests_of_renderers_and_of_trl_are_taken_as_they_are(
    engine: RunningEngine, llm: TrainableLLM
) -> None:
    llm.parameters |= {"temperature": 1.0}
    async with recorder.session(llm, override=True) as session:
        for url in (engine.url, session.base_url.removesuffix("/v1")):
            body = as_renderers_sends(llm.model_name, [70, 71])
            async with engine.session.post(f"{url}/inference/v1/generate", json=body) as answer:
                (choice,) = (await answer.json())["choices"]
            entries = choice["logprobs"]["content"]
            assert [one["token"] for one in entries] == [f"token_id:{one}" for one in choice["token_ids"]]
            assert all(-9999.0 < one["logprob"] <= 0 for one in entries)
            body = as_trl_sends(llm.model_name, [70, 71])
            async with engine.session.post(f"{url}/v1/completions", json=body) as answer:
                (choice,) = (await answer.json())["choices"]
            assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) > 0
    assert [text.metadata.get("overridden") for text in session.texts()] == [None, {"seed": 2**62 + 1}]


async def test_a_turn_that_goes_on_from_the_last_one_is_taken(engine: RunningEngine) -> None:
    # verifiers says from where it wants the experts of a prompt, whether or not there are experts.
    body = as_renderers_sends("model", [70, 71])
    body["sampling_params"]["routed_experts_prompt_start"] = 1
    assert (await engine.post("/inference/v1/generate", body))["choices"][0]["token_ids"]


async def test_a_priority_that_would_be_ignored_is_refused(engine: RunningEngine) -> None:
    body = {**as_renderers_sends("model", [70]), "priority": 1}
    refused = await engine.post("/inference/v1/generate", body, expect=400)
    assert refused["error"]["message"] == "priority 1 is not supported; send 0 or leave it out"


@pytest.mark.skipif(importlib.util.find_spec("renderers") is None, reason="pip install renderers")
async def test_the_package_renderers_works_unchanged(engine: RunningEngine, llm: TrainableLLM) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from renderers import DefaultRendererConfig, create_renderer
    from renderers.client import generate

    renderer = create_renderer(byte_tokenizer(), DefaultRendererConfig())
    async with recorder.session(llm) as session:
        for base_url, model in ((f"{engine.url}/v1", "model"), (session.base_url, llm.model_name)):
            async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                answer = await generate(
                    client=client,
                    renderer=renderer,
                    messages=SAY,
                    model=model,
                    sampling_params={"max_tokens": 6},
                )
            assert len(answer["completion_ids"]) == len(answer["completion_logprobs"]) > 0
    (call,) = session.calls
    assert answer["completion_ids"] == call.output_token_ids.tolist()
    assert answer["prompt_ids"] == call.prompt_token_ids.tolist()
