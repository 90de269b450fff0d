"""Several turns with one model: `dialogue` asks them, `joined` makes one sample of those that only append.

For domains whose model calls tools or answers an environment, and for recorded sessions. A call continues
another when its prompt begins with the other's prompt and answer, token for token. Joined, each sampled token
is labelled once and computed once; what the program or the template put in between is masked.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import numpy as np

from pipelinerl.async_llm import llm_async_generate
from pipelinerl.engines.llm_call import LLMCall, Prompt
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText, VersionSpan

Message = dict[str, Any]


async def dialogue(
    llm: EngineLLM,
    prompt: Prompt,
    reply: Callable[[LLMCall], Awaitable[Sequence[Message] | None]],
    session: aiohttp.ClientSession,
    *,
    max_turns: int,
) -> list[LLMCall]:
    """Ask, go on with the messages that `reply` gives to each answer, and return all calls, at least one.

    It ends where `reply` gives none, behind an answer that was cut off, after `max_turns` answers, and where
    the next prompt would fill the context. Raises as `llm_async_generate`. Each prompt appends to the ids
    that were sampled; it is rendered anew with `prompt.tools`, whose calls the engine has to read, and where
    the template alters replies. `make_training_texts_from_llm_calls` makes samples, `joined` joins them.
    """
    calls: list[LLMCall] = []
    while True:
        call = await llm_async_generate(llm, prompt, session)
        calls.append(call)
        if call.llm_info.get("finish_reason") == "length" or len(calls) == max_turns:
            return calls
        if not (messages := await reply(call)):
            return calls
        prompt = _next(llm, call, list(messages))
        if len(llm.prompt_ids(prompt)) >= llm.context_size:
            return calls


def _next(llm: EngineLLM, call: LLMCall, messages: list[Message]) -> Prompt:
    if not call.prompt.tools:
        try:
            return llm.continue_prompt(call, messages)
        except ValueError:  # the template alters replies
            pass
    said: Message = {"role": "assistant", "content": call.output.content or ""}
    if call.output.tool_calls:
        said["tool_calls"] = [{"type": "function", **one.model_dump()} for one in call.output.tool_calls]
    return Prompt(messages=[*call.prompt.messages, said, *messages], tools=call.prompt.tools)


def joined(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Texts of single calls, in the order in which they were asked, with those that append made one.

    A text is appended to the longest one that it continues. Two that continue the same text stay apart, as
    does one whose tokens are of older weights than those before it: spans of a sample may not decrease.
    Raises ValueError for texts of unlike rewards, which one sample cannot have.
    """
    dialogues: list[list[TrainingText]] = []
    for text in texts:
        open_to = [one for one in dialogues if _continues(text, one[-1])]
        if open_to:
            max(open_to, key=lambda one: len(one[-1].input_ids)).append(text)
        else:
            dialogues.append([text])
    return [one[0] if len(one) == 1 else _join(one) for one in dialogues]


def _continues(text: TrainingText, earlier: TrainingText) -> bool:
    length = len(earlier.input_ids)
    if length > text.prompt_tokens or not np.array_equal(text.input_ids[:length], earlier.input_ids):
        return False
    return not (text.weight_versions and earlier.weight_versions) or (
        text.weight_versions[0][0] >= earlier.weight_versions[-1][0]
    )


def _join(dialogue: Sequence[TrainingText]) -> TrainingText:
    last = dialogue[-1]
    labels = np.full_like(last.input_ids, MASKED_TOKEN_ID)
    for text in dialogue:
        labels[text.prompt_tokens : len(text.input_ids)] = text.labels[text.prompt_tokens :]
    sampled = int(np.count_nonzero(labels != MASKED_TOKEN_ID))
    # A turn that was cut makes a cut dialogue, whatever came after it.
    cut = next((text for text in dialogue if not text.finished), last)
    metadata = {key: value for text in dialogue for key, value in text.metadata.items()}
    if len(rewards := {text.reward for text in dialogue}) > 1:
        raise ValueError(f"calls of rewards {sorted(rewards)} are no one sample; join first, reward then")
    return TrainingText(
        text=last.text,
        # From the first sampled token on, so that `prompt_text` is what the dialogue began with.
        reward=last.reward,
        n_predicted=len(last.text) - len(dialogue[0].prompt_text),
        logprobs=np.concatenate([text.logprobs for text in dialogue]),
        input_ids=last.input_ids,
        labels=labels,
        finished=cut.finished,
        finish_reason=cut.finish_reason,
        prompt_tokens=len(labels) - sampled,
        output_tokens=sampled,
        weight_versions=_spans(dialogue),
        routed_experts=_routes(dialogue),
        metadata=metadata,
    )


def _routes(dialogue: Sequence[TrainingText]) -> np.ndarray | None:
    """Experts of each token in the call that computed it first, up to a call that does not say them."""
    parts: list[np.ndarray] = []
    known = 0
    for text in dialogue:
        if text.routed_experts is None:
            break
        parts.append(text.routed_experts[known:])
        known = max(known, len(text.routed_experts))
    return np.concatenate(parts) if parts else None


def _spans(dialogue: Sequence[TrainingText]) -> list[VersionSpan]:
    """Over the sampled tokens of all calls, with neighbours of one version made one."""
    spans: list[VersionSpan] = []
    offset = 0
    for text in dialogue:
        for version, start, stop in text.weight_versions:
            if spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1], offset + stop)
            else:
                spans.append((version, offset + start, offset + stop))
        offset += text.output_tokens
    return spans
