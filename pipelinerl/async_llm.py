"""One call to an engine from rollout code, and the `TrainingText`s made of calls.

What is trained is what the engine sampled: ids, log-probabilities and weight versions are taken from its
answer; text is for people.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiohttp
import numpy as np

from pipelinerl.base.foreign_calls import left_in_text
from pipelinerl.base.logs import REMARK
from pipelinerl.base.thoughts import OPEN, answer_part
from pipelinerl.base.tokenizing import decode, with_tags
from pipelinerl.engines.answers import InvalidAnswer, LiveAnswer
from pipelinerl.engines.client import (
    AbortedCompletion,
    EngineClient,
    EngineUnavailable,
    Generation,
    SamplingParams,
)
from pipelinerl.engines.llm_call import LLMCall, LLMOutput, Prompt, TokenLogprobs
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.openai.text import REPLACEMENT, OutputText
from pipelinerl.rollouts import MASKED_TOKEN_ID, ROLLOUT_ORIGIN, TrainingText

log = logging.getLogger(__name__)

ABORTS_BEFORE_GIVING_UP = 2
_UNREAD_CALLS_SAID: set[str] = set()
_RESHAPED_SAID: set[str] = set()
_ANOTHER_PROMPT_SAID: set[str] = set()
T = TypeVar("T")


class RetryableAbortedCompletionError(TimeoutError):
    """The engine aborted the answer, or it was empty, twice. The rollout may be tried again."""


async def llm_async_generate(
    llm: EngineLLM,
    prompt: Prompt,
    session: aiohttp.ClientSession,
    max_tokens_override: int | None = None,
    live: LiveAnswer | None = None,
) -> LLMCall:
    """Ask the engine behind `llm` to continue `prompt`; the template is rendered once, here.

    `max_tokens_override` replaces `llm.parameters["max_tokens"]` for this call. Raises ValueError for an
    empty prompt or one that fills the context, `RetryableAbortedCompletionError` after two aborted or empty
    answers, EngineRequestError for what the engine refuses, EngineUnavailable when no engine answers.

    Messages with tools or a response format go to the engine's chat route, which knows the model's notation
    of tool calls; `output.tool_calls` are the calls. A response format changes the distribution that is
    sampled from, which a trainer does not repeat: use it for answers that are not trained.

    `live` gets the tokens as they are sampled, from the token route alone. An answer of which it has some is
    not asked for again.
    """
    if not prompt:
        raise ValueError("the prompt has neither messages nor token_ids")
    if prompt.response_format is not None and prompt.token_ids:
        raise ValueError("Prompt.response_format needs messages; this prompt has token_ids")
    ids = llm.prompt_ids(prompt)
    sampling = llm.sampling(len(ids), max_tokens_override)
    chat = None
    if not prompt.token_ids and (prompt.tools or prompt.response_format is not None):
        chat = llm.chat_fields(prompt, sampling)
    for attempt in range(ABORTS_BEFORE_GIVING_UP):
        try:
            generation = await _ask(llm, ids, sampling, session, chat, live)
            break
        except AbortedCompletion as error:
            if attempt + 1 == ABORTS_BEFORE_GIVING_UP or (live is not None and live.begun):
                raise RetryableAbortedCompletionError(
                    f"{attempt + 1} aborted or empty answers: {error}"
                ) from error
    llm.count_call(len(ids), len(generation.token_ids))
    call = _call(llm, prompt, generation)
    if reshaped := llm.reshaped(sampling):
        call.llm_info["reshaped"] = reshaped
    if prompt.tools and not call.output.tool_calls:
        _remark_unread_call(llm, generation.token_ids)
    return call


def _remark_unread_call(llm: EngineLLM, ids: np.ndarray) -> None:
    """Say, once a notation, that an engine left what looks like a call in the text.

    By the ids, since the marks of many families are special tokens, which the text leaves out.
    """
    mark = left_in_text(answer_part(decode(llm.load_tokenizer(), ids, skip_special=False)))
    if mark is None or mark in _UNREAD_CALLS_SAID:
        return
    _UNREAD_CALLS_SAID.add(mark)
    log.warning(
        "an answer to a prompt with tools has %s, and the engine read no call: it stays text. The embedded "
        "engine reads well-formed calls as <tool_call>{...}</tool_call> or <function=...>, where the chat "
        "template has them; vLLM needs vllm_config.vllm_kwargs.enable-auto-tool-choice and its "
        "tool-call-parser for this model",
        mark,
        extra=REMARK,
    )


async def _ask(
    llm: EngineLLM,
    ids: np.ndarray,
    sampling: SamplingParams,
    session: aiohttp.ClientSession,
    chat: dict[str, Any] | None,
    live: LiveAnswer | None,
) -> Generation:
    """Within a run the fleet retries elsewhere; outside, the engine is tried `max_retries` times more.

    `chat`: fields of a request to the chat route instead of ids and sampling.
    """
    if llm.fleet is not None and chat is not None:
        return await llm.fleet.chat(chat, prefer=llm.get_base_url())
    if llm.fleet is not None:
        return await llm.fleet.generate(ids, sampling, prefer=llm.get_base_url(), live=live)
    client = EngineClient(llm.get_base_url(), session)
    return await llm.retried(
        lambda: client.generate(ids, sampling, live=live) if chat is None else client.chat(chat),
        lambda: live is None or not live.begun,
    )


def cut_call(llm: EngineLLM, prompt: Prompt, live: LiveAnswer) -> LLMCall:
    """The call of a request that was given up, with the tokens that it had got until then.

    Raises EngineUnavailable where they contradict themselves.
    """
    try:
        generation = live.cut()
    except InvalidAnswer as error:
        raise EngineUnavailable(live.engine, "invalid_answer", str(error)) from error
    llm.count_call(len(generation.prompt_ids), len(generation.token_ids))
    return _call(llm, prompt, generation)


def _call(llm: EngineLLM, prompt: Prompt, generation: Generation) -> LLMCall:
    text = ended_text(llm.load_tokenizer(), generation.token_ids, generation.stop_reason)
    output = LLMOutput(content=text)
    if generation.message is not None:
        output = LLMOutput.model_validate({**generation.message, "role": "assistant"})
    info = {
        **llm.get_info(),
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
        "engine": generation.engine,
        "exact_versions": generation.exact_versions,
        "latency_s": generation.latency_s,
    }
    return LLMCall(
        prompt=prompt,
        output=output,
        prompt_length_tokens=len(generation.prompt_ids),
        output_length_tokens=len(generation.token_ids),
        llm_info=info,
        logprobs=TokenLogprobs(generation.token_ids, generation.logprobs) if llm.collect_logprobs else [],
        prompt_token_ids=generation.prompt_ids,
        weight_versions=generation.versions,
        routed_experts=generation.routed_experts,
        tagged=_tagged(llm.load_tokenizer(), generation, output),
    ).answers(prompt)


def _tagged(tokenizer: Any, generation: Generation, output: LLMOutput) -> str | None:
    """`LLMCall.tagged`."""
    stop = generation.stop_reason
    text, cut = with_tags(
        tokenizer, generation.prompt_ids, generation.token_ids, lambda last: ended_text(tokenizer, last, stop)
    )
    if output.tool_calls:  # calls stand beside `content`, which is then only what was said with them
        text = None
    said = output.content or "" if text is None else text
    if isinstance(stop, str) and _closes(stop.strip(), said):
        text = said = said + stop
    return OPEN + said if cut else text


def _closes(stop: str, said: str) -> bool:
    """Whether a stop text ends what the answer has begun, as `</answer>`, `[END X]` and a fence do."""
    if stop in ("```", "~~~"):
        return said.count(stop) % 2 == 1
    for end, begin in (("</", "<"), ("[END ", "[BEGIN "), ("[/", "[")):
        if stop.startswith(end) and stop.endswith((">", "]")):
            return begin + stop.removeprefix(end)[:-1] in said
    return False


def ended_text(
    tokenizer: Any, ids: np.ndarray, stop: int | str | None, *, skip_special: bool = True, keep: bool = False
) -> str:
    """The text of sampled `ids` without the stop text or the stop id that ended it, as engines write it; the
    ids hold both, and with `keep` so does the text."""
    if isinstance(stop, int) and not keep and len(ids) and ids[-1] == stop:
        ids = ids[:-1]
    text = _text(tokenizer, ids, skip_special)
    if not isinstance(stop, str):
        return text
    # The last id completed it; earlier ones, below `min_tokens`, ended nothing.
    before = _text(tokenizer, ids[:-1], skip_special).rstrip(REPLACEMENT)
    at = text.find(stop, max(0, len(before) - len(stop) + 1))
    return text if at < 0 else text[: at + len(stop) if keep else at]


def _text(tokenizer: Any, ids: np.ndarray, skip_special: bool) -> str:
    text = decode(tokenizer, ids, skip_special)
    if REPLACEMENT not in text:
        return text
    # Beside a broken character, decoders with byte fallback take whole ones for broken too. Engines, which
    # decode token by token, do not, and a stream has sent them.
    output = OutputText(tokenizer.backend_tokenizer, SamplingFields(skip_special_tokens=skip_special))
    for token in ids.tolist():
        output.add(token, ends=False)
    return output.close()


def run_blocking(llm: EngineLLM, request: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
    """A request for code without a loop: on the run's loop if `llm` is bound to one.

    Raises RuntimeError on an event loop's own thread, which it would block.
    """
    if llm.runner is not None:
        answer: T = llm.runner(request)
        return answer

    async def alone() -> T:
        async with aiohttp.ClientSession() as session:
            return await request(session)

    return asyncio.run(alone())


def make_training_text(llm: EngineLLM, llm_call: LLMCall) -> TrainingText:
    """The call as a sample: ids the engine saw and sampled, prompt masked in the labels.

    A call that code of a domain made of an engine's answer has no ids of its prompt: they are rendered. So
    is a prompt that the code put in the place of the one that was asked.
    Raises ValueError without log-probabilities (`llm.collect_logprobs`), without a prompt, and for one that
    has other than its `prompt_length_tokens` when rendered; `RetryableAbortedCompletionError` for an aborted
    answer.
    """
    finish_reason = llm_call.llm_info.get("finish_reason")
    if finish_reason == "abort":
        raise RetryableAbortedCompletionError("the answer was aborted and is no sample")
    if not len(llm_call.logprobs):
        raise ValueError("the call has no log-probabilities; set collect_logprobs=True on the llm")
    sampled = TokenLogprobs.of(llm_call.logprobs)
    another = llm_call.prompt_is_another
    prompt_ids, output_ids = _prompt_ids(llm, llm_call, another), sampled.token_ids
    tokenizer = llm.load_tokenizer()
    output_text = decode(tokenizer, output_ids, skip_special=False)
    metadata: dict[str, Any] = {}
    if not llm_call.llm_info.get("exact_versions", True):
        metadata["exact_versions"] = False
    if (origin := ROLLOUT_ORIGIN.get()) is not None:
        if origin.training and (reshaped := llm_call.llm_info.get("reshaped")):
            _remark_reshaped(reshaped)
        if origin.training and another:
            _remark_another_prompt()
    made = TrainingText(
        text=decode(tokenizer, prompt_ids, skip_special=False) + output_text,
        n_predicted=len(output_text),
        logprobs=sampled.logprobs,
        input_ids=np.concatenate([prompt_ids, output_ids]),
        labels=np.concatenate([np.full(len(prompt_ids), MASKED_TOKEN_ID, np.int32), output_ids]),
        finished=_finished(llm, finish_reason, output_text),
        finish_reason=finish_reason,
        prompt_tokens=len(prompt_ids),
        output_tokens=len(output_ids),
        weight_versions=llm_call.weight_versions,
        metadata=metadata,
        routed_experts=None if another else llm_call.routed_experts,
    )
    if origin is not None:
        made.made_in = origin.group_id, origin.rollout_index
    return made


def _remark_reshaped(parameters: str) -> None:
    """Say, once in a process, that a policy trains on tokens of probabilities that the trainer does not know.

    The configuration refuses such parameters; a policy's copy of the model may have any.
    """
    if not _RESHAPED_SAID:
        _RESHAPED_SAID.add(parameters)
        log.warning(
            "the rollout policy samples with %s, and trains on these tokens: the trainer computes their "
            "probabilities with llm.parameters of the run, so that the importance ratio is not 1; sample "
            "what is trained with these",
            parameters,
            extra=REMARK,
        )


def _remark_another_prompt() -> None:
    """Say, once in a process, that an answer is trained behind a prompt that it was not sampled for."""
    if not _ANOTHER_PROMPT_SAID:
        _ANOTHER_PROMPT_SAID.add("said")
        log.warning(
            "the rollout policy changes the prompt of a call and trains the answer behind the new one: the "
            "engine's log-probabilities are those behind the prompt that was asked, so that the importance "
            "ratio is not 1",
            extra=REMARK,
        )


def _prompt_ids(llm: EngineLLM, call: LLMCall, another: bool) -> np.ndarray:
    """Ids of the prompt: the engine's, or rendered where it has none or the prompt is `another`."""
    if len(call.prompt_token_ids) and not another:
        return call.prompt_token_ids
    if not call.prompt:
        raise ValueError("the call has neither prompt_token_ids nor a prompt")
    ids = llm.prompt_ids(call.prompt)
    if not another and call.prompt_length_tokens not in (-1, len(ids)):
        raise ValueError(
            f"the prompt has {len(ids)} tokens by llm.chat_template_kwargs={llm.chat_template_kwargs}, and "
            f"the engine counted {call.prompt_length_tokens}; give the call the engine's prompt_token_ids"
        )
    return ids


make_training_text_with_tools = make_training_text
"""Upstream's name for calls with tools; the ids of any call are the engine's, with the tools in them."""


def _finished(llm: EngineLLM, finish_reason: str | None, output_text: str) -> bool:
    if finish_reason:
        return finish_reason != "length"
    eos_token = llm.load_tokenizer().eos_token
    return bool(eos_token) and output_text.endswith(str(eos_token))


def make_training_texts_from_llm_calls(
    llm: EngineLLM, llm_calls: Sequence[LLMCall], reward: float | None = None
) -> list[TrainingText]:
    """One text per call, in order; with `reward`, each has it."""
    texts = [make_training_text(llm, call) for call in llm_calls]
    if reward is not None:
        for text in texts:
            text.reward = reward
    return texts
