"""Whether a model, an engine or a recording means by each token id what the policy's tokenizer means by it.

Called by the checks of teachers, of replayed recordings and of engines that run already. Ids of another
tokenizer are numbers like any others: nothing would fail, and the run would train on nonsense.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipelinerl.base.http import Connection, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PIECE = 512
"""Tokens of the vocabulary in a text that an engine is given to tokenise: no context is too short for it."""

DEADLINE_S = 20.0
"""Of each answer of an engine that is asked before the run."""


def posting(connection: Connection) -> Callable[[str, object], Any]:
    """Posts a body to a route, and gives the answer. Raises CallFailed, or ValueError for no JSON."""
    return lambda path, body: json.loads(connection.call("POST", path, DEADLINE_S, encode(body)))


def other_vocabulary(
    ours: Mapping[str, int], theirs: Mapping[str, int], whose: str = "the policy's", where: str = "there"
) -> str | None:
    """Which ids of ours, `whose` they are, stand for other text or none in theirs; None if none do."""
    if theirs == ours:
        return None
    of_id = {at: token for token, at in theirs.items()}
    other = sorted((at, token) for token, at in ours.items() if of_id.get(at) != token)
    if not other:
        return None
    at, token = other[0]
    return (
        f"{len(other)} of {whose} {len(ours)} ids stand for other text {where}, such as {at} for "
        f"{of_id.get(at)!r} instead of {token!r}"
    )


def other_tokens(asked: Callable[[str, object], object], policy: "PreTrainedTokenizerFast") -> str | None:
    """A text to which an engine gives other ids than the policy's tokenizer; `asked` posts to its routes."""
    for text in _vocabulary_texts(policy):
        ids = policy.backend_tokenizer.encode(text, add_special_tokens=False).ids
        said = asked("/tokenize", {"prompt": text, "add_special_tokens": False})
        if not isinstance(said, Mapping) or said.get("tokens") != ids:
            return f"its tokenizer gives other ids than the policy's to {text[:40]!r}..."
    return None


def _vocabulary_texts(policy: "PreTrainedTokenizerFast") -> Iterator[str]:
    """Texts that hold, together, what each id stands for; parts of characters are left out."""
    decode = policy.backend_tokenizer.decode
    size = max(policy.get_vocab().values()) + 1
    words = [decode([at], skip_special_tokens=False) for at in range(size)]
    known = [word for word in words if word and "\ufffd" not in word]
    for start in range(0, len(known), PIECE // 2):
        yield "\n".join(known[start : start + PIECE // 2])
