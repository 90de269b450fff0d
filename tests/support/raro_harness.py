"""A scripted model for both roles, behind the real rollout code; no engine and no network."""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from domains.raro.config import RaroSettings
from domains.raro.pairs import Pair
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN, VERDICTS
from domains.raro.replay import ReplayBuffer
from domains.raro.runtime import Runtime
from domains.raro.watch import Watch
from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from pipelinerl.llm import LLMCall, LLMOutput, Prompt, TokenLogprobs, TrainableLLM

TOKENIZER = train_tokenizer(
    ["solve 3 8 11 = 24 judge 1: 2: 8*(11-8)"], 300, [ANSWER_OPEN, ANSWER_CLOSE, *VERDICTS]
)
PROBLEM = {
    "id": "3-8-11=24",
    "question": "3 8 11 = 24",
    "expert_answer": "3*(11-8)*1",
    "task": "countdown",
    "split": "train",
    "dataset": "train",
    "domain": "raro",
    "numbers": [3, 8, 11],
    "target": 24,
}
RIGHT = "11-8=3,3*8=24;<answer>8*(11-8)</answer>"
Reply = str | tuple[str, str]
"""Text, or (text, finish reason)."""


@dataclass
class ScriptedModel:
    """Answers by role; a list is used up in order and its last entry repeats."""

    policy: list[Reply] = field(default_factory=lambda: [RIGHT])
    critic: list[Reply] | Callable[[str], Reply] = field(default_factory=lambda: list[Reply](["[Tie]"]))
    version: int = 0
    prompts: list[str] = field(default_factory=list)
    """Every prompt as text, in order."""
    parameters: list[dict[str, Any]] = field(default_factory=list)
    fail_with: Exception | None = None
    _used: dict[str, int] = field(default_factory=dict)

    def llm(self) -> TrainableLLM:
        return TrainableLLM(
            model_name="scripted",
            tokenizer=TOKENIZER,
            parameters={"temperature": 1.0},
            collect_logprobs=True,
        )

    async def generate(self, llm: TrainableLLM, prompt: Prompt, session: Any, max_tokens: int) -> LLMCall:
        await asyncio.sleep(0)
        ids = llm.prompt_ids(prompt)
        text = TOKENIZER.decode(ids.tolist(), skip_special_tokens=True)
        self.prompts.append(text)
        self.parameters.append(dict(llm.parameters))
        if self.fail_with is not None:
            raise self.fail_with
        reply = self._reply("critic" if text.startswith("judge") else "policy", text)
        said, finish = reply if isinstance(reply, tuple) else (reply, "stop")
        out = TOKENIZER.encode(said, add_special_tokens=False)
        out += [] if finish == "length" else [TOKENIZER.eos_token_id]
        return LLMCall(
            prompt=prompt,
            output=LLMOutput(content=TOKENIZER.decode(out, skip_special_tokens=True)),
            output_length_tokens=len(out),
            llm_info={"finish_reason": finish},
            logprobs=TokenLogprobs(np.array(out, np.int32), np.full(len(out), -0.5, np.float32)),
            prompt_token_ids=ids,
            weight_versions=[(self.version, 0, len(out))],
        )

    def _reply(self, role: str, text: str) -> Reply:
        script = self.policy if role == "policy" else self.critic
        if callable(script):
            return script(text)
        at = self._used.get(role, 0)
        self._used[role] = at + 1
        return script[min(at, len(script) - 1)]

    @property
    def critic_prompts(self) -> list[str]:
        return [text for text in self.prompts if text.startswith("judge")]


class LoggedBuffer(ReplayBuffer):
    """A buffer that keeps a log of what was done to it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.events = list[tuple[Any, ...]]()

    def watermark(self) -> int:
        self.events.append(("watermark", super().watermark()))
        return int(self.events[-1][1])

    def put(self, pair: Pair) -> bool:
        self.events.append(("put", pair.policy_answer))
        return super().put(pair)

    def sample(self, rng: random.Random, n: int, at_or_below: int) -> list[Pair]:
        drawn = super().sample(rng, n, at_or_below)
        self.events.append(("sample", at_or_below, [pair.seq for pair in drawn]))
        return drawn


def settings(**values: Any) -> RaroSettings:
    """Small groups and short prompts; `values` replaces keys, blocks as mappings."""
    base: dict[str, Any] = {
        "critic_group_size": 4,
        "prompt_set": "tiny",
        "max_answer_tokens": 24,
        "policy": {"max_tokens": 96},
        "critic": {"max_tokens": 80},
    }
    return RaroSettings.model_validate(base | values)


def runtime(path: Path, seed: int = 0, buffered: bool = True, **values: Any) -> Runtime:
    """A runtime with a buffer in `path`."""
    chosen = settings(**values)
    file = path / "replay.sqlite3"
    return Runtime(
        settings=chosen,
        buffer=LoggedBuffer(file, chosen.replay.capacity, chosen.replay.mode) if buffered else None,
        rng=random.Random(seed),
        critic_slots=asyncio.Semaphore(128),
        watch=Watch(path / "warnings.jsonl"),
    )


_numbers = itertools.count()


def pair(policy: str | None = None, **values: Any) -> Pair:
    """A pair with a policy answer of its own unless given."""
    fields: dict[str, Any] = {
        "question_id": "q",
        "question": "3 8 11 = 24",
        "expert_answer": "8*(11-8)",
        "policy_answer": f"{next(_numbers)}" if policy is None else policy,
        "task": "countdown",
        "model_version": 0,
        "created_at": 0.0,
    }
    return Pair(**(fields | values))
