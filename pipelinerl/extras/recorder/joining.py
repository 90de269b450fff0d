"""Texts of a recorded session: one for each call, or one for each dialogue that grew by appending. Pure.

A call continues another when its prompt begins with the other's prompt and answer, token for token. Joined,
each sampled token is labelled once and computed once; what the program or the template put in between is
masked.
"""

from collections.abc import Sequence

import numpy as np

from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText, VersionSpan


def joined(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Texts of single calls, in the order in which they were asked, with those that append made one.

    A text is appended to the longest one that it continues. Two that continue the same text stay apart, as
    does one whose tokens are of older weights than those before it: spans of a sample may not decrease.
    """
    dialogues: list[list[TrainingText]] = []
    for text in texts:
        open_to = [one for one in dialogues if _continues(text, one[-1])]
        if open_to:
            max(open_to, key=lambda one: len(one[-1].input_ids)).append(text)
        else:
            dialogues.append([text])
    return [one[0] if len(one) == 1 else _join(one) for one in dialogues]


def _continues(text: TrainingText, earlier: TrainingText) -> bool:
    length = len(earlier.input_ids)
    if length > text.prompt_tokens or not np.array_equal(text.input_ids[:length], earlier.input_ids):
        return False
    return not (text.weight_versions and earlier.weight_versions) or (
        text.weight_versions[0][0] >= earlier.weight_versions[-1][0]
    )


def _join(dialogue: Sequence[TrainingText]) -> TrainingText:
    last = dialogue[-1]
    labels = np.full_like(last.input_ids, MASKED_TOKEN_ID)
    for text in dialogue:
        labels[text.prompt_tokens : len(text.input_ids)] = text.labels[text.prompt_tokens :]
    sampled = int(np.count_nonzero(labels != MASKED_TOKEN_ID))
    # A turn that was cut makes a cut dialogue, whatever came after it.
    cut = next((text for text in dialogue if not text.finished), last)
    metadata = {key: value for text in dialogue for key, value in text.metadata.items()}
    return TrainingText(
        text=last.text,
        # From the first sampled token on, so that `prompt_text` is what the dialogue began with.
        n_predicted=len(last.text) - len(dialogue[0].prompt_text),
        logprobs=np.concatenate([text.logprobs for text in dialogue]),
        input_ids=last.input_ids,
        labels=labels,
        finished=cut.finished,
        finish_reason=cut.finish_reason,
        prompt_tokens=len(labels) - sampled,
        output_tokens=sampled,
        weight_versions=_spans(dialogue),
        routed_experts=_routes(dialogue),
        metadata=metadata,
    )


def _routes(dialogue: Sequence[TrainingText]) -> np.ndarray | None:
    """Experts of each token in the call that computed it first, up to a call that does not say them."""
    parts: list[np.ndarray] = []
    known = 0
    for text in dialogue:
        if text.routed_experts is None:
            break
        parts.append(text.routed_experts[known:])
        known = max(known, len(text.routed_experts))
    return np.concatenate(parts) if parts else None


def _spans(dialogue: Sequence[TrainingText]) -> list[VersionSpan]:
    """Over the sampled tokens of all calls, with neighbours of one version made one."""
    spans: list[VersionSpan] = []
    offset = 0
    for text in dialogue:
        for version, start, stop in text.weight_versions:
            if spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1], offset + stop)
            else:
                spans.append((version, offset + start, offset + stop))
        offset += text.output_tokens
    return spans
