"""The situation of a sample: typed fields, metadata keys of other writers, and their agreement.

A situation labels the kind of decision and the information it was taken with. Samples of one group are
compared only within a situation: at equal positions counted from the end (`position="end"`), or all
together (`"pool"`, written as index 0 of a segment of length 1). Other programs put the same facts into
`metadata`; readers accept either, writers emit both, and a contradiction is an error. The actor calls
`emit_situations` for each rollout; `Sample.from_record` reads the same facts with `read_labels`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pipelinerl.rollouts import TrainingText

SITUATION_KEY = "step_advantage_group"
INDEX_KEY = "step_advantage_local_index"
LENGTH_KEY = "step_advantage_segment_length"
PADDING_VALUE_KEY = "step_advantage_padding_value"
PADDING_REWARD_KEY = "padding_reward"
POSITIONS = ("end", "pool")
LARGEST = 1e15
"""Of rewards, padding values and loss weights. A gradient is a sum over tokens in float32, its norm one of
squares: beyond it they overflow long before the number itself does."""

_TYPED = {
    "situation": SITUATION_KEY,
    "padding_value": PADDING_VALUE_KEY,
    "padding_reward": PADDING_REWARD_KEY,
}


class Labels(msgspec.Struct, kw_only=True, eq=False):
    """With what a sample is compared, and how much it weighs.

    local_index and segment_length are None where there is no situation, and until `fill_places` where the
    writer left them out.
    """

    situation: str | None = None
    pooled: bool = False
    """Compared with all samples of its situation; otherwise with those of its position from the end."""
    local_index: int | None = None
    segment_length: int | None = None
    padding_value: float | None = None
    padding_reward: float | None = None
    role: str | None = None
    loss_weight: float = 1.0
    masked: bool = False


def absent(value: Any) -> bool:
    """None and NaN both mean absent."""
    return value is None or value != value


def read_labels(fields: Mapping[str, Any], metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of `Labels`, from typed fields and metadata of one sample or record.

    Raises ValueError naming sample `name` for a value of a wrong type or range, for a field and a metadata
    key that contradict each other, and for half a place.
    """
    situation = _resolved("situation", fields, SITUATION_KEY, metadata, name)
    if situation is not None and not isinstance(situation, str):
        raise ValueError(f"sample {name}: situation={situation!r} must be a string")
    position = fields.get("position", "end")
    if position not in POSITIONS:
        raise ValueError(f"sample {name}: position={position!r} must be one of {', '.join(POSITIONS)}")
    pooled = position == "pool"
    if pooled and situation is None:
        raise ValueError(f"sample {name}: position is 'pool' without a situation")
    role = fields.get("role")
    if role == "":
        raise ValueError(f"sample {name}: role is the empty string; leave it out instead")
    index, length = _given_place(metadata, situation, pooled, name)
    return {
        "situation": situation,
        "pooled": pooled,
        "local_index": index,
        "segment_length": length,
        "padding_value": _padding("padding_value", fields, PADDING_VALUE_KEY, metadata, name),
        "padding_reward": _padding("padding_reward", fields, PADDING_REWARD_KEY, metadata, name),
        "role": None if absent(role) else str(role),
        "loss_weight": _number("loss_weight", fields.get("loss_weight", 1.0), name, at_least=0.0),
        "masked": bool(fields.get("masked", False)),
    }


def fill_places(rollout: Sequence[Labels], name: str) -> None:
    """Give the samples of rollout `name`, in step order, the places that their writer left out.

    Raises ValueError when a situation mixes pooled and end-aligned samples or declares several lengths.
    """
    segments: dict[str, list[Labels]] = defaultdict(list)
    for sample in rollout:
        if sample.situation is not None and sample.masked:
            # Takes part in no comparison, so it must not move the place of any other sample.
            sample.local_index, sample.segment_length = 0, 1
        elif sample.situation is not None:
            segments[sample.situation].append(sample)
    for situation, segment in segments.items():
        if any(sample.pooled != segment[0].pooled for sample in segment):
            raise ValueError(f"rollout {name}: situation {situation!r} has both pooled and end-aligned ones")
        for index, sample in enumerate(segment):
            if sample.segment_length is None:
                place = (0, 1) if sample.pooled else (index, len(segment))
                sample.local_index, sample.segment_length = place
            if sample.segment_length != segment[0].segment_length:
                raise ValueError(
                    f"rollout {name}: {LENGTH_KEY}={sample.segment_length} differs within situation "
                    f"{situation!r}, the first sample says {segment[0].segment_length}"
                )


def emit_situations(texts: Sequence[TrainingText], rollout: str) -> list[Labels]:
    """Write each fact of one rollout's samples, in step order, both typed and into `metadata`; returns them.

    Index and length are derived by counting the rollout's samples with the same situation, unless given.
    Raises ValueError naming the sample or the rollout, as `read_labels` and `fill_places`.
    """
    labels = [
        Labels(**read_labels(text.__dict__, text.metadata, f"{rollout}/{step}"))
        for step, text in enumerate(texts)
    ]
    fill_places(labels, rollout)
    for text, label in zip(texts, labels, strict=True):
        for field, key in _TYPED.items():
            value = getattr(label, field)
            if value is not None:
                setattr(text, field, value)
                text.metadata[key] = value
            else:
                text.metadata.pop(key, None)
        if label.situation is not None:
            text.metadata[INDEX_KEY], text.metadata[LENGTH_KEY] = label.local_index, label.segment_length
    return labels


def _resolved(field: str, fields: Mapping[str, Any], key: str, metadata: Mapping[str, Any], name: str) -> Any:
    """The value of a fact that may be given as a typed field, as a metadata key, or as both."""
    typed, other = fields.get(field), metadata.get(key)
    if typed is None and other is None:
        return None
    given = [value for value in (typed, other) if not absent(value)]
    if any(value == "" for value in given):
        raise ValueError(f"sample {name}: {field} is the empty string; leave it out instead")
    if len(given) == 2 and given[0] != given[1]:
        raise ValueError(f"sample {name}: {field}={typed!r} contradicts metadata.{key}={other!r}; give one")
    return given[0] if given else None


def _padding(
    field: str, fields: Mapping[str, Any], key: str, metadata: Mapping[str, Any], name: str
) -> float | None:
    value = _resolved(field, fields, key, metadata, name)
    return None if value is None else _number(field, value, name)


def _number(field: str, value: Any, name: str, at_least: float = -LARGEST) -> Any:
    if not isinstance(value, int | float | np.number):
        raise ValueError(f"sample {name}: {field}={value!r} must be a number")
    if not at_least <= value <= LARGEST:
        rule = f"from {at_least:g} to {LARGEST:g}"
        raise ValueError(f"sample {name}: {field}={value} must be {rule}")
    return value


def _given_place(
    metadata: Mapping[str, Any], situation: str | None, pooled: bool, name: str
) -> tuple[int | None, int | None]:
    index: Any = metadata.get(INDEX_KEY)
    length: Any = metadata.get(LENGTH_KEY)
    if absent(index) and absent(length):
        return None, None
    if absent(index) or absent(length) or situation is None:
        raise ValueError(
            f"sample {name}: metadata needs {SITUATION_KEY}, {INDEX_KEY} and {LENGTH_KEY} together"
        )
    integers = isinstance(index, int | np.integer) and isinstance(length, int | np.integer)
    if not integers or not 0 <= index < length:
        raise ValueError(f"sample {name}: {INDEX_KEY}={index} is not in 0..{LENGTH_KEY}-1 (length {length})")
    if pooled and (index, length) != (0, 1):
        raise ValueError(f"sample {name}: a pooled sample is index 0 of 1, not {index} of {length}")
    return int(index), int(length)
