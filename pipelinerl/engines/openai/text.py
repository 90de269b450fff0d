"""Text of a sequence while its ids arrive: what is settled already, and whether a stop string ended it.

An id can end in the middle of a character, so the last few ids are decoded again together with the next one;
the text of a sequence is the concatenation of its pieces, streamed or not.
"""

import json
import re
from collections.abc import Sequence as SequenceOf
from functools import lru_cache

from tokenizers import Tokenizer

from pipelinerl.engines.openai.protocol import SamplingFields

REPLACEMENT = "\ufffd"
# A character has at most four bytes: what is still incomplete after so many ids stays incomplete.
MAX_OPEN_IDS = 4

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


def _byte_characters() -> dict[str, int]:
    """The characters as which byte-level vocabularies write bytes: printable ones of Latin-1 are themselves,
    the others are numbered from 256 on (Radford et al. 2019)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


@lru_cache(maxsize=8)
def _decoder_kinds(state: bytes) -> frozenset[str]:
    """Names of the steps of a tokenizer's decoder, from its JSON."""
    decoder = json.loads(state)
    return frozenset(one["type"] for one in decoder.get("decoders", [decoder]))


@lru_cache(maxsize=8)  # of a model's tokenizer, which is asked for with each request
def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(token for token, one in tokenizer.get_added_tokens_decoder().items() if one.special)


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes that an id stands for, alone: those of a text's ids join to the text, also where an id is a
    part of a character only."""
    name = tokenizer.id_to_token(token)
    if name is None:  # beyond the vocabulary: a padded output head
        return b""
    kinds = _decoder_kinds(tokenizer.decoder.__getstate__()) if tokenizer.decoder else frozenset()
    if "ByteLevel" in kinds:
        known = [_BYTE_OF.get(character) for character in name]
        return name.encode() if None in known else bytes(known)  # type: ignore[arg-type]
    if "ByteFallback" in kinds and (found := _BYTE.fullmatch(name)):
        return bytes([int(found[1], 16)])
    if kinds & {"Metaspace", "Replace"}:
        return name.replace(_SPACE, " ").encode()
    return tokenizer.decode([token], skip_special_tokens=False).encode()


class OutputText:
    """Text of one sequence; `add` for every id, `close` at its end."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingFields) -> None:
        self._tokenizer = tokenizer
        self._sampling, self._stops = sampling, sampling.stops
        # They have no text then; between the bytes of a character they would count as more of its bytes.
        self._skipped = _special_ids(tokenizer) if sampling.skip_special_tokens else frozenset()
        # Keep the stop string, and the text of the id that ended the sequence.
        self._keeps_stop = sampling.include_stop_str_in_output
        self._window: list[int] = []
        # Ids at the beginning of the window whose text was taken; they are context for the others.
        self._settled = 0
        self._count = 0
        # Characters in which no stop string ends.
        self._searched = 0
        self._taken = 0
        self._closed = False
        # The longest beginning of a stop string; where stop strings are kept, nothing is ever taken back.
        self._held = 0 if self._keeps_stop else max((len(one) for one in self._stops), default=1) - 1
        self.text = ""

    def add(self, token: int, *, ends: bool) -> str | None:
        """Take an id; `ends` if it is an end id. Returns the stop string that it completes."""
        self._count += 1
        if (ends and not self._keeps_stop) or token in self._skipped:
            return None
        self._window.append(token)
        self._settle(final=False)
        return None if ends else self._find_stop()

    def close(self) -> str:
        """No further id comes; the whole text."""
        if not self._closed:
            self._settle(final=True)
            self._closed = True
        return self.text

    def take(self) -> str:
        """Text since the last call, without what may yet turn out to be part of a stop string."""
        end = len(self.text) if self._closed else max(self._taken, len(self.text) - self._held)
        piece, self._taken = self.text[self._taken : end], end
        return piece

    def _settle(self, *, final: bool) -> None:
        # Both with the settled ids in front: some decoders strip the space before the first id they get.
        known = self._decode(self._window[: self._settled])
        whole = self._decode(self._window)
        end = len(self._window)
        if whole.endswith(REPLACEMENT) and not final:
            if end - self._settled < MAX_OPEN_IDS:
                return
            end = self._end_of_settled(whole)
        self.text += (whole if end == len(self._window) else self._decode(self._window[:end]))[len(known) :]
        self._window = self._window[self._settled :]
        self._settled = end - self._settled

    def _end_of_settled(self, whole: str) -> int:
        """Ids of the window before its last character, which the next id may complete: behind what is no
        character, or is U+FFFD itself, a new one may have begun."""
        for end in range(len(self._window) - 1, self._settled, -1):
            # A split within a character makes two replacements of one.
            if self._decode(self._window[:end]) + self._decode(self._window[end:]) == whole:
                return end
        return len(self._window)

    def _find_stop(self) -> str | None:
        stops = self._stops
        if self._count <= self._sampling.min_tokens:  # no stop string counts before so many ids
            self._searched = len(self.text)
            return None
        # A stop string may begin in the text that was there and end in what has come.
        froms = ((stop, max(0, self._searched - len(stop) + 1)) for stop in stops)
        found = [(at, stop) for stop, start in froms if (at := self.text.find(stop, start)) >= 0]
        if not found:
            self._searched = len(self.text)
            return None
        at, stop = min(found, key=lambda one: one[0])
        self.text = self.text[: at + len(stop) if self._keeps_stop else at]
        self._closed = True
        return stop

    def _decode(self, ids: SequenceOf[int]) -> str:
        return (
            self._tokenizer.decode(ids, skip_special_tokens=self._sampling.skip_special_tokens) if ids else ""
        )
