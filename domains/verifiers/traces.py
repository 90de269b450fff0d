"""An episode as training texts: what was sampled is the recorder's, whose turn it was is the trace's.

A trace has ids of its own for each message. They must be those that the engine saw and sampled; where they
are not, reward and text would belong to different calls.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipelinerl.dialogues import joined
from pipelinerl.rollouts import TrainingText

Recorded = dict[tuple[bytes, int], list[TrainingText]]


class TraceMismatch(ValueError):
    """A trace says that the model wrote something else than what was recorded."""


def texts_of(episode: Any, recorded: Sequence[TrainingText]) -> list[TrainingText]:
    """Texts of the seats that learn, one for each dialogue, with the reward and the name of their seat.

    Calls that no trace holds, and those of seats that do not learn, are left out. Raises TraceMismatch.
    """
    calls: Recorded = defaultdict(list)
    for text in recorded:
        calls[text.input_ids.tobytes(), text.prompt_tokens].append(text)
    found = []
    for trace in episode.traces:
        own = [_recorded(trace.agent.name, *place, calls) for place in sampled_places(trace)]
        if not trace.agent.trainable:
            continue
        for text in joined(own):
            text.reward = float(trace.reward)
            # Seats are compared with themselves in the other attempts, at the same place from the end.
            text.role = text.situation = trace.agent.name
            text.metadata |= {"stop_condition": trace.stop_condition, "trace": trace.id}
            scores = {name: one.score for name, one in trace.rewards.items() if one is not None}
            text.metadata |= {f"reward_{name}": float(score) for name, score in scores.items()}
            found.append(text)
    return found


def sampled_places(trace: Any) -> Iterator[tuple[np.ndarray, int]]:
    """Of each message that the model wrote: all ids up to its end, int32, and how many were the prompt."""
    for node in trace.nodes:
        if node.sampled:
            path = [node]
            while path[-1].parent is not None:
                path.append(trace.nodes[path[-1].parent])
            ids = [one for part in reversed(path) for one in part.token_ids]
            yield np.array(ids, np.int32), len(ids) - sum(node.mask)


def _recorded(seat: str, ids: np.ndarray, prompt: int, calls: Recorded) -> TrainingText:
    same = calls[ids.tobytes(), prompt]
    if not same:
        raise TraceMismatch(
            f"seat {seat}: a message of {len(ids) - prompt} tokens behind {prompt} is none that was recorded"
        )
    return same.pop(0)


def values_of(episode: Any) -> dict[str, list[float]]:
    """Scores and metrics of all seats by name, `reward_NAME` and `metric_NAME`, one value for each trace.

    Where several seats play, `SEAT_` stands before the name.
    """
    seats = {trace.agent.name for trace in episode.traces}
    values: dict[str, list[float]] = defaultdict(list)
    for trace in episode.traces:
        seat = f"{trace.agent.name}_" if len(seats) > 1 else ""
        named = {f"reward_{name}": one and one.score for name, one in trace.rewards.items()}
        named |= {f"metric_{name}": value for name, value in trace.metrics.items()}
        for name, value in named.items():
            if value is not None:
                values[seat + name].append(float(value))
    return dict(values)
