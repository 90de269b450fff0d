"""Supervised texts from expert answers: the baseline that never samples (`raro.reward=expert`)."""

from typing import Any

from domains.imitation import text_to_imitate
from domains.raro.config import RaroSettings
from domains.raro.metrics import Tally
from domains.raro.normalize import normalize
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN
from domains.raro.prompts import policy_prompt
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult


def expert_rollout(llm: TrainableLLM, problem: dict[str, Any], settings: RaroSettings) -> RolloutResult:
    """The question with the expert's answer as one text to imitate (`finetune.rl.policy_loss=sft`)."""
    prompt = policy_prompt(settings.prompt_set, problem["task"], problem["question"])
    answer = normalize(problem["task"], problem["expert_answer"])
    text = text_to_imitate(llm, prompt, f"{ANSWER_OPEN}{answer}{ANSWER_CLOSE}")
    text.role, text.situation = "policy", "raro:policy"
    tally = Tally()
    tally.add("policy_tokens", text.output_tokens)
    metrics = tally.metrics(reward=1.0, success=True, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics)
