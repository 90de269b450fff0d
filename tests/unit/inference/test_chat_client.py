"""The project's own client on the embedded engine's chat route: the same ids as by token ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_harness import running_engine
from text_model import build_text_model

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.inference.client import EngineRequestError
from pipelinerl.llm import Prompt, TrainableLLM

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


async def test_tools_are_rendered_alike_on_both_sides_and_formats_refused(tmp_path: Path) -> None:
    folder = build_text_model(tmp_path)
    async with running_engine(folder) as engine:
        llm = TrainableLLM(
            model_name=str(folder),
            base_url=engine.url,
            parameters={"max_tokens": 12, "seed": 5},
            collect_logprobs=True,
            context_size=512,
        )
        prompt = Prompt(messages=[{"role": "user", "content": "Say something."}], tools=[TOOL])
        chat = await llm_async_generate(llm, prompt, engine.session)
        rendered = llm.prompt_ids(prompt)
        assert chat.prompt_token_ids.tolist() == rendered.tolist()
        plain = await llm_async_generate(llm, Prompt(token_ids=rendered.tolist()), engine.session)
        assert chat.output_token_ids.tolist() == plain.output_token_ids.tolist()
        assert make_training_text(llm, chat).logprobs == pytest.approx(
            make_training_text(llm, plain).logprobs, abs=1e-6
        )
        formatted = prompt.model_copy(update={"response_format": {"type": "json_object"}})
        with pytest.raises(EngineRequestError, match="response_format 'json_object' is not supported"):
            await llm_async_generate(llm, formatted, engine.session)
