"""The situation of a training text: typed fields, metadata keys of other writers, and their agreement.

A situation labels the kind of decision and the information it was taken with. Texts of one group are
compared only within a situation: at equal positions counted from the end (`position="end"`), or all
together (`"pool"`, written as index 0 of a segment of length 1). Other programs put the same facts into
`metadata`; readers accept either, writers emit both, and a contradiction is an error.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pipelinerl.rollouts import TrainingText

SITUATION_KEY = "step_advantage_group"
INDEX_KEY = "step_advantage_local_index"
LENGTH_KEY = "step_advantage_segment_length"
PADDING_VALUE_KEY = "step_advantage_padding_value"
PADDING_REWARD_KEY = "padding_reward"

_TYPED = {
    "situation": SITUATION_KEY,
    "padding_value": PADDING_VALUE_KEY,
    "padding_reward": PADDING_REWARD_KEY,
}


def absent(value: Any) -> bool:
    """None and NaN both mean absent."""
    return value is None or value != value


def resolve(name: str, typed: Any, key: str, metadata: dict[str, Any], text: str) -> Any:
    """The value of a field that may be given as a typed field, as a metadata key, or as both.

    Raises ValueError naming `text` if both are present and differ, or if a string is empty.
    """
    other = metadata.get(key)
    if typed is None and other is None:
        return None
    given = [value for value in (typed, other) if not absent(value)]
    if any(value == "" for value in given):
        raise ValueError(f"text {text}: {name} is the empty string; leave it out instead")
    if len(given) == 2 and given[0] != given[1]:
        raise ValueError(f"text {text}: {name}={typed!r} contradicts metadata.{key}={other!r}; give one")
    return given[0] if given else None


def emit_situations(texts: Sequence[TrainingText], rollout: str) -> None:
    """Write each fact of one rollout's texts, in step order, both typed and into `metadata`.

    Index and length are derived by counting the rollout's texts with the same situation, unless given.
    """
    for step, text in enumerate(texts):
        name = f"{rollout}/{step}"
        for field, key in _TYPED.items():
            value = resolve(field, getattr(text, field), key, text.metadata, name)
            if value is not None:
                setattr(text, field, value)
                text.metadata[key] = value
            else:
                text.metadata.pop(key, None)
    _emit_places(texts, rollout)


def _emit_places(texts: Sequence[TrainingText], rollout: str) -> None:
    segments: dict[str, list[int]] = defaultdict(list)
    for step, text in enumerate(texts):
        if text.situation is not None and text.masked:
            # Takes part in no comparison, so it must not move the place of any other text.
            text.metadata[INDEX_KEY], text.metadata[LENGTH_KEY] = 0, 1
        elif text.situation is not None:
            segments[text.situation].append(step)
        elif text.position == "pool":
            raise ValueError(f"text {rollout}/{step}: position is 'pool' without a situation")
    for situation, steps in segments.items():
        _reject_mixed_positions(situation, (texts[step].position for step in steps), rollout)
        for local_index, step in enumerate(steps):
            text = texts[step]
            derived = (0, 1) if text.position == "pool" else (local_index, len(steps))
            index, length = _given_place(text, f"{rollout}/{step}") or derived
            if text.position == "pool" and (index, length) != (0, 1):
                raise ValueError(
                    f"text {rollout}/{step}: a pooled text is index 0 of 1, metadata says {index} of {length}"
                )
            text.metadata[INDEX_KEY], text.metadata[LENGTH_KEY] = index, length


def _reject_mixed_positions(situation: str, positions: Iterable[str], rollout: str) -> None:
    if len(set(positions)) > 1:
        raise ValueError(f"rollout {rollout}: situation {situation!r} has both pooled and end-aligned texts")


def _given_place(text: TrainingText, name: str) -> tuple[int, int] | None:
    index, length = text.metadata.get(INDEX_KEY), text.metadata.get(LENGTH_KEY)
    if absent(index) and absent(length):
        return None
    if absent(index) or absent(length):
        raise ValueError(f"text {name}: metadata needs both {INDEX_KEY} and {LENGTH_KEY}, or neither")
    if not 0 <= int(index) < int(length):  # type: ignore[arg-type]
        raise ValueError(f"text {name}: {INDEX_KEY}={index} is not in 0..{LENGTH_KEY}-1, length {length}")
    return int(index), int(length)  # type: ignore[arg-type]
