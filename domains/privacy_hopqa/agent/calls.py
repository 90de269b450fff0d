"""One call to the model: render the decision, ask, record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from domains.privacy_hopqa.agent.episode import CallRecord
from domains.privacy_hopqa.agent.errors import StageError
from domains.privacy_hopqa.agent.interfaces import Context, Model, Rendered, Stage, StageRequest
from domains.privacy_hopqa.agent.prompts import PromptSet
from domains.privacy_hopqa.agent.stages.parsing import Resolve
from domains.privacy_hopqa.settings import PrivacyHopQASettings


class Caller:
    """Makes the calls of one rollout; `records` grows in the order in which they begin."""

    def __init__(self, model: Model, prompts: PromptSet, settings: PrivacyHopQASettings) -> None:
        self._model = model
        self._prompts = prompts
        self._settings = settings
        self.records: list[CallRecord] = []

    async def ask(self, stage: Stage, context: Context, situation: str) -> tuple[CallRecord, Rendered]:
        """Ask and record. Raises StageError CONTEXT_OVERFLOW, already recorded, without a call."""
        prompt = self._prompts.render(context)
        view = context.view
        index = len(self.records)
        record = CallRecord(index, stage, view.hop_number, view.iteration, situation, prompt=prompt.text)
        self.records.append(record)
        start = time.perf_counter()
        request = StageRequest(stage, context, prompt, self._settings.stage_max_tokens(stage))
        try:
            completion = await self._model.complete(request)
        except StageError as error:
            record.error = error.kind
            raise
        finally:
            record.latency_s = time.perf_counter() - start
        record.text = completion.text
        record.prompt_tokens = completion.prompt_tokens
        record.output_tokens = completion.output_tokens
        record.call = completion.call
        return record, prompt


@contextmanager
def recorded(record: CallRecord) -> Iterator[None]:
    """Note the kind of a StageError that the block raises."""
    try:
        yield
    except StageError as error:
        record.error = error.kind
        raise


def id_resolver(prompt: Rendered, documents: dict[str, str]) -> Resolve:
    """Names in an answer -> document ids: an alias of the prompt, a document id or a window id.

    `documents` maps every id on offer, of windows too, to its document.
    """

    def resolve(name: str) -> str | None:
        found = prompt.aliases.get(name, name)
        return documents.get(found) or documents.get(found.split("#w", 1)[0])

    return resolve
