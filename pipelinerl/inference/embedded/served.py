"""The one model of an engine as requests see it: its name, its limits, its tokeniser.

All routes build their requests here, so that what one of them refuses no other accepts.
"""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from pipelinerl.base.tokenizing import load_tokenizer
from pipelinerl.inference.embedded.model import PackedModel, UnsupportedModel
from pipelinerl.inference.embedded.protocol import (
    NO_TEXT,
    BadRequest,
    Limits,
    SamplingFields,
    UnknownModel,
)
from pipelinerl.inference.embedded.sequence import Request
from pipelinerl.inference.embedded.settings import EngineSettings


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    try:
        return load_tokenizer(str(folder))
    except Exception as error:  # tokenizers raises nothing more exact
        raise UnsupportedModel(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error


class Served:
    """Builds checked requests for the engine."""

    def __init__(self, settings: EngineSettings, model: PackedModel) -> None:
        self.name = settings.served_model_name
        self.max_model_len = settings.max_model_len
        self._eos_ids = model.eos_ids
        has_text = (settings.model / "tokenizer.json").is_file()
        self._tokenizer = _tokenizer(settings.model) if has_text else None
        self.limits = Limits(
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            vocab_size=model.vocab_size,
            has_text=has_text,
        )

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Raises BadRequest for a model without one."""
        if self._tokenizer is None:
            raise BadRequest(NO_TEXT)
        return self._tokenizer

    def check_model(self, name: str | None) -> None:
        """Raises UnknownModel for any name but the one that is served."""
        if name not in (None, self.name):
            raise UnknownModel(f"model {name!r} is not served; this is {self.name!r}")

    def request(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingFields,
        max_tokens: int,
        *,
        text: bool,
        streams: bool = False,
    ) -> Request:
        """`text` asks for the text of the output beside its ids. Raises BadRequest without a tokeniser."""
        return Request(
            request_id,
            prompt,
            sampling,
            max_tokens=max_tokens,
            eos_ids=self._eos_ids,
            tokenizer=self.tokenizer.backend_tokenizer if text else None,
            streams=streams,
        )
