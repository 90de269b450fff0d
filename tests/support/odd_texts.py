"""Texts that break parsers, drawn from a seed: what a policy may write, for tests of judges."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

# fmt: off
NUMBERS = (
    "snan", "-sNaN123", "nan", "inf", "1e999999", "-1e-999999", "1e99999999999999999999", "0x1p9", "1_0",
    "9" * 5_000, "0." + "3" * 5_000, "١٢٣", "½", "²", "10^{10^{10}}", "1,000,0", "--1", "1" * 18,
)
ODD = (
    "\x00", "\ud83d", "\udc00\ud800", "\ufeff", "\u202e", "é", "İ", "ß", "ﬁ", "\u2028", "\x85", "\r\n", "\t",
    "👩‍👩‍👧‍👦", "\U0010ffff", "\u0300" * 50, "\x1b[31m", " " * 200, "\n\n",
)
PIECES = (
    "<think>", "</think>", "<answer>", "</answer>", r"\boxed{", r"\fbox", r"\boxed ", r"\frac{", r"\sqrt",
    r"\text{", "}", "{", "$", "\\", r"\(", r"\]", "^", "_", "&", "%", r"\%", "```", "```python\n", "\n```\n",
    "~~~", "````", ">>> ", "<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>", "[f(x=", ")]",
    '{"name": "f", "arguments": ', "f(1)", "[Answer 1]", "[Answer 2]", "[Tie]", "ACTION: HELP", "**yes**",
    "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]", '{"type": "web_search", "description": ', "null",
    '{"can_answer": true, "confidence": ', '"answered": false, ', "***", "******", "* ", "<<", ">>", "P.S.",
    '"', "'", ",", ".", "A", "the of and", "(", ")", "[", "]", "<", ">", "lambda: ", "import os\n", "x = ",
    "def f(x):\n", "print(", "1 + ", "* 2", "NaN", "Infinity", "true", "yes, no", "60%", "12 cm^2", "U.S.",
    "the Nile", "12th", "5km", "km/h", "per cent", "<function=f>", "<parameter=x>", "</function>",
)
BRACKETS = (
    ("(", ")"), ("[", "]"), ("{", "}"), (r"\frac{", "}{2}"), ('{"a":', "}"), ("f(x=", ")"), ("-", ""),
    ("<think>", "</think>"), (r"\boxed{", "}"),
)
AROUND = (
    ("", ""), ("", ""), (r"\boxed{", "}"), ("<answer>", "</answer>"), ("```python\n", "\n```"), ("[", "]"),
    ("<tool_call>", "</tool_call>"), ("<tool_calls>", "</tool_calls>"), ('[{"query": "', '"}]'),
    ("</think>", ""), ('{"can_answer": true, "proposed_answer": ', "}"),
)
# fmt: on


def text(rng: random.Random) -> str:
    """Pieces of what judges look for, in any order, beside characters and numbers that break parsers."""
    kind = rng.random()
    if kind < 0.002:
        return rng.choice(("9", "1,", "-", " ", "\n", "é")) * 50_000
    if kind < 0.04:
        return rng.choice(PIECES) * rng.choice((100, 100, 100, 3_000))
    if kind < 0.07:
        return " ".join(rng.choices(NUMBERS, k=rng.choice((1, 1, 2))))
    if kind < 0.12:
        opening, closing = rng.choice(BRACKETS)
        depth = rng.choice((50, 990, 5_000))
        middle = opening * depth + rng.choice((*NUMBERS[:9], "1", "")) + closing * rng.choice((0, depth))
    else:
        kinds = rng.choices((PIECES, NUMBERS, ODD), (8, 2, 1), k=rng.randint(0, 12))
        middle = rng.choice(("", " ", "\n")).join(rng.choice(pieces) for pieces in kinds)
    begin, end = rng.choice(AROUND)
    return begin + middle + end


def texts(count: int, seed: int) -> Iterator[str]:
    """As many of them, the same for the same seed."""
    rng = random.Random(seed)
    return (text(rng) for _ in range(count))


@contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """TimeoutError in what takes longer, so that the text which does it is named."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no verdict after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
