"""The per-text table that every advantage estimator reads: one row per text, columns as arrays.

Built once per chunk from stream records; all checks of labels happen here, so that the estimators are
plain arithmetic. Imports neither torch nor pandas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pipelinerl.situations import INDEX_KEY, LENGTH_KEY, PADDING_REWARD_KEY, PADDING_VALUE_KEY, SITUATION_KEY
from pipelinerl.situations import absent as is_absent
from pipelinerl.situations import resolve as resolve_field

NONE = -1
"""Code of an absent situation or role."""
POSITIONS = ("end", "pool")


@dataclass(frozen=True, slots=True)
class TextTable:
    """N texts. Codes index the tuples of names that all tables of a chunk share.

    group, rollout, step, n_tokens, situation, local_index, segment_length, role: int64 `[N]`;
    reward, padding_value, padding_reward (NaN = absent), loss_weight: float64 `[N]`; pooled, masked: bool.
    """

    group: np.ndarray
    rollout: np.ndarray
    step: np.ndarray
    reward: np.ndarray
    n_tokens: np.ndarray
    situation: np.ndarray
    local_index: np.ndarray
    segment_length: np.ndarray
    pooled: np.ndarray
    padding_value: np.ndarray
    padding_reward: np.ndarray
    role: np.ndarray
    loss_weight: np.ndarray
    masked: np.ndarray
    group_names: tuple[str, ...]
    situation_names: tuple[str, ...]
    role_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.group)

    def select(self, rows: np.ndarray) -> TextTable:
        """The rows of a boolean mask or an index array."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return TextTable(**{k: v[rows] if isinstance(v, np.ndarray) else v for k, v in values.items()})

    def name(self, row: int) -> str:
        """`group/rollout/step`, as messages write it."""
        return text_name(self.group_names[self.group[row]], self.rollout[row], self.step[row])

    def rollout_codes(self) -> np.ndarray:
        """int64 `[N]`, equal for texts of the same rollout."""
        return codes_of(self.group, self.rollout)


def text_name(group: Any, rollout: Any, step: Any) -> str:
    return f"{group}/{rollout}/{step}"


def codes_of(*columns: np.ndarray) -> np.ndarray:
    """Number the distinct rows of int64 columns: 0.. in lexicographic order, int64 `[N]`."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, column_codes = np.unique(column, return_inverse=True)
        combined = codes * (int(column_codes.max(initial=0)) + 1) + column_codes
        _, codes = np.unique(combined, return_inverse=True)
    return codes


def build_table(texts: Sequence[Mapping[str, Any]], n_tokens: Sequence[int] | None = None) -> TextTable:
    """Read the typed fields and metadata keys of text records; masked texts are marked, not removed.

    `n_tokens` defaults to the lengths of `input_ids`. Raises ValueError naming the text for a duplicate
    (group, rollout, step), a reward that is not finite, or contradictory or partial labels.
    """
    metadata = [text.get("metadata") or {} for text in texts]
    group, group_names = _encode([_group_of(t, m) for t, m in zip(texts, metadata)])
    rollout = _integers(texts, metadata, "rollout_index")
    step = _integers(texts, metadata, "step_index")
    names = _Names(group_names, group, rollout, step)
    lengths = [len(text["input_ids"]) for text in texts] if n_tokens is None else n_tokens
    situations = [
        resolve_field("situation", t.get("situation"), SITUATION_KEY, m, names[i])
        for i, (t, m) in enumerate(zip(texts, metadata))
    ]
    _check_choices(texts, situations, names)
    situation, situation_names = _encode(situations)
    role, role_names = _encode([_role_of(text, i, names) for i, text in enumerate(texts)])
    masked = np.array([bool(text.get("masked", False)) for text in texts], bool)
    pooled = np.array([text.get("position", "end") == "pool" for text in texts], bool)
    _check_unique(group, rollout, step, names)
    index, length = _given_places(metadata, situation, names)
    local_index, segment_length = _derive_places(
        group, rollout, step, situation, index, length, pooled, masked, names
    )
    table = TextTable(
        group=group,
        rollout=rollout,
        step=step,
        reward=_finite("reward", [t.get("reward", 0.0) for t in texts], names),
        n_tokens=np.asarray(lengths, np.int64),
        situation=situation,
        local_index=local_index,
        segment_length=segment_length,
        pooled=pooled,
        padding_value=_optional("padding_value", PADDING_VALUE_KEY, texts, metadata, names),
        padding_reward=_optional("padding_reward", PADDING_REWARD_KEY, texts, metadata, names),
        role=role,
        loss_weight=_finite("loss_weight", [t.get("loss_weight", 1.0) for t in texts], names, 0.0),
        masked=masked,
        group_names=group_names,
        situation_names=situation_names,
        role_names=role_names,
    )
    _check_positions(table)
    return table


class _Names:
    """Names of texts, made only when a message needs one."""

    def __init__(self, groups: tuple[str, ...], group: np.ndarray, rollout: np.ndarray, step: np.ndarray):
        self._groups, self._group, self._rollout, self._step = groups, group, rollout, step

    def __getitem__(self, row: int) -> str:
        return text_name(self._groups[self._group[row]], self._rollout[row], self._step[row])


def _encode(values: Sequence[str | None]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes int64 `[N]` in order of first appearance; NONE for None."""
    codes: dict[str, int] = {}
    column = [NONE if value is None else codes.setdefault(value, len(codes)) for value in values]
    return np.asarray(column, np.int64), tuple(codes)


def _group_of(text: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    group = text.get("group_id") or metadata.get("group_id")
    if group is None:
        raise ValueError(
            f"a text has no group_id (rollout {metadata.get('rollout_index')}); the scheduler writes it"
        )
    return str(group)


def _role_of(text: Mapping[str, Any], row: int, names: _Names) -> str | None:
    role = text.get("role")
    if role == "":
        raise ValueError(f"text {names[row]}: role is the empty string; leave it out instead")
    return None if is_absent(role) else str(role)


def _check_choices(texts: Sequence[Mapping[str, Any]], situations: Sequence[Any], names: _Names) -> None:
    for row, (text, situation) in enumerate(zip(texts, situations)):
        if situation is not None and not isinstance(situation, str):
            raise ValueError(f"text {names[row]}: situation={situation!r} must be a string")
        position = text.get("position", "end")
        if position not in POSITIONS:
            raise ValueError(
                f"text {names[row]}: position={position!r} must be one of {', '.join(POSITIONS)}"
            )


def _integers(texts: Sequence[Mapping[str, Any]], metadata: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    values = [m.get(key, t.get(key)) for t, m in zip(texts, metadata)]
    for text, value in zip(texts, values):
        if value is None:
            raise ValueError(f"a text of group {text.get('group_id')} has no {key}; the scheduler writes it")
    return np.asarray(values, np.int64)


def _finite(field: str, values: Sequence[Any], names: _Names, at_least: float = -math.inf) -> np.ndarray:
    column = _floats(field, values, names)
    for row in np.flatnonzero(~np.isfinite(column) | (column < at_least))[:1].tolist():
        rule = "be finite" if at_least == -math.inf else f"be finite and >= {at_least:g}"
        raise ValueError(f"text {names[row]}: {field}={values[row]} must {rule}")
    return column


def _floats(field: str, values: Sequence[Any], names: _Names) -> np.ndarray:
    """float64 `[N]`; raises ValueError naming the first text whose value is no number."""
    try:
        column = np.asarray(values, np.float64)
        if column.ndim == 1:
            return column
    except (TypeError, ValueError):
        pass  # the loop below finds the text that is to blame
    row = next(i for i, value in enumerate(values) if not isinstance(value, int | float | np.number))
    raise ValueError(f"text {names[row]}: {field}={values[row]!r} must be a number")


def _optional(
    field: str,
    key: str,
    texts: Sequence[Mapping[str, Any]],
    metadata: Sequence[dict[str, Any]],
    names: _Names,
) -> np.ndarray:
    values = [
        resolve_field(field, t.get(field), key, m, names[i]) if t.get(field) is not None or key in m else None
        for i, (t, m) in enumerate(zip(texts, metadata))
    ]
    column = _floats(field, [math.nan if value is None else value for value in values], names)
    for row in np.flatnonzero(np.isinf(column))[:1].tolist():
        raise ValueError(f"text {names[row]}: {field}={values[row]} must be finite")
    return column


def _check_unique(group: np.ndarray, rollout: np.ndarray, step: np.ndarray, names: _Names) -> None:
    codes = codes_of(group, rollout, step) if len(group) else group
    counts = np.bincount(codes) if len(codes) else codes
    if len(counts) < len(codes):
        row = int(np.flatnonzero(counts[codes] > 1)[0])
        raise ValueError(f"text {names[row]} appears {counts[codes[row]]} times; expected once")


def _given_places(
    metadata: Sequence[dict[str, Any]], situation: np.ndarray, names: _Names
) -> tuple[np.ndarray, np.ndarray]:
    """Explicit (local index, segment length), NONE where absent."""
    index = np.full(len(metadata), NONE, np.int64)
    length = index.copy()
    for row, entry in enumerate(metadata):
        at, of = entry.get(INDEX_KEY), entry.get(LENGTH_KEY)
        at, of = (None if is_absent(at) else at), (None if is_absent(of) else of)
        if at is None and of is None:
            continue
        if at is None or of is None or situation[row] == NONE:
            raise ValueError(
                f"text {names[row]}: metadata needs {SITUATION_KEY}, {INDEX_KEY} and {LENGTH_KEY} together"
            )
        if not all(isinstance(value, int | np.integer) for value in (at, of)) or not 0 <= at < of:
            raise ValueError(f"text {names[row]}: {INDEX_KEY}={at} is not in 0..{LENGTH_KEY}-1 (length {of})")
        index[row], length[row] = at, of
    return index, length


def _derive_places(
    group: np.ndarray,
    rollout: np.ndarray,
    step: np.ndarray,
    situation: np.ndarray,
    index: np.ndarray,
    length: np.ndarray,
    pooled: np.ndarray,
    masked: np.ndarray,
    names: _Names,
) -> tuple[np.ndarray, np.ndarray]:
    """Fill absent places by counting the rollout's texts of one situation in step order.

    Masked texts are not counted: they must not change anybody's position.
    """
    for row in np.flatnonzero(pooled & (length > 1))[:1].tolist():
        raise ValueError(
            f"text {names[row]}: a pooled text is index 0 of 1, not {index[row]} of {length[row]}"
        )
    index, length = index.copy(), length.copy()
    labelled = situation != NONE
    index[pooled & labelled], length[pooled & labelled] = 0, 1
    rows = np.flatnonzero(labelled & ~pooled & ~masked & (length == NONE))
    if len(rows):
        segments = codes_of(group[rows], rollout[rows], situation[rows])
        order = np.lexsort((step[rows], segments))
        counts = np.bincount(segments)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        index[rows[order]] = np.arange(len(rows)) - starts
        length[rows] = counts[segments]
    unplaced = labelled & (length == NONE)
    index[unplaced], length[unplaced] = 0, 1
    return index, length


def _check_positions(table: TextTable) -> None:
    """No situation of a group mixes pooled and end-aligned texts; a segment declares one length."""
    for row in np.flatnonzero(table.pooled & (table.situation == NONE))[:1].tolist():
        raise ValueError(f"text {table.name(row)}: position is 'pool' without a situation")
    rows = np.flatnonzero((table.situation != NONE) & ~table.masked)
    if len(rows) == 0:
        return
    codes = codes_of(table.group[rows], table.situation[rows])
    n_pooled = np.bincount(codes, weights=table.pooled[rows])[codes]
    mixed = (n_pooled > 0) & (n_pooled < np.bincount(codes)[codes])
    for row in rows[mixed][:1].tolist():
        situation = table.situation_names[table.situation[row]]
        raise ValueError(
            f"text {table.name(row)}: situation {situation!r} has both pooled and end-aligned texts"
        )
    segments = codes_of(table.group[rows], table.rollout[rows], table.situation[rows])
    longest = np.zeros(int(segments.max()) + 1, np.int64)
    np.maximum.at(longest, segments, table.segment_length[rows])
    for row in rows[table.segment_length[rows] != longest[segments]][:1].tolist():
        raise ValueError(
            f"text {table.name(row)}: {LENGTH_KEY}={table.segment_length[row]} differs within its segment"
        )
