"""The arm `imitation` of `specs/distillation.yaml` imitates what another run's policy answered at its end.

The specification names both functions. Questions of the evaluation are the domain's, and are asked as there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.reasoning_gym.data import load_problems as load_questions
from domains.reasoning_gym.rollouts import ReasoningGymMetrics, generate_reasoning_gym_rollout
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult, TrainingText
from pipelinerl.streams import SingleStreamSpec, read_stream

LAST = 1 / 3
"""Of the run's weight versions: the policy that samples then is nearly the one that is saved."""
COLUMNS = ("input_ids", "labels", "finished", "finish_reason", "prompt_tokens", "output_tokens")


def load_problems(dataset_names: Sequence[str], answers_of: str, **params: Any) -> list[dict[str, Any]]:
    """For `train` the last answers of the run in the folder `answers_of`, right and wrong, as problems."""
    tests = [name for name in dataset_names if not name.startswith("train")]
    answers = _answers(Path(answers_of)) if len(tests) < len(dataset_names) else []
    return [*answers, *(load_questions(tests, **params) if tests else [])]


def _answers(run: Path) -> list[dict[str, Any]]:
    with read_stream(SingleStreamSpec(run, "actor")) as stream:
        records = [record for group in stream.read_available() for record in group]
    newest = max((_version(record) for record in records), default=0)
    kept = [record for record in records if _version(record) >= (1 - LAST) * newest]
    if not kept:
        raise ValueError(f"answers_of={run}: has no samples; give the folder of a run that has trained")
    return [
        {"id": index, "dataset": "train/answers", "answer": {name: record[name] for name in COLUMNS}}
        for index, record in enumerate(kept)
    ]


def _version(record: Mapping[str, Any]) -> int:
    return int(record["metadata"]["model_version"])


async def generate(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """A recorded answer as a text to imitate, or the domain's rollout for a question of the evaluation."""
    if "answer" not in problem:
        return await generate_reasoning_gym_rollout(cfg, llm, problem, session)
    answer = problem["answer"]
    # No log-probabilities: the loss does not read them, and another model sampled the text.
    logprobs = [0.0] * answer["output_tokens"]
    text = TrainingText(text="", n_predicted=0, reward=1.0, logprobs=logprobs, **answer)
    metrics = ReasoningGymMetrics(reward=1.0, success=True, no_error=True, no_answer=False, verify_s=0.0)
    return RolloutResult(training_texts=[text], metrics=metrics, dataset_name=problem["dataset"])
