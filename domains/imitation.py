"""A right answer as a text to imitate, for the baselines of a domain that train without sampling.

Called by rollouts whose run has `finetune.rl.policy_loss=sft`.
"""

from collections.abc import Iterator

import numpy as np

from pipelinerl.base.tokenizing import decode, encode
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText


def text_to_imitate(llm: TrainableLLM, prompt: Prompt, answer: str) -> TrainingText:
    """The prompt as the actor sends it, with `answer` and the end of a message as its completion.

    Its log-probabilities are 0: nobody sampled it, and that loss does not read them. The reward is 1.
    """
    tokenizer = llm.load_tokenizer()
    asked = llm.prompt_ids(prompt)
    output = np.append(encode(tokenizer, answer), np.int32(tokenizer.eos_token_id))
    output_text = decode(tokenizer, output, skip_special=False)
    return TrainingText(
        text=decode(tokenizer, asked, skip_special=False) + output_text,
        n_predicted=len(output_text),
        reward=1.0,
        logprobs=np.zeros(len(output), np.float32),
        input_ids=np.concatenate([asked, output]),
        labels=np.concatenate([np.full(len(asked), MASKED_TOKEN_ID, np.int32), output]),
        finished=True,
        finish_reason="stop",
        prompt_tokens=len(asked),
        output_tokens=len(output),
    )


def loss_problems(reward: str, imitates: bool, policy_loss: str) -> Iterator[str]:
    """One line where a `reward` (key and value) that imitates lacks `policy_loss=sft`, or another has it.

    Texts that nobody sampled have no advantage and no log-probabilities: only that loss reads neither.
    """
    if imitates != (policy_loss == "sft"):
        yield (
            f"finetune.rl.policy_loss={policy_loss}: {reward} and policy_loss=sft belong together; set both "
            "or neither"
        )
