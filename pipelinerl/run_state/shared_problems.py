"""Which problems a run has: those that are trained on and tested, and those that changed with a resume.

A data set under two names, in another order or with other spaces, typography and ids, is no test. The actor
looks at its start, the report names what was found.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import decomposition, normalize

from xxhash import xxh3_64

from pipelinerl.base.files import write_whole

_NAMES = frozenset(
    "id uid idx index number row name key split dataset dataset_name data_source source domain".split()  # noqa: SIM905
)
"""What tells problems of equal content apart."""
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


def shared(train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]]) -> int:
    """How many test problems have the content of a training one, up to names, case, spaces and typography.

    Where problems have texts of their own, those decide and numbers or words beside them do not. A test
    problem with other keys, as of another loader, is known by one of these texts.
    """
    contents = [frozenset(_leaves(problem, _typed)) for problem in train]
    texts: dict[str, set[str]] = {}
    for key, value in chain.from_iterable(contents):
        if len(value) >= _TEXT:
            texts.setdefault(key, set()).add(value)
    # Not a system prompt, which many problems have in common.
    own = {key for key, values in texts.items() if 2 * len(values) > len(train)}
    own_texts = frozenset(chain.from_iterable(texts[key] for key in own))

    def told(content: Collection[tuple[str, str]], keys: Collection[str]) -> frozenset[tuple[str, str]]:
        return frozenset(pair for pair in content if pair[0] in keys) or frozenset(content)

    @lru_cache
    def known(keys: frozenset[str]) -> set[frozenset[tuple[str, str]]]:
        return {told(content, keys) for content in contents}

    def is_known(content: Collection[tuple[str, str]]) -> bool:
        # By what the test problem has: a solution may be written out in the training problem alone.
        keys = frozenset(own) & {key for key, _ in content}
        if own and not keys:
            return any(value in own_texts for _, value in content)
        return told(content, keys) in known(keys)

    return sum(is_known([*_leaves(problem, _typed)]) for problem in test)


def _leaves(value: Any, form: Callable[[str], str], key: str = "") -> Iterator[tuple[str, str]]:
    """Texts in a form, numbers and what else there is, by the innermost key."""
    if isinstance(value, str):
        yield key, form(value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _NAMES:
                yield from _leaves(item, form, str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, form, key)
    elif isinstance(value, set | frozenset):
        yield key, " ".join(sorted(map(str, value)))  # which have another order in each process
    elif value is not None:
        # Of a table a whole number may come as a float.
        shown = str(int(value) if isinstance(value, float) and value.is_integer() else value)
        yield key, type(value).__name__ if " at 0x" in shown else shown


@lru_cache(1 << 14)
def _plain(text: str) -> str:
    return "".join(normalize("NFC", text).translate(_INVISIBLE).split()).casefold()


@lru_cache(1 << 14)
def _typed(text: str) -> str:
    """As `_plain`, with one form for quotes, dashes, ligatures and full-width characters (NFKC)."""
    usual = text.translate(_TYPED)
    return _plain(usual if usual.isascii() else _others().sub(lambda run: normalize("NFKC", run[0]), usual))


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
    """Whether nobody here knows what the model was trained on."""
    return _noted(output_dir) == _UNKNOWN


def _noted(output_dir: Path) -> str:
    path = _path(output_dir)
    return path.read_text().strip() if path.is_file() else ""


def digest(problems: Sequence[Mapping[str, Any]]) -> str:
    """What tells two lists of problems apart, their order included; empty for none."""
    if not problems:
        return ""
    whole = xxh3_64()
    for problem in problems:
        whole.update(
            "\0".join(chain.from_iterable(_leaves(problem, _plain))).encode("utf-8", "surrogatepass")
        )
        whole.update(b"\1")
    return f"{len(problems)} {whole.hexdigest()}"


def note_digest(output_dir: Path, kind: str, found: str) -> str:
    """Keep a digest for the next start; returns that of the last one, empty for none."""
    path = Path(output_dir) / "actor" / f"{kind}_digest"
    before = path.read_text().strip() if path.is_file() else ""
    if found:
        write_whole(path, f"{found}\n")
    return before
