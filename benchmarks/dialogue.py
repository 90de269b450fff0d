"""Tokenising a dialogue of 30 turns by appending ids, beside rendering and tokenising it anew for each turn.

    python -m benchmarks.dialogue [--turns 30]

Both ways start from what an engine sampled, as ids that are not always the ones its text would be cut into.
The time is what a client spends on all prompts of the dialogue; drift counts the turns whose sampled ids are
no longer in the last prompt as they were sampled.
"""

import random
import sys
import time
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerFast

from benchmarks._figures import Figure, at_most, command_line, report, seconds_of
from pipelinerl.base.tokenizing import decode, encode
from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from pipelinerl.llm import LLMCall, LLMOutput, Prompt, TokenLogprobs, TrainableLLM

WORDS_PER_MESSAGE = 60
TEMPLATE = """{%- set last = namespace(question=0) %}
{%- for m in messages %}
{%- if m['role'] == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- set content = m['content'] %}
{%- if m['role'] == 'assistant' and loop.index0 < last.question and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|start|>' + m['role'] + '\\n' + content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"""


def make_tokenizer(rng: random.Random) -> tuple[PreTrainedTokenizerFast, list[str]]:
    """A byte-level BPE tokenizer of 3,000 entries with a ChatML-like template, and the words it knows."""
    syllables = ["ba", "con", "der", "est", "fi", "gro", "hul", "im", "jo", "ka", "lor", "men", "nus", "os"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(2000)]
    texts = [" ".join(rng.choices(words, k=200)) for _ in range(200)]
    tokenizer = train_tokenizer(texts, 3000, ("<|start|>",))
    tokenizer.chat_template = TEMPLATE
    return tokenizer, words


def message(rng: random.Random, words: list[str]) -> str:
    return " ".join(rng.choices(words, k=WORDS_PER_MESSAGE))


def sampled_ids(tokenizer: PreTrainedTokenizerFast, text: str, end: int) -> np.ndarray:
    """Ids as a model may sample them: here the text's halves are cut into tokens separately."""
    middle = len(text) // 2
    halves = [encode(tokenizer, text[:middle]), encode(tokenizer, text[middle:])]
    return np.concatenate([*halves, [end]]).astype(np.int32)


def appended(llm: TrainableLLM, questions: list[str], replies: list[np.ndarray]) -> np.ndarray:
    """The last prompt's ids; every prompt continues the ids of the call before."""
    prompt = Prompt.from_user_message(questions[0])
    for question, reply in zip(questions[1:], replies, strict=True):
        ids = llm.prompt_ids(prompt)
        content = decode(llm.load_tokenizer(), reply, skip_special=True)
        call = LLMCall(
            prompt=prompt,
            output=LLMOutput(content=content),
            prompt_token_ids=ids,
            logprobs=TokenLogprobs(reply, np.zeros(len(reply), np.float32)),
        )
        prompt = llm.continue_prompt(call, [{"role": "user", "content": question}])
    return llm.prompt_ids(prompt)


def templated(llm: TrainableLLM, questions: list[str], replies: list[np.ndarray]) -> np.ndarray:
    """The last prompt's ids; every prompt is rendered and tokenised from its messages."""
    messages = [{"role": "user", "content": questions[0]}]
    for question, reply in zip(questions[1:], replies, strict=True):
        llm.prompt_ids(Prompt(messages=messages))
        content = decode(llm.load_tokenizer(), reply, skip_special=True)
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": question}]
    return llm.prompt_ids(Prompt(messages=messages))


def drift(prompt: np.ndarray, replies: list[np.ndarray]) -> int:
    """Replies that are not in the prompt, one after the other, as they were sampled."""
    text, at, lost = prompt.astype("<i4").tobytes(), 0, 0
    for reply in replies:
        found = text.find(reply.astype("<i4").tobytes(), at)
        lost += found < 0
        at = max(at, found)
    return lost


def main() -> int:
    options = command_line(__doc__)
    rng = random.Random(0)
    tokenizer, words = make_tokenizer(rng)
    llm = TrainableLLM(tokenizer=tokenizer)
    end = int(tokenizer.convert_tokens_to_ids("<|end|>"))
    questions = [message(rng, words) for _ in range(options.turns + 1)]
    replies = [sampled_ids(tokenizer, message(rng, words), end) for _ in range(options.turns)]
    last, naive = appended(llm, questions, replies), templated(llm, questions, replies)
    ours_ms, naive_ms = (
        1e3 * min(seconds_of(partial(way, llm, questions, replies), 9, time.process_time))
        for way in (appended, templated)
    )
    figures = [
        at_most("drift", drift(last, replies), "turns", 0),
        at_most("CPU time of all turns, best of 9", ours_ms, "ms", 15.0),
        Figure("re-templating: drift", drift(naive, replies), "turns"),
        Figure("re-templating: length of the last prompt", len(naive) - len(last), "tokens"),
        Figure("re-templating: CPU time of all turns, best of 9", naive_ms, "ms"),
        Figure("ratio of time", naive_ms / ours_ms, "x"),
    ]
    report("dialogue", figures, vars(options) | {"tokens": len(last)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
