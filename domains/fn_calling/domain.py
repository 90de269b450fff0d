"""What the core is told about the domain: checks before a run, and calls for a small model to imitate."""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from domains.fn_calling.dataset import DOMAIN, load_problems
from domains.fn_calling.problems import TOOLS, make
from domains.fn_calling.rollouts import FORM, messages_of, tools_text
from domains.loading import loading_problems
from domains.prompts import template_problems
from domains.split import is_held_out
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration
from pipelinerl.extras.bootstrap.formats import USER

LOADERS = ("fn_calling.load_problems", "fn_calling.dataset.load_problems")
PER_SEED = 200
CARELESS = "careless"
"""The phase of `bootstrap.phases` that leaves something to learn."""
MISTAKES = 0.5
REFUSAL = "None of the functions does that."
PIECES = (
    "You may call these functions:\n",
    FORM,
    '{"name": "',
    '", "description": "',
    '", "parameters": {"type": "dict", "properties": {"',
    '": {"type": "integer"}',
    '": {"type": "string"}',
    '}, "required": ["',
    '"]}}',
    '", "arguments": {"',
    "<tool_calls>[",
    "]</tool_calls>",
    REFUSAL,
)


def answer_of(row: dict[str, Any]) -> str:
    """The right answer to a generated row; what may be left out is."""
    calls = [
        {"name": name, "arguments": {key: some[0] for key, some in allowed.items() if "" not in some}}
        for one in row["ground_truth"]
        for name, allowed in one.items()
    ]
    return f"<tool_calls>{json.dumps(calls)}</tool_calls>" if calls else REFUSAL


def mistaken(rng: random.Random, row: dict[str, Any]) -> str:
    """A wrong answer: a call too few, the call of a function that does not help, or none where one does."""
    wanted = row["ground_truth"]
    if len(wanted) > 1:
        return answer_of(row | {"ground_truth": wanted[:1]})
    called = {name for one in wanted for name in one}
    others = [tool for tool in TOOLS if tool.name in {one["name"] for one in row["function"]} - called]
    if not others:
        return REFUSAL
    tool = rng.choice(others)
    return answer_of(row | {"ground_truth": [{tool.name: tool.allowed(tool.draw(rng))}]})


class FnCallingDomain(BaseDomain):
    """Checks before the start, and demonstrations for `python -m pipelinerl.bootstrap +domain=fn_calling`."""

    policy_keys = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")
    report_focus = ReportFocus(headline=("success", "partial_score", "reward", "no_answer", "no_error"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Functions, what was said before, and the question."""
        return messages_of(cfg, dict(problem)) if problem.get("domain") == DOMAIN else None

    def validate(self, cfg: DictConfig) -> list[str]:
        """The problems can be read or made, the prompt holds the question."""
        return [
            *template_problems(cfg),
            *loading_problems(cfg, LOADERS, load_problems, few=("count", "test_count")),
        ]

    def vocabulary(self) -> tuple[str, ...]:
        """What every prompt and answer has, so that a small model reads functions and little else."""
        return PIECES

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Answers to problems of training: right ones, or in the phase `careless` right and wrong ones."""
        params = cfg.dataset_loader_params
        rng, careless = random.Random(f"fn_calling demonstrations {seed}"), phase == CARELESS
        for index in range(PER_SEED):
            row = make(rng, params.categories[index % len(params.categories)])
            wrong = careless and rng.random() < MISTAKES
            said = mistaken(rng, row) if wrong else answer_of(row)
            key = json.dumps([row["question"], row["function"]], sort_keys=True)
            if not is_held_out(key, params.held_out):
                prompt = f"{tools_text(row['function'])}{USER}{row['question']}"
                yield Demonstration(row["category"], prompt, said, exact=not careless)
