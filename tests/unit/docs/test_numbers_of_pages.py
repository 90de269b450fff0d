"""Every number of the pages about the engine, the retrieval server and the games of two is known to a test.

Measured ones stand in `test_claims.py` and in the tables of `test_tables.py` with their JSON; here are those
that the program has as settings or constants, and those that are neither, each with the reason.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import engine as engine_benchmark
from benchmarks import prefix_cache
from domains.privacy_hopqa.agent.replicas import GONE, HEALTH_DEADLINE_S, LEAVE_OUT_S, WATCH_S
from pipelinerl.engines.cpu.model import SELF_CHECK_LIMITS
from pipelinerl.engines.cpu.prefixes import BLOCK
from pipelinerl.engines.cpu.settings import DEFAULT_MODEL_LEN
from pipelinerl.engines.openai.fields import COMPLETION_MAX_TOKENS
from retrieval_server.access import MIN_TOKEN_CHARS
from retrieval_server.arguments import parse_arguments
from retrieval_server.backends import LARGE_CORPUS_BYTES
from retrieval_server.bm25 import LIBRARY_DOCUMENTS
from retrieval_server.bounds import ANSWER_CHARS, HIT_CHARS
from retrieval_server.http_errors import BODY_DEADLINE_S
from retrieval_server.index import build
from retrieval_server.limits import (
    DEFAULT_K,
    DEFAULT_MAX_WAITING,
    MAX_BODY_BYTES,
    MAX_K,
    MAX_QUERY_CHARS,
    QUEUE_DEADLINE_S,
    parse_local_search,
)
from retrieval_server.ranking import K1, B
from retrieval_server.segments import POSTINGS_AT_A_TIME, make_segments
from retrieval_server.status import FAILED, REFUSED
from retrieval_server.store import DEFAULT_MAX_CHARS
from retrieval_server.workers import MAX_RESTARTS, STALL_S
from tests.support.measured import ENGINE, NUMBER, RARO, REPUTATION, RETRIEVAL, ROOT
from tests.support.raro_settings import RARO_OTHERS, RARO_SETTINGS
from tests.support.reputation_settings import REPUTATION_OTHERS, REPUTATION_SETTINGS
from tests.support.settings import Setting
from tests.unit.docs.test_claims import SENTENCES
from tests.unit.docs.test_tables import MEASURED, cells

LEAST = parse_local_search({"task_id": "T", "query": "q"})
WORDS = {"three": 3, "six": 6}
SHAPE = engine_benchmark.SIZES["5M"]


def bytes_of_keys(sequences: int, tokens: int) -> float:
    """Keys and values in float32 of all layers of the 5M model."""
    _, layers, _, _, key_heads, head_size = SHAPE
    return sequences * tokens * layers * 2 * key_heads * head_size * 4


SETTINGS: dict[str, list[Setting]] = {
    RARO: RARO_SETTINGS,
    REPUTATION: REPUTATION_SETTINGS,
    ENGINE: [
        (
            r"Up to (\S+)\s+nats in float32 \((\S+) in bfloat16\)",
            [SELF_CHECK_LIMITS[dtype] for dtype in (torch.float32, torch.bfloat16)],
        ),
        (r"complete blocks of (\d+) tokens", [BLOCK]),
        (r"each on average,\s+(\d+) at a time", [prefix_cache.IN_FLIGHT]),
        (r"a completion has (\d+) tokens", [COMPLETION_MAX_TOKENS]),
        (r"`--max-model-len` tokens: (\d+),", [DEFAULT_MODEL_LEN]),
        (r"Attention reads (\d+) MB", [round(bytes_of_keys(32, 356) / 1e6)]),
    ],
    RETRIEVAL: [
        (r"\(k1 = (\S+),\s+b = (\S+), idf", [K1, B]),
        (
            r"web corpora below (\d+) MiB.*?up to (\d+) documents",
            [LARGE_CORPUS_BYTES >> 20, LIBRARY_DOCUMENTS],
        ),
        (r"Memory holds (\w+) million postings", [POSTINGS_AT_A_TIME / 1e6]),
        (
            r"local/search` .*?`k` \((\d+)\), `threshold` \((\d+)\), `max_chars` \((\d+)\), "
            r"`max_answer_chars` \((\d+)\)",
            [DEFAULT_K, LEAST.threshold, LEAST.max_chars, LEAST.max_answer_chars],
        ),
        (
            r"browsecomp/search` .*?`k` \((\d+)\), `max_chars` \((\d+)\), `max_answer_chars` \((\d+)\)",
            [DEFAULT_K, DEFAULT_MAX_CHARS, LEAST.max_answer_chars],
        ),
        (r"`--max-hit-chars` \(([\d,]+)\)", [HIT_CHARS]),
        (r"`--max-answer-chars` \(([\d,]+)\)", [ANSWER_CHARS]),
        (r"`query` 1 to (\S+) characters, `k` 1 to (\d+), ", [MAX_QUERY_CHARS, MAX_K]),
        (r"in (\d+) s; it exceeds (\d+) KiB", [BODY_DEADLINE_S, MAX_BODY_BYTES >> 10]),
        (r"`--max-waiting` \((\d+)\)", [DEFAULT_MAX_WAITING]),
        (r"(\d+) s without a free slot", [QUEUE_DEADLINE_S]),
        (r"not run for (\d+) s, is started again, (\w+) times", [STALL_S, MAX_RESTARTS]),
        (r"`--threads` \((\d+)\)", [parse_arguments(["--tasks", "."]).threads]),
        (
            r"asked for `/health` \((\d+) s\) after (\d+), (\d+), (\d+) and then every (\d+) s",
            [HEALTH_DEADLINE_S, *LEAVE_OUT_S],
        ),
        (r"or answers (502), (503) or (504), is left out", sorted(GONE)),
        (r"has waited (\d+) s .*? left out after\s+(\d+) s", [WATCH_S, WATCH_S + HEALTH_DEADLINE_S]),
        (r"exit status (\d) .*? with (\d) it is", [REFUSED, FAILED]),
        (r"`RETRIEVAL_TOKEN`, (\d+) characters", [MIN_TOKEN_CHARS]),
    ],
}
"""Sentences and what the code has; a word may be a number."""

OTHERS: dict[str, dict[str, str]] = {
    RARO: RARO_OTHERS,
    REPUTATION: REPUTATION_OTHERS,
    ENGINE: {
        r"on (24) tokens": "a constant inside `PackedModel`",
        r"less than (1e-5) nats": "held by tests/unit/engines/test_prefix_cache.py",
        r"(32) sequences of (356) tokens": "the profile that no file keeps, as the page says",
        r"^\|(?: [^|]* \|) (\d+)(?:M| %) \| (\d+)(?:M| %) \|$": "the same",
        r"a step at (5)M|a Llama of (5)M|SmolLM2-(135)M": "names of models",
        r"core with (32) sequences that\s+decode|a prompt of (256) tokens;": "parts of names of figures",
        r"none gave (5) % of a step": "timed once, as the page says",
    },
    RETRIEVAL: {
        r"UTF-(8)|SHA-(256)": "names",
        r"ln\((1) \+ \(N − df \+ (0\.5)\)/\(df \+ (0\.5)\)\)": "the formula, in test_retrieval_bm25.py",
        r"for (100,000) documents": "part of the name of its figure",
        r"takes (12) bytes on disk and (8) more": "the test below",
        r"`query` (1) to|`k` (1) to|at least (0) |; (0) asks for as much": "the least that there is",
        r"\(mode (600)\)": "a mode of files",
        r"NFS (4)": "a name",
    },
}
"""Numbers that are neither measured nor settings, and why."""

STATUSES = (
    r"(?:error|another model|a call out of order|a full queue|are a|is answered|under|else) (\d{3})\b",
    r"\b(200) (?:while|once)",
    r"refused \((400)\)",
    r"^\| (\d{3})(?:, (\d{3}))? \|",
)
"""HTTP, held by the tests of each server."""


def prose(page: str) -> str:
    """The page with blanks in place of code, so that positions stay."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    text = re.sub(
        r"^```.*?^```", blank, (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`]*`", blank, text)


def spans(pattern: str, text: str) -> list[tuple[int, int]]:
    found = re.finditer(pattern, text, re.DOTALL | re.MULTILINE)
    return [match.span(group) for match in found for group in range(1, match.re.groups + 1)]


def measured_tables(page: str, text: str) -> list[tuple[int, int]]:
    """Where the tables stand that `test_tables.py` compares with their JSON."""
    return [
        (table.start(), table.end())
        for table in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE)
        if (page, " | ".join(cells(table[0].partition("\n")[0])).strip()) in MEASURED
    ]


@pytest.mark.parametrize("page", SETTINGS)
def test_every_number_of_a_page_is_known(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    measured = [pattern for one, pattern, _ in SENTENCES.values() if one == page]
    statuses = STATUSES if page in (ENGINE, RETRIEVAL) else ()
    patterns = [*measured, *(pattern for pattern, _ in SETTINGS[page]), *OTHERS[page], *statuses]
    known = [span for pattern in patterns for span in spans(pattern, text)] + measured_tables(page, text)
    for number in NUMBER.finditer(prose(page)):
        inside = [first <= number.start() and number.end() <= last for first, last in known]
        line = text[: number.start()].count("\n") + 1
        assert any(inside), f"{page}:{line}: {number[0]}: measured, a setting, or which else?"


@pytest.mark.parametrize(
    ("page", "pattern", "values"),
    [(page, *one) for page, settings in SETTINGS.items() for one in settings],
)
def test_settings_in_sentences_are_those_of_the_code(
    page: str, pattern: str, values: Sequence[float] | Callable[[], Sequence[float]]
) -> None:
    (found,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    written = [found] if isinstance(found, str) else list(found)
    wanted = list(values() if callable(values) else values)
    assert [WORDS.get(one) or float(one.replace(",", "")) for one in written] == pytest.approx(wanted)


def test_a_posting_takes_the_bytes_that_the_page_says(tmp_path: Path) -> None:
    web = tmp_path / "web.jsonl"
    web.write_text('{"docid": "a", "url": "u", "text": "some words of a text"}\n')
    build(web, tmp_path / "index")
    of_index = [(tmp_path / f"index/{name}.csc.index.npy") for name in ("data", "indices")]
    (segment,), _ = make_segments(web, tmp_path / "segments", lambda _: None)
    said = re.findall(r"takes (\d+) bytes on disk and (\d+) more", (ROOT / RETRIEVAL).read_text())
    assert said == [
        (
            str(sum(np.load(path).itemsize for path in of_index)),
            str(sum(segment.array(name).itemsize for name in ("docs", "occurrences"))),
        )
    ]
