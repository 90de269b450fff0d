"""Held-out questions: one sampled and one greedy answer, checked; nothing is trained or stored."""

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
    ways = (caller, caller.at(temperature=0.0))
    said = await together([one.complete(prompt, settings.policy.max_tokens) for one in ways])
    found = [None if one.truncated else extract_answer(one.text) for one in said]
    sampled, greedy = (
        answer is not None and is_correct(problem, normalize(problem["task"], answer)) for answer in found
    )
    answered = found[0] is not None
    tally.add("policy_tokens", *(one.call.output_length_tokens for one in said))
    tally.add("eval_accuracy", sampled)
    tally.add("eval_accuracy_greedy", greedy)
    tally.add("answerless_rate", not answered)
    metrics = tally.metrics(reward=float(sampled), success=sampled, no_error=answered, no_answer=not answered)
    return RolloutResult(training_texts=[], metrics=metrics)
