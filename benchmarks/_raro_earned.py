"""What right and wrong answers earned in a run of Countdown, from its records: training asks no verifier."""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from domains.raro.countdown import verify
from pipelinerl.extras.viewer.source import RunSource, evaluation_of

PARTS = 10
_QUESTION = re.compile(r"((?:\d+ )+)= (\d+)")
_ANSWER = re.compile(r"<answer>([^<]*)</answer>")


def earned(out: Path, texts: int) -> dict[str, list[float | None]]:
    """By tenths of a run of `texts` trained texts, the share of right answers and the mean reward of right
    and of wrong ones; None where there was none. Empty for a run that has kept no answers.

    An answer counts in the tenth in which its model version falls. One that is masked is left out.
    """
    rewards = defaultdict[tuple[int, bool], list[float]](list)
    for group in RunSource(out).groups():
        for text in group:
            if text["role"] != "policy" or text["masked"] or evaluation_of(text["metadata"]["group_id"]):
                continue
            asked, answers = _QUESTION.search(text["text"]), _ANSWER.findall(text["text"])
            if asked is None:
                raise ValueError(f"{out}: {text['text'][:60]!r} holds no question of Countdown")
            right = bool(answers) and verify(answers[-1], [*map(int, asked[1].split())], int(asked[2]))
            part = min(PARTS - 1, int(text["metadata"]["model_version"]) * PARTS // texts)
            rewards[part, right].append(float(text["reward"]))
    if not rewards:
        return {}

    def mean(values: list[float]) -> float | None:
        return round(float(np.mean(values)), 4) if values else None

    parts = [(rewards[part, True], rewards[part, False]) for part in range(PARTS)]
    return {
        "right": [mean([1.0] * len(right) + [0.0] * len(wrong)) for right, wrong in parts],
        "reward of right": [mean(right) for right, _ in parts],
        "reward of wrong": [mean(wrong) for _, wrong in parts],
    }
