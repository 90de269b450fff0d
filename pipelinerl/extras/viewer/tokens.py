"""The text of each token of an output, so that a page can colour them.

A token's text alone is what the tokenizer decodes it to; where those do not add up to the text of the output
(a character whose bytes are split over tokens, a blank that only the first token loses), the output is
decoded token by token as engines do for streams.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from pipelinerl.base.hub import model_folder
from pipelinerl.base.thoughts import OPEN
from pipelinerl.base.tokenizing import decode, load_tokenizer, with_tags

_BROKEN = "\ufffd"


class TokenTexts:
    """Texts of tokens under one tokenizer. Without one a text stays whole.

    It is that of the first of these models that is on this machine: no hub is asked.
    """

    def __init__(self, *models: str) -> None:
        self._models = models
        self._known: dict[int, str] = {}

    @cached_property
    def _tokenizer(self) -> Any:
        for folder in filter(None, map(model_folder, self._models)):
            with suppress(ValueError, OSError):  # without a tokenizer, or with a damaged one
                return load_tokenizer(str(folder))
        return None

    @property
    def available(self) -> bool:
        return self._tokenizer is not None

    def of(self, token: int) -> str:
        """What the tokenizer decodes one token to."""
        if token not in self._known:
            self._known[token] = self.text([token])
        return self._known[token]

    def text(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """What the tokenizer decodes several tokens to."""
        return decode(self._tokenizer, ids, skip_special)

    def completion(self, prompt_ids: np.ndarray, ids: np.ndarray) -> str:
        """What was sampled behind a prompt, as judges read it (`LLMCall.completion`)."""

        def plain(some: np.ndarray) -> str:
            return self.text(some.tolist(), skip_special=True)

        text, cut = with_tags(self._tokenizer, prompt_ids, ids, plain)
        return (OPEN if cut else "") + (plain(ids) if text is None else text)

    def pieces(self, ids: Sequence[int]) -> list[str] | None:
        """The texts of the tokens where they differ from those of the tokens alone, else None."""
        if "".join(map(self.of, ids)) == self.text(ids):
            return None
        found, begin, read = [], 0, 0
        for at in range(1, len(ids) + 1):
            before, now = self.text(ids[begin:read]), self.text(ids[begin:at])
            whole = at == len(ids) or not now.endswith(_BROKEN)
            found.append(now[len(before) :] if whole and len(now) > len(before) else "")
            if found[-1]:
                begin, read = read, at
        return found
