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
"""What a policy is judged by or shall write, which does not say what is asked."""
_LOOKED_AT = 500
"""Of many problems about so many are looked at for what all or most of them have."""
_ENDS = ".?:;,\u2026"
"""Marks at the ends of a text that a copy of it may lack; `5!` is no 5."""
_BETWEEN = re.compile(r"(?<=[.:!?。！？])\s+|\n+")
T = TypeVar("T")
_UNKNOWN = "unknown"
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

    Where problems have texts of their own, those decide, whatever they are called; answers, numbers and words
    beside them do not, nor sentences before or behind that half of the problems of a side have. Problems
    without such texts are compared whole.
    """
    names = _naming(train)
    sides = [[[*_leaves(problem, _text, names)] for problem in problems] for problems in (train, test)]
    texts_of = [[[v for _, v in leaves if isinstance(v, _Text)] for leaves in side] for side in sides]
    common = {text for side in texts_of for text in _frequent(side, lambda text: [text], 0.05)}
    own = [[_own(leaves, common) for leaves in side] for side in sides]
    ends = [_frequent(_some(side), _sentences, 0.5) for side in own]
    tested = set(chain.from_iterable(own[1]))
    trained = [{_bare(text, ends[0], tested) for text in texts} for texts in own[0]]
    of_text: dict[str, list[set[str]]] = {}
    for texts in trained:
        for text in texts:
            of_text.setdefault(text, []).append(texts)
    same = {text for side in texts_of for text in _frequent(side, lambda text: [text], 1)}
    whole = {_whole(leaves, same) for leaves in sides[0]}

    def is_known(texts: Sequence[_Text], leaves: Sequence[Leaf]) -> bool:
        if not texts:
            return _whole(leaves, same) in whole
        bare = {_bare(text, ends[1], of_text) for text in texts}
        # A document or a solution may be written out on one side alone.
        return any(bare <= other or other <= bare for text in bare for other in of_text.get(text, ()))

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


def _sentences(text: _Text) -> list[str]:
    return [*filter(None, map(_typed, _BETWEEN.split(text.raw)))]


def _own(leaves: Sequence[Leaf], common: Collection[str]) -> list[_Text]:
    """Texts that say which problem it is."""
    asked = (text for key, text in leaves if key not in _ANSWERS and isinstance(text, _Text))
    return [text for text in asked if len(text) >= _TEXT and text not in common]


def _bare(text: _Text, ends: Collection[str], others: Collection[str]) -> str:
    """A text of the other side that it is but for sentences of `ends` before and behind; else itself."""
    if not ends or text in others:
        return text
    parts = _sentences(text)
    first = next((at for at, part in enumerate(parts) if part not in ends), len(parts))
    last = next((at for at in range(len(parts), first, -1) if parts[at - 1] not in ends), first)
    cut = (
        _unmarked("".join(parts[at:to])) for at in range(first + 1) for to in range(len(parts), last - 1, -1)
    )
    return next((one for one in cut if len(one) >= _TEXT and one in others), text)


def _whole(leaves: Sequence[Leaf], same: Collection[str]) -> frozenset[tuple[Leaf, int]]:
    """What else tells problems apart: short texts but those of all problems, with the numbers beside them."""
    asked = [(key, value) for key, value in leaves if key not in _ANSWERS and value not in same]
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
        key = "answer" if value.get("role") == "assistant" else key
        for name, item in value.items():
            if name not in names:
                yield from _leaves(item, form, names, key if key in _ANSWERS else str(name))
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
    """Write down that there are no training problems here to compare with."""
    write_whole(_path(output_dir), f"{_UNKNOWN}\n")


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
