"""One group as the page shows it: texts joined with what training, accounting and the domain know of them.

Pure. What leaves here is JSON: dicts with short keys (there are thousands of texts), lists of pairs where
keys come from a domain, log-probabilities in thousandths of a nat. `page.js` reads it.

Of a text, `prompt` is [characters shared with the text before, the rest]; `ids` the tokens from the first
sampled one on, `pieces` their texts where those of the tokens alone do not add up, `sampled` 1 for sampled
ones, null if all are; `lp` and `ref` log-probabilities of the sampled tokens under the weights that sampled
them and under the reference, null where that is no other model; `versions` [version, start, end) over them;
`place` the number of texts to the end of its situation, null where all of a situation are compared. `adv`,
`weight`, `step` and `at` (texts trained on before that step) are absent where no optimizer step saw the
text. Of an attempt, `question`, `answer` and, where the domain says it, `gold` stand at its head.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelinerl.domain import ANSWER, GOLD, QUESTION, Note, NotesOf
from pipelinerl.extras.viewer.source import Record, TextId, Trained
from pipelinerl.extras.viewer.tokens import TokenTexts
from pipelinerl.rollouts import MASKED_TOKEN_ID

_USER = re.compile(
    r"<\|im_start\|>user|<\|start_header_id\|>user<\|end_header_id\|>|<start_of_turn>user|<\|user\|>|\[INST\]"
)
"""How templates begin a turn of a user."""
_MARK = re.compile(
    r"<\|im_start\|>assistant|<start_of_turn>model|<\|[\w ]*\|>(assistant<\|\w*\|>)?|<(end_of_turn|/?s)>"
    r"|\[/INST\]"
)
HEAD_CHARACTERS = 600
"""Of a question or an answer at the head of a rollout; whole they stand in its texts."""
_INTERNAL = ("group_id", "rollout_index", "step_index", "model_version", "exact_versions")
_REWARD_PART = "reward_"


def sampled_of(record: Record) -> np.ndarray:
    """bool over all tokens of a text: which the model sampled."""
    learned: np.ndarray = np.asarray(record["labels"]) != MASKED_TOKEN_ID
    return learned


def reward_parts(metadata: Mapping[str, Any]) -> list[tuple[str, float]]:
    """What the domain says the reward is made of: numbers named `reward_...` in a text's metadata."""
    return [
        (name.removeprefix(_REWARD_PART), float(value))
        for name, value in metadata.items()
        if name.startswith(_REWARD_PART) and isinstance(value, int | float)
    ]


def by_rollout(records: Sequence[Record]) -> dict[int, list[Record]]:
    """The texts of a group by attempt, each in the order of its steps."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record["metadata"]["rollout_index"], []).append(record)
    return {
        index: sorted(found[index], key=lambda record: record["metadata"]["step_index"])
        for index in sorted(found)
    }


class GroupJoin:
    """Makes what the page shows of one group after the other, and collects the token texts they need."""

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self.vocabulary: dict[int, str] = {}
        """Texts of the tokens of the groups so far; whoever writes a chunk takes and clears it."""

    def group(
        self,
        group_id: str,
        records: Sequence[Record],
        trained: Mapping[TextId, Trained],
        notes_of: NotesOf | None,
    ) -> dict[str, Any]:
        """The group with its attempts, turns and notes."""
        attempts, first = [], ""
        for index, texts in by_rollout(records).items():
            turns, before = [], first
            for step, record in enumerate(texts):
                turn, whole = self._turn(record, before, trained.get((group_id, index, step)))
                turns.append(turn)
                first = first or whole
                before = whole
            answered = [record | {"answer": self._completion(record)} for record in map(dict, texts)]
            notes = notes_of(f"{group_id}/{index}", answered) if notes_of else ()
            head = {note.kind: note.text for note in notes if _is_head(note)}
            asked = texts[0]["text"][: len(texts[0]["text"]) - texts[0]["n_predicted"]]
            head = {QUESTION: question_of(asked), ANSWER: self._answer(texts[-1])} | head
            head = {kind: _cut(text) for kind, text in head.items()}
            others = [_note(note) for note in notes if not _is_head(note)]
            attempts.append({"i": index, "turns": turns, "notes": others, **head})
        return {"id": group_id, "attempts": attempts}

    def _answer(self, record: Record) -> str:
        """What was sampled, without special tokens."""
        if self._tokens.available:
            sampled = np.asarray(record["input_ids"])[sampled_of(record)]
            return self._tokens.text(sampled.tolist(), skip_special=True)
        return str(record["text"])[len(record["text"]) - record["n_predicted"] :]

    def _completion(self, record: Record) -> str:
        """What a domain's notes read: the answer as its judge did, with tags of thoughts."""
        if not self._tokens.available:
            return self._answer(record)
        ids, sampled = np.asarray(record["input_ids"]), sampled_of(record)
        return self._tokens.completion(ids[: int(sampled.argmax())], ids[sampled])

    def _turn(self, record: Record, before: str, values: Trained | None) -> tuple[dict[str, Any], str]:
        """One text, and its prompt and answer together, which the next prompt may begin with."""
        ids, sampled = np.asarray(record["input_ids"]), sampled_of(record)
        begin = int(sampled.argmax()) if sampled.any() else len(ids)
        prompt = str(record["text"])[: len(record["text"]) - record["n_predicted"]]
        listed, own = ids[begin:].tolist(), sampled[begin:]
        if self._tokens.available:
            if not own.all():  # turns of others lie between those of the model
                prompt = self._tokens.text(ids[:begin].tolist())
            pieces = self._tokens.pieces(listed)
            self.vocabulary.update((token, self._tokens.of(token)) for token in set(listed))
            output = "".join(pieces if pieces is not None else map(self._tokens.of, listed))
        else:
            output = str(record["text"])[len(prompt) :]
            pieces = [output, *[""] * (len(listed) - 1)] if listed else []
        shared = _common(before, prompt)
        turn: dict[str, Any] = {
            "prompt": [_utf16(prompt[:shared]), prompt[shared:]],
            "tokens": [int(begin), len(listed)],
            "ids": listed,
            "pieces": pieces,
            "sampled": None if own.all() else own.astype(int).tolist(),
            "lp": _thousandths(record["logprobs"]),
            "versions": [list(span) for span in record["weight_versions"]],
            "reward": _number(record["reward"]),
            "sit": record["situation"],
            "place": _place(record),
            "role": record["role"],
            "finish": record["finish_reason"] or ("" if record["finished"] else "cut"),
            "masked": bool(record["masked"]),
            "loss_weight": _number(record["loss_weight"]),
            "parts": [[name, _number(value)] for name, value in reward_parts(record["metadata"])],
            "meta": _pairs(record["metadata"]),
        }
        if values is not None:
            turn |= {
                "adv": _number(values.advantage),
                "weight": _number(values.loss_weight),
                "step": values.step,
                "at": values.version,
                "ref": None if values.ref_logprobs is None else _thousandths(values.ref_logprobs),
            }
        return turn, prompt + output


def _place(record: Record) -> int | None:
    metadata = record["metadata"]
    index, length = (metadata.get(f"step_advantage_{name}") for name in ("local_index", "segment_length"))
    return None if record["position"] == "pool" or index is None or length is None else length - index


def _thousandths(values: Any) -> list[int]:
    return np.rint(np.nan_to_num(np.asarray(values, np.float64), neginf=-1e6) * 1000).astype(int).tolist()


def _number(value: float) -> float | None:
    """Six digits are more than a page shows; None for what JSON cannot say."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _common(before: str, text: str) -> int:
    """How many first characters two texts have in common."""
    end = min(len(before), len(text))
    if before[:end] == text[:end]:
        return end
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if before[low:middle] == text[low:middle] else (low, middle)
    return low


def _utf16(text: str) -> int:
    """Length as a browser counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _pairs(metadata: Mapping[str, Any]) -> list[list[str]]:
    """Names and values as text: a dict of a domain's keys could name a prototype."""
    return [
        [str(name), value if isinstance(value, str) else json.dumps(value, default=_plain)]
        for name, value in metadata.items()
        if name not in _INTERNAL and not name.startswith("step_advantage_") and not _empty(value)
    ]


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list) and not value)  # an array has no truth value


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


def question_of(prompt: str) -> str:
    """The last turn of a user in a prompt, without the marks of its template; the whole without any."""
    return _MARK.sub(" ", _USER.split(prompt)[-1]).strip()


def _cut(text: str) -> str:
    """The beginning of a question, an answer or gold."""
    return text if len(text) <= HEAD_CHARACTERS else f"{text[:HEAD_CHARACTERS]} …"


def _is_head(note: Note) -> bool:
    """Whether it stands at the head of its rollout: what was asked, what was answered, what is right."""
    return note.turn is None and note.kind in (QUESTION, ANSWER, GOLD)


def _note(note: Note) -> dict[str, Any]:
    spans = [[_utf16(note.text[:start]), _utf16(note.text[:stop])] for start, stop in note.spans]
    said = {"turn": note.turn, "kind": note.kind, "text": note.text, "level": note.level}
    return said | ({"spans": spans} if spans else {}) | ({"badge": note.badge} if note.badge else {})
