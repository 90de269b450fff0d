"""Held-out questions: one sampled and one greedy answer, checked; nothing is trained or stored."""

from typing import Any

from domains.math.answers import BOXED
from domains.math.pool import VerifierPool
from domains.raro import countdown
from domains.raro.calls import Caller, together
from domains.raro.config import RaroSettings
from domains.raro.metrics import Tally
from domains.raro.normalize import normalize
from domains.raro.parser import extract_answer
from domains.raro.prompts import policy_prompt
from domains.short_answers import normalised
from pipelinerl.rollouts import RolloutResult


def verifiable(problem: dict[str, Any]) -> bool:
    """Whether `is_correct` can tell; not of poems, nor of written solutions without a result."""
    return problem["task"] in ("countdown", "text") or "result" in problem


async def is_correct(problem: dict[str, Any], answer: str, pool: VerifierPool, short: bool = False) -> bool:
    """Countdown: the exact verifier. Mathematics: math-verify compares the results, of a written solution the
    last one that it boxes. Other results: equal to the expert's after normalising, with `short` also by the
    normaliser for short answers. Written answers are never
    compared as texts. Raises ValueError for a problem that is not `verifiable`.

    Evaluation and `raro.reward=verifier` only; a training rollout with a critic never calls it.
    """
    task = problem["task"]
    if task == "countdown":
        return countdown.verify(answer, problem["numbers"], problem["target"])
    if "result" in problem:
        said = answer if task == "solution" else f"{BOXED}{{{answer}}}"
        return await pool.verify(said, problem["result"]) == "correct"
    if task != "text":
        raise ValueError(f"question {problem['id']}: answers of the task {task} cannot be compared")
    expert = normalize(task, problem["expert_answer"])
    return answer == expert or (short and normalised(answer) == normalised(expert))


async def evaluate(
    caller: Caller, problem: dict[str, Any], settings: RaroSettings, pool: VerifierPool
) -> RolloutResult:
    """Metrics of one held-out question; its texts are counted as metrics and not emitted.

    Where nothing can verify an answer there is no accuracy, and reward and success are 0.
    """
    tally, task = Tally(), problem["task"]
    prompt = policy_prompt(settings.prompt_set, task, problem["question"])
    ways = (caller, caller.at(temperature=0.0))
    said = await together([one.complete(prompt, settings.policy.max_tokens) for one in ways])
    found = [None if one.truncated else extract_answer(one.text) for one in said]
    known, right = verifiable(problem), [False, False]
    if known:
        right = [
            answer is not None
            and await is_correct(problem, normalize(task, answer), pool, settings.short_answers)
            for answer in found
        ]
    sampled, answered = right[0], found[0] is not None
    tally.add("policy_tokens", *(one.call.output_length_tokens for one in said))
    if known:
        tally.add("eval_accuracy", right[0])
        tally.add("eval_accuracy_greedy", right[1])
    tally.add("answerless_rate", not answered)
    metrics = tally.metrics(reward=float(sampled), success=sampled, no_error=answered, no_answer=not answered)
    return RolloutResult(training_texts=[], metrics=metrics)
