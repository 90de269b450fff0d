"""The one model of an engine as requests see it: its name, its limits, its tokeniser.

All routes build their requests here, before anything reaches the engine thread, so that what one of them
refuses no other accepts.
"""

from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from pipelinerl.base.tokenizing import encode_within, load_tokenizer, longest_token
from pipelinerl.engines.openai.protocol import BadRequest, SamplingFields, UnknownModel, require
from pipelinerl.engines.serving.backend import Backend, UnsupportedModel
from pipelinerl.engines.serving.sequence import Request

LEAST = 0.01
"""Of temperatures and factors: what is smaller is 0 in float32, or makes logits that are no numbers."""
NO_TEXT = "this model has no tokenizer.json, hence no text; send token ids and detokenize: false"


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    try:
        return load_tokenizer(str(folder))
    except Exception as error:  # tokenizers raises nothing more exact
        raise UnsupportedModel(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error


class Served:
    """Builds checked requests for the engine."""

    def __init__(self, backend: Backend) -> None:
        self._settings = settings = backend.settings
        self.name = settings.served_model_name
        self.names_ids = settings.return_tokens_as_token_ids
        self._vocab_size, self._eos_ids = backend.vocab_size, backend.eos_ids
        has_text = (settings.model / "tokenizer.json").is_file()
        self._tokenizer = _tokenizer(settings.model) if has_text else None

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Raises BadRequest for a model without one."""
        if self._tokenizer is None:
            raise BadRequest(NO_TEXT)
        return self._tokenizer

    def encoded(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text. Raises BadRequest for one that is too long for the context whatever its ids are."""
        context, longest = self._settings.max_model_len, self._longest_token
        try:
            return encode_within(self.tokenizer, text, context, longest, add_special_tokens)
        except ValueError as error:
            raise BadRequest(str(error)) from None

    @cached_property
    def _longest_token(self) -> int | None:
        return longest_token(self.tokenizer)

    def check_model(self, name: str | None) -> None:
        """Raises UnknownModel for any name but the one that is served and the path that `--model` got."""
        # vLLM calls a model by its path unless told otherwise, so clients written for it send the path.
        if name not in (None, self.name) and Path(name) != self._settings.model:
            raise UnknownModel(f"model {name!r} is not served; this is {self.name!r}")

    def request(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingFields,
        *,
        streams: bool = False,
        cache_salt: str | None = None,
    ) -> Request:
        """Raises BadRequest for ids and sampling values that this engine can never serve."""
        require((bool(prompt), "the prompt is empty; at least one token id is needed"))
        # In the forward pass such an id would be an IndexError, which ends the engine for everybody.
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            found = f"{min(prompt)}..{max(prompt)}"
            raise BadRequest(f"token ids must lie in [0, {self._vocab_size}), got {found}")
        max_model_len = self._settings.max_model_len
        room = max_model_len - len(prompt)
        max_tokens = room if sampling.max_tokens is None else sampling.max_tokens
        context = f"the context of {max_model_len} tokens (--max-model-len)"
        if room < 1:
            raise BadRequest(
                f"{len(prompt)} prompt tokens leave no room for an answer in {context}; shorten the prompt"
            )
        if max_tokens < 1:
            raise BadRequest(f"max_tokens {max_tokens} asks for no token; ask for 1 to {room}")
        if max_tokens > room:
            raise BadRequest(
                f"{len(prompt)} prompt tokens and max_tokens {max_tokens} do not fit {context}; "
                f"ask for at most {room} tokens, or shorten the prompt"
            )
        self._check_sampling(sampling, max_tokens)
        return Request(
            request_id,
            prompt,
            sampling,
            max_tokens=max_tokens,
            eos_ids=self._eos_ids,
            tokenizer=self.tokenizer.backend_tokenizer if sampling.detokenize else None,
            streams=streams,
            cache_salt=cache_salt,
        )

    def _check_sampling(self, fields: SamplingFields, max_tokens: int) -> None:
        stops, vocab_size = fields.stop_token_ids or [], self._vocab_size
        slots, has_text = self._settings.max_num_seqs, self._tokenizer is not None
        penalties = (fields.presence_penalty, fields.frequency_penalty)
        require(
            (
                fields.temperature == 0.0 or LEAST <= fields.temperature <= 100.0,
                f"temperature {fields.temperature} is neither 0 nor in [{LEAST}, 100]",
            ),
            (0.0 < fields.top_p <= 1.0, f"top_p {fields.top_p} is not in (0, 1]"),
            # -1 turns it off as well, as in vLLM.
            (fields.top_k >= -1, f"top_k {fields.top_k} is negative; 0 turns it off"),
            (0.0 <= fields.min_p <= 1.0, f"min_p {fields.min_p} is not in [0, 1]"),
            (1 <= fields.n <= slots, f"n {fields.n} is not in [1, max_num_seqs {slots}]"),
            (
                0 <= fields.min_tokens <= max_tokens,
                f"min_tokens {fields.min_tokens} is not in [0, {max_tokens}]",
            ),
            (
                fields.prompt_logprobs in (None, 0),
                f"prompt_logprobs {fields.prompt_logprobs} is not supported; send 0 or null",
            ),
            (
                LEAST <= fields.repetition_penalty <= 100.0,
                f"repetition_penalty {fields.repetition_penalty} is not in [{LEAST}, 100]",
            ),
            (
                all(-2.0 <= penalty <= 2.0 for penalty in penalties),
                f"presence_penalty {penalties[0]} and frequency_penalty {penalties[1]} must lie in [-2, 2]",
            ),
            (all(fields.stops), "a stop string is empty; leave it out"),
            (has_text or not fields.detokenize, NO_TEXT),
            (
                all(0 <= token < vocab_size for token in stops),
                f"stop_token_ids {stops} must lie in [0, {vocab_size})",
            ),
        )
