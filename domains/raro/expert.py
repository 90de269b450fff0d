"""Supervised texts from expert answers: the baseline that never samples (`raro.reward=expert`)."""

from typing import Any

import numpy as np

from domains.raro.config import RaroSettings
from domains.raro.metrics import Tally
from domains.raro.normalize import normalize
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN
from domains.raro.prompts import policy_prompt
from pipelinerl.base.tokenizing import decode, encode
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import MASKED_TOKEN_ID, RolloutResult, TrainingText


def expert_rollout(llm: TrainableLLM, problem: dict[str, Any], settings: RaroSettings) -> RolloutResult:
    """The question with the expert's answer as one text to imitate (`finetune.rl.policy_loss=sft`).

    Its log-probabilities are 0: nobody sampled it, and that loss does not read them.
    """
    tokenizer = llm.load_tokenizer()
    prompt = llm.prompt_ids(policy_prompt(settings.prompt_set, problem["task"], problem["question"]))
    answer = normalize(problem["task"], problem["expert_answer"])
    spoken = encode(tokenizer, f"{ANSWER_OPEN}{answer}{ANSWER_CLOSE}")
    output = np.append(spoken, np.int32(tokenizer.eos_token_id))
    output_text = decode(tokenizer, output, skip_special=False)
    text = TrainingText(
        text=decode(tokenizer, prompt, skip_special=False) + output_text,
        n_predicted=len(output_text),
        reward=1.0,
        logprobs=np.zeros(len(output), np.float32),
        input_ids=np.concatenate([prompt, output]),
        labels=np.concatenate([np.full(len(prompt), MASKED_TOKEN_ID, np.int32), output]),
        finished=True,
        finish_reason="stop",
        prompt_tokens=len(prompt),
        output_tokens=len(output),
        role="policy",
        situation="raro:policy",
    )
    tally = Tally()
    tally.add("policy_tokens", len(output))
    metrics = tally.metrics(reward=1.0, success=True, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics)
