"""Which problems a run has: those that are trained on and tested, and those that changed with a resume.

A data set under two names, in another order or with other spaces, typography and ids, is no test. The actor
looks at its start, the report names what was found.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import decomposition, normalize

from xxhash import xxh3_64

from pipelinerl.base.files import write_whole

_NAMES = frozenset(
    "id uid idx index number row name key split dataset dataset_name data_source source domain".split()  # noqa: SIM905
)
"""What tells problems of equal content apart."""
_ORDINALS = frozenset(("idx", "index", "number", "row", "name", "key"))
"""Of these, what may also be content."""
_ANSWERS = frozenset(
    (  # noqa: SIM905
        "answer answers solution solutions canonical_solution response responses output outputs completion "
        "completions chosen rejected reasoning rationale explanation gold ground_truth final_answer label "
        "labels expected expected_answer reference references target targets test tests test_list test_cases"
    ).split()
)
"""What a policy is judged by or shall write, which does not say what is asked; a key may end with one."""
_IDS = re.compile(
    r"_id|[qp]id|uuid|guid|"
    r"(?:problem|question|query|prompt|task|example|sample|instance|item|row|record|original|unique)_u?id"
)
"""Keys of names that are long enough to be texts; as content they count where a problem has no text."""
_SYSTEM = frozenset(("system", "system_prompt", "developer"))
_ROLES = {
    "assistant": "answer",
    "gpt": "answer",
    "model": "answer",
    "system": "system",
    "developer": "system",
}
"""Under which key what somebody says in a chat is a text of the problem; ShareGPT's names too."""
_LOOKED_AT = 500
"""Of many problems about so many are looked at for what all or most of them have."""
_ENDS = ".?:;,\u2026。।؟۔"
"""Marks at the ends of a text that a copy of it may lack; `5!` is no 5."""
_BETWEEN = re.compile(r"(?<=[.:!?。！？])\s+|\n+")
T = TypeVar("T")
_UNKNOWN = "unknown"
_WORD = re.compile(r"[^\W\d_]{2,}")
_INSTRUCTION = re.compile(r"[^\d?]+")
_LEAST_WORDS = 6
"""What a question has at least that is no list of numbers, or text to work on."""
_TEXT = 16
"""Characters from which on a text may say which problem it is."""
_INVISIBLE = dict.fromkeys((0xAD, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF))
"""Soft hyphens, zero-width characters and byte-order marks, which a copy of a text may have or lack."""
_TYPED = str.maketrans(
    dict.fromkeys("‘’‚‛′‵`´‹›ʼ＇", "'")
    | dict.fromkeys('“”„‟″‶«»〝〞〟＂"', "''")
    | dict.fromkeys("‐‑‒–—―−⁃﹘﹣－", "-")
)
"""Quotes and dashes as a keyboard has them; a double quote is two single ones, as TeX writes it."""
_FORMULA = re.compile(r"(?<!\\)(?:(\${1,2})([^$]+)\1|\\\((.+?)(?<!\\)\\\)|\\\[(.+?)(?<!\\)\\\])", re.DOTALL)
"""A formula of TeX, whose ends have several forms; a sum of money has no second `$`."""


def shared(train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]]) -> int:
    """How many test problems have the content of a training one, up to names, case, spaces and typography.

    Where problems have texts of their own, those decide, whatever they are called; answers, ids, numbers and
    words beside them do not, nor a system prompt, nor sentences before or behind that half of the problems of
    a side have, nor a text of which the other side has none by that name. Problems without such texts are
    compared whole.
    """
    names = _naming(train)
    sides = [[[*_leaves(problem, _text, names)] for problem in problems] for problems in (train, test)]
    texts_of = [[[v for _, v in leaves if isinstance(v, _Text)] for leaves in side] for side in sides]
    common = _common([[_asked(leaves) for leaves in _once(side)] for side in sides])
    own = [[_own(leaves, common) for leaves in side] for side in sides]
    ends = [_ends([_own(leaves, common) for leaves in _once(side)]) for side in sides]
    asked = {text for leaves in own[1] for _, text in leaves}
    tested = asked.union(filter(None, (_core(text, ends[1]) for text in asked)))
    trained = [
        _by_key(leaves, lambda text: _bare(text, ends[0], tested, _core(text, ends[0]))) for leaves in own[0]
    ]
    of_text: dict[str, list[dict[str, set[str]]]] = {}
    for keys in trained:
        for text in set[str]().union(*keys.values()):
            of_text.setdefault(text, []).append(keys)
    same = {text for side in texts_of for text in _frequent(side, lambda text: [text], 1)}
    whole = {_whole(leaves, same) for leaves in sides[0]}

    def is_known(texts: Sequence[tuple[str, _Text]], leaves: Sequence[Leaf]) -> bool:
        if not texts:
            return _whole(leaves, same) in whole
        keys = _by_key(texts, lambda text: _bare(text, ends[1], of_text))
        found = set[str]().union(*keys.values())
        return any(_agree(keys, other) for text in found for other in of_text.get(text, ()))

    return sum(map(is_known, own[1], sides[1]))


class _Text(str):
    """A text of a problem in its form for comparing, and as it was."""

    raw: str


Leaf = tuple[str, str]
"""A text, number or other value and its innermost key, or the first key that names an answer."""


def _frequent(
    side: Sequence[Sequence[_Text]], parts: Callable[[_Text], Sequence[str]], share: float
) -> set[str]:
    """Parts of texts that at least this share of the problems have, and two, such as a system prompt."""
    found = Counter[str]()
    for texts in side:
        found.update({part for text in texts for part in parts(text)})
    return {part for part, count in found.items() if count >= max(2, share * len(side))}


def _some(problems: Sequence[T]) -> Sequence[T]:
    return problems[:: max(1, len(problems) // _LOOKED_AT)]


def _once(side: Sequence[Sequence[Leaf]]) -> list[Sequence[Leaf]]:
    """Each problem once, as often as it is there, such as for several samples of it."""
    by_content = {frozenset(leaf for leaf in leaves if not _is_answer(leaf[0])): leaves for leaves in side}
    return [*by_content.values()]


def _common(sides: Sequence[Sequence[Sequence[_Text]]]) -> set[str]:
    """Texts of many problems of a side, but for a problem that is there often and on the other side once."""
    found = set[str]()
    for side, other in zip(sides, reversed(sides), strict=True):
        beside: dict[str, set[frozenset[str]]] = {
            text: set() for text in _frequent(side, lambda text: [text], 0.05)
        }
        for texts in map(frozenset, side):
            for text in texts & beside.keys():
                beside[text].add(texts)
        counts = Counter[str](chain.from_iterable(map(set, other)))
        found |= {text for text, kinds in beside.items() if len(kinds) > 1 or counts[text] != 1}
    return found


def _ends(side: Sequence[Sequence[tuple[str, _Text]]]) -> frozenset[str]:
    """Sentences of half of the problems, such as an instruction; no mark or bracket by itself."""
    found = _frequent([[text for _, text in leaves] for leaves in _some(side)], _sentences, 0.5)
    return frozenset(sentence for sentence in found if any(map(str.isalnum, sentence)))


def _sentences(text: _Text) -> list[str]:
    return [*filter(None, map(_typed, _BETWEEN.split(text.raw)))]


def _asked(leaves: Sequence[Leaf]) -> list[_Text]:
    return [text for key, text in leaves if isinstance(text, _Text) and _is_asked(key)]


def _own(leaves: Sequence[Leaf], common: Collection[str]) -> list[tuple[str, _Text]]:
    """Texts that say which problem it is, with their keys; the system's only if nobody else says any."""
    said = [
        (key, text)
        for key, text in leaves
        if isinstance(text, _Text) and text not in common and _is_asked(key)
    ]
    asked = [one for one in said if one[0] not in _SYSTEM] or said
    return [(key, text) for key, text in asked if len(text) >= _TEXT]


def _by_key(texts: Sequence[tuple[str, _Text]], form: Callable[[_Text], str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key, text in texts:
        found.setdefault(key, set()).add(form(text))
    return found


def _agree(one: Mapping[str, set[str]], other: Mapping[str, set[str]]) -> bool:
    """Whether nothing of both contradicts: a document, a hint or a link may be there on one side alone."""
    both = ((texts, other[key]) for key, texts in one.items() if key in other)
    return all(texts <= others or others <= texts for texts, others in both)


def _bare(text: _Text, ends: frozenset[str], others: Collection[str], else_: str = "") -> str:
    """A text of the other side that it is but for sentences of `ends` at its ends; or `else_`, or itself."""
    if not ends or text in others:
        return text
    before, core, behind = _divided(text, ends)
    cut = (
        _unmarked("".join((*before[at:], _typed(core), *behind[:to])))
        for at in range(len(before) + 1)
        for to in range(len(behind), -1, -1)
    )
    return next((one for one in cut if len(one) >= _TEXT and one in others), else_ or text)


def _core(text: _Text, ends: frozenset[str]) -> str:
    """A text without any instruction of `ends` before and behind, if it still asks in words; else empty.

    Only so may both sides have an instruction of their own: the same list of numbers to sort or to add is
    another problem, and so is what ends with another question or number.
    """
    core = _divided(text, frozenset(filter(_INSTRUCTION.fullmatch, ends)))[1] if ends else ""
    found = _unmarked(_typed(core))
    return found if len(found) >= _TEXT and len(_WORD.findall(core)) >= _LEAST_WORDS else ""


@lru_cache(1 << 10)
def _divided(text: _Text, ends: frozenset[str]) -> tuple[list[str], str, list[str]]:
    """Sentences of `ends` before, what is between as it was written, and sentences of `ends` behind."""
    parts = [(part, typed) for part in _BETWEEN.split(text.raw) if (typed := _typed(part))]
    first = next((at for at, (_, typed) in enumerate(parts) if typed not in ends), len(parts))
    last = next((at for at in range(len(parts), first, -1) if parts[at - 1][1] not in ends), first)
    # Together, since a formula may go over several lines.
    core = "\n".join(part for part, _ in parts[first:last])
    return [typed for _, typed in parts[:first]], core, [typed for _, typed in parts[last:]]


def _whole(leaves: Sequence[Leaf], same: Collection[str]) -> frozenset[tuple[Leaf, int]]:
    """What else tells problems apart: short texts but those of all problems, with the numbers beside them.

    A system prompt counts only where there is no other text.
    """
    asked = [(key, value) for key, value in leaves if not _is_answer(key) and value not in same]
    without_system = [leaf for leaf in asked if leaf[0] not in _SYSTEM]
    if any(isinstance(value, _Text) for _, value in without_system):
        asked = without_system
    if any(isinstance(value, _Text) for _, value in asked):
        leaves = [("" if isinstance(value, _Text) else key, value) for key, value in asked]
    return frozenset(Counter(leaves).items())


def _naming(problems: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Keys that only name problems: not those in which alone they differ, as by an index, best no id."""
    for names in (_NAMES, _NAMES - _ORDINALS):
        contents = {tuple(_leaves(problem, _plain, names)) for problem in _some(problems)}
        if () not in contents and len(contents) >= min(2, len(problems)):
            return names
    return frozenset()


def _leaves(
    value: Any, form: Callable[[str], str], names: Collection[str], key: str = ""
) -> Iterator[tuple[str, str]]:
    """Texts in a form, numbers and what else there is, by the innermost key; an answer's by its own."""
    if isinstance(value, str):
        yield key, form(value)
    elif isinstance(value, Mapping):
        key = _ROLES.get(str(value.get("role", value.get("from"))).lower(), key)
        for name, item in ((_plain_key(str(name)), item) for name, item in value.items()):
            if name not in names:
                yield from _leaves(item, form, names, key if _is_answer(key) or key in _SYSTEM else name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, form, names, key)
    elif isinstance(value, set | frozenset):
        yield key, " ".join(sorted(map(str, value)))  # which have another order in each process
    elif is_dataclass(value) and not isinstance(value, type):
        content = {field.name: getattr(value, field.name) for field in fields(value)}
        yield from _leaves(content, form, names, key)
    elif callable(plain := getattr(value, "tolist", None)):  # an array, as columns of parquet files are
        yield from _leaves(plain(), form, names, key)
    elif value is not None:
        # Of a table a whole number may come as a float.
        shown = str(int(value) if isinstance(value, float) and value.is_integer() else value)
        yield key, type(value).__name__ if " at 0x" in shown else shown


@lru_cache(1 << 10)
def _plain_key(key: str) -> str:
    """In small letters, `_` between words: `ID`, `uniqueId`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[ -]+", "_", key).lower()


@lru_cache(1 << 10)
def _is_answer(key: str) -> bool:
    """Whether it is one of `_ANSWERS`, or ends with one as `generated_solution` does."""
    words = key.split("_")
    return any("_".join(words[at:]) in _ANSWERS for at in range(len(words)))


def _is_asked(key: str) -> bool:
    return not _is_answer(key) and not _IDS.fullmatch(key)


@lru_cache(1 << 14)
def _plain(text: str) -> str:
    return "".join(normalize("NFC", text).translate(_INVISIBLE).split()).casefold()


@lru_cache(1 << 14)
def _typed(text: str) -> str:
    """As `_plain`, with one form for quotes, dashes, formulas, ligatures and full-width characters (NFKC)."""
    usual = _FORMULA.sub(lambda found: found[2] or found[3] or found[4], text.translate(_TYPED))
    return _plain(usual if usual.isascii() else _others().sub(lambda run: normalize("NFKC", run[0]), usual))


def _unmarked(text: str) -> str:
    """Without marks at its ends, and quotation marks around it."""
    bare = text.strip(_ENDS)
    return bare.strip("'").strip(_ENDS) if bare[:1] == bare[-1:] == "'" else bare


@lru_cache(1 << 14)
def _text(text: str) -> _Text:
    found = _Text(_unmarked(_typed(text)))
    found.raw = text
    return found


@lru_cache(1)
def _others() -> re.Pattern[str]:
    """Runs of characters that NFKC may change: not 5² into 52, nor ½ into 1⁄2."""
    kinds = ("<super>", "<sub>", "<fraction>")
    kept = [one for one in map(chr, range(sys.maxunicode + 1)) if decomposition(one).startswith(kinds)]
    return re.compile(f"[^{re.escape(''.join(kept))}]+")


def _path(output_dir: Path) -> Path:
    return Path(output_dir) / "actor" / "shared_problems"


def note_shared(output_dir: Path, count: int, total: int) -> None:
    """Write down how many of the test problems are trained on too."""
    write_whole(_path(output_dir), f"{count} of {total}\n")


def noted_shared(output_dir: Path) -> str:
    """Such as `12 of 40`; empty where none is, or where nobody has looked."""
    said = _noted(output_dir)
    return "" if said.startswith(("0 ", _UNKNOWN)) else said


def note_unknown(output_dir: Path) -> None:
    """Write down that training problems, all or former ones, are not here to compare with."""
    write_whole(_path(output_dir), f"{_UNKNOWN}\n")


def note_former(output_dir: Path) -> None:
    """Write down that other problems were trained on before, by which the model may know any test problem."""
    write_whole(_path(output_dir).with_name("former_problems"), "")


def has_former(output_dir: Path) -> bool:
    """Whether an earlier start trained on other problems than the next one."""
    return _path(output_dir).with_name("former_problems").exists()


def is_unknown(output_dir: Path) -> bool:
    """Whether nobody here knows what the model was trained on, or nobody has looked."""
    return _noted(output_dir) in ("", _UNKNOWN)


def _noted(output_dir: Path) -> str:
    """What was written down; empty for a damaged file too, which says as little as none."""
    path = _path(output_dir)
    said = path.read_text(errors="replace").strip() if path.is_file() else ""
    return said if said == _UNKNOWN or re.fullmatch(r"\d+ of \d+", said) else ""


def digest(problems: Sequence[Mapping[str, Any]]) -> str:
    """What tells two lists of problems apart, their order included; empty for none."""
    if not problems:
        return ""
    whole = xxh3_64()
    names = _naming(problems)
    for problem in problems:
        content = chain.from_iterable(_leaves(problem, _plain, names))
        whole.update("\0".join(content).encode("utf-8", "surrogatepass"))
        whole.update(b"\1")
    return f"{len(problems)} {whole.hexdigest()}"


def note_digest(output_dir: Path, kind: str, found: str) -> str:
    """Keep a digest for the next start; returns that of the last one, empty for none."""
    path = Path(output_dir) / "actor" / f"{kind}_digest"
    before = path.read_text(errors="replace").strip() if path.is_file() else ""
    if found:
        write_whole(path, f"{found}\n")
    return before
