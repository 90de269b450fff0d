"""One call to the model: render the decision, ask, parse the reply, record. Loop and settler call it."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from domains.privacy_hopqa.agent.episode import CallRecord
from domains.privacy_hopqa.agent.errors import StageError
from domains.privacy_hopqa.agent.interfaces import Context, Model, Prompts, Rendered, Stage, StageRequest
from domains.privacy_hopqa.agent.stages import Resolve, read_reply
from domains.privacy_hopqa.settings import PrivacyHopQASettings

Reply = TypeVar("Reply")


class Caller:
    """Makes the calls of one rollout; `records` grows in the order in which they begin."""

    def __init__(self, model: Model, prompts: Prompts, settings: PrivacyHopQASettings) -> None:
        self._model = model
        self._prompts = prompts
        self._settings = settings
        self.records: list[CallRecord] = []

    async def ask(
        self, stage: Stage, context: Context, situation: str, parse: Callable[[Any, Rendered], Reply]
    ) -> tuple[CallRecord, Reply]:
        """The record of the call and what `parse` makes of the reply's JSON and the prompt.

        Raises StageError, already recorded: of an unusable reply, or CONTEXT_OVERFLOW without a call.
        """
        prompt = self._prompts(context)
        view = context.view
        index = len(self.records)
        record = CallRecord(index, stage, view.hop_number, view.iteration, situation, prompt=prompt.text)
        # Appended before the call: reads run in parallel, and capture indices follow the order of the starts.
        self.records.append(record)
        request = StageRequest(stage, context, prompt, self._settings.stage_max_tokens(stage))
        start = time.perf_counter()
        try:
            try:
                completion = await self._model.complete(request)
            finally:
                record.latency_s = time.perf_counter() - start
            record.text = completion.text
            record.prompt_tokens = completion.prompt_tokens
            record.output_tokens = completion.output_tokens
            record.call = completion.call
            value, path = read_reply(completion.text, stage)
            reply = parse(value, prompt)
        except StageError as error:
            record.error = error.kind
            raise
        record.json_path = path
        return record, reply


def id_resolver(prompt: Rendered, documents: dict[str, str]) -> Resolve:
    """Names in an answer -> document ids: an alias of the prompt, a document id or a window id.

    `documents` maps every id on offer, of windows too, to its document.
    """

    def resolve(name: str) -> str | None:
        found = prompt.aliases.get(name, name)
        return documents.get(found) or documents.get(found.split("#w", 1)[0])

    return resolve
