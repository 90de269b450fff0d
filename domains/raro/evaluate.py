"""Held-out questions: one sampled and one greedy answer, checked; nothing is trained or stored."""

from __future__ import annotations

from typing import Any

from domains.raro import countdown
from domains.raro.calls import Caller, together
from domains.raro.config import RaroSettings
from domains.raro.metrics import Tally
from domains.raro.normalize import normalize
from domains.raro.parser import extract_answer
from domains.raro.prompts import policy_prompt
from pipelinerl.rollouts import RolloutResult


def is_correct(problem: dict[str, Any], answer: str) -> bool:
    """Countdown: the exact verifier. Other tasks: equal to the expert's answer after normalising.

    Evaluation and `raro.reward=verifier` only; a training rollout with a critic never calls it.
    """
    if problem["task"] == "countdown":
        return countdown.verify(answer, problem["numbers"], problem["target"])
    return answer == normalize(problem["task"], problem["expert_answer"])


async def evaluate(caller: Caller, problem: dict[str, Any], settings: RaroSettings) -> RolloutResult:
    """Metrics of one held-out question; its texts are counted as metrics and not emitted."""
    prompt, tally = policy_prompt(settings.prompt_set, problem["question"]), Tally()
    right: dict[str, bool] = {}
    answered: dict[str, bool] = {}
    ways = {"sampled": caller, "greedy": caller.at(temperature=0.0)}
    said = await together([one.complete(prompt, settings.policy.max_tokens) for one in ways.values()])
    for name, completion in zip(ways, said):
        found = None if completion.truncated else extract_answer(completion.text)
        answered[name] = found is not None
        right[name] = found is not None and is_correct(problem, normalize(problem["task"], found))
        tally.add("policy_tokens", completion.call.output_length_tokens)
    tally.add("eval_accuracy", right["sampled"])
    tally.add("eval_accuracy_greedy", right["greedy"])
    tally.add("answerless_rate", not answered["sampled"])
    metrics = tally.metrics(
        reward=float(right["sampled"]),
        success=right["sampled"],
        no_error=answered["sampled"],
        no_answer=not answered["sampled"],
    )
    return RolloutResult(training_texts=[], metrics=metrics)
