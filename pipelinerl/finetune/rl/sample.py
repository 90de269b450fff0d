"""One sample on its whole way: made from a `TrainingText` where it leaves the actor, packed by preprocess.

The actor's workers call `samples_of` for each rollout; a sample is validated there, and what is wrong with it
is one line that names it. Between the processes it is a record of the stream `actor`, guarded by a checksum.
`Sample.from_record` reads that record, and those of foreign writers and old recordings, which enter the same
way: therefore it validates. Behind it nobody looks into metadata. No torch here.
"""

import math
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import index
from typing import Any

import msgspec
import numpy as np

from pipelinerl.rollouts import MASKED_TOKEN_ID, RolloutOrigin, TrainingText, VersionSpan
from pipelinerl.situations import LARGEST, Labels, absent, emit_situations, fill_places, read_labels

UNSAMPLED = -1
"""Weight version of tokens that no engine sampled (prompts), and of those whose version nobody noted."""
ROUNDING = 0.01
"""Above 0, of a log-probability: more than any rounding of an engine makes."""
_NOT_CUT = frozenset({"stop", "content_filter"})
_NO_LOGPROBS = np.empty(0, np.float32)
_SHOWN = ("text", "n_predicted", "visual_features", "metadata")


class BadSample(ValueError):
    """Nobody can learn from a sample. The message names it and says why, `reason` is what is counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Sample(Labels, kw_only=True, eq=False):
    """The prompt and output of one call to the model, and what training needs to know about it.

    With L tokens of which N are labelled: input_ids and labels int32 `[L]` (MASKED_TOKEN_ID on the prompt),
    old_logprobs and ref_logprobs float32 `[N]`. weight_versions: spans (version, start, end) over the N
    labelled tokens, oldest first; empty where nobody noted any.
    """

    group_id: str
    rollout_index: int
    step_index: int
    input_ids: np.ndarray
    labels: np.ndarray
    old_logprobs: np.ndarray
    """Under the weights that sampled the tokens, at their temperature."""
    weight_versions: list[VersionSpan]
    reward: float = 0.0
    finished: bool = False
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    exact_versions: bool = True
    """False where the engine reported no versions and the spans are lower bounds."""
    routed_experts: np.ndarray | None = None
    """Experts of the first n <= L tokens, uint8 or uint16 `[n, layers, active]`; None: not known."""
    domain: str | None = None
    """Of the problem, where teachers are chosen by it."""
    shown: dict[str, Any] = {}  # noqa: RUF012 (a Struct copies it)
    """What people read and training does not: text, metadata. Stays with the actor's record."""

    # Written by preprocess.
    ref_logprobs: np.ndarray = _NO_LOGPROBS
    overflow: bool = False
    advantage: float = 0.0
    token_advantages: np.ndarray | None = None
    """Added to it for each label, float32 `[N]`: what a teacher says of the tokens; None: nothing."""
    group_tokens: float = 0.0
    """Mean tokens of a rollout of the group (`group_normalization`)."""
    loss_weight_scale: float = 1.0
    """Factor of the policy term on each token."""
    kl_weight_scale: float = 1.0

    @property
    def rollout(self) -> str:
        """The rollout's name in the accounting."""
        return f"{self.group_id}/{self.rollout_index}"

    @property
    def name(self) -> str:
        return f"{self.rollout}/{self.step_index}"

    @property
    def trainable_labels(self) -> int:
        """Labels that have a predictor: all but one on the first token."""
        return len(self.old_logprobs) - int(self.labels[0] != MASKED_TOKEN_ID)

    @property
    def oldest_version(self) -> int:
        return self.weight_versions[0][0] if self.weight_versions else UNSAMPLED

    @property
    def newest_version(self) -> int:
        return self.weight_versions[-1][0] if self.weight_versions else UNSAMPLED

    def is_cut(self, eos_token_ids: Collection[int] = ()) -> bool:
        """Whether generation was ended by a limit of length or context.

        Decided by the finish reason, then by `finished`, then by an end-of-sequence id among the labelled
        tokens. The prompt never decides: a template that contains that id would hide a cut answer.
        """
        reason = str(self.finish_reason or "").strip().lower()
        if reason == "length":
            return True
        if reason in _NOT_CUT or self.finished:
            return False
        return not any(bool((self.labels == eos).any()) for eos in eos_token_ids)

    def to_record(self) -> dict[str, Any]:
        """The record of the streams `actor` and `actor_test`: a dump of `TrainingText`, field by field."""
        own = msgspec.structs.asdict(self) | self.shown
        own |= {"logprobs": self.old_logprobs, "position": "pool" if self.pooled else "end"}
        if self.routed_experts is None:  # as of every dense model
            del own["routed_experts"]
        return {name: own[name] for name in TrainingText.model_fields if name in own}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Sample":
        """Read and validate a dump of `TrainingText`; lists are accepted where arrays are meant.

        Raises BadSample. Places that the writer left out are filled by `settle_group`.
        """
        metadata = metadata_of(record)
        group_id, rollout_index, step_index = identity_of(record)
        name = f"{group_id}/{rollout_index}/{step_index}"
        try:
            ids, labels = (_array(record[name], np.int32) for name in ("input_ids", "labels"))
            old_logprobs = _array(record["logprobs"], np.float32)
            spans = _spans(record, metadata, len(old_logprobs))
            reward = record.get("reward", 0.0)
            math.isfinite(reward)  # a number, not a word for one
        except (KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
            raise BadSample("malformed", f"sample {name}: {type(error).__name__} {error}") from None
        _check(ids, labels, old_logprobs, spans, reward, name)
        routes = record.get("routed_experts")
        _check_routes(routes, len(ids), name)
        try:
            said = read_labels(record, metadata, name)
        except ValueError as error:
            raise BadSample("bad_labels", str(error)) from None
        reason = record.get("finish_reason") or metadata.get("finish_reason")
        return cls(
            group_id=group_id,
            rollout_index=rollout_index,
            step_index=step_index,
            input_ids=ids,
            labels=labels,
            old_logprobs=old_logprobs,
            weight_versions=spans,
            reward=float(reward),
            finished=bool(record.get("finished")),
            finish_reason=None if absent(reason) else str(reason),
            routed_experts=routes,
            domain=None if absent(metadata.get("domain")) else str(metadata["domain"]),
            **said,
        )


def metadata_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record's metadata; nothing where there is none."""
    metadata = record.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def samples_of(
    texts: Sequence[TrainingText], origin: RolloutOrigin, frozen_version: int | None = None
) -> list[Sample]:
    """The samples of a rollout in step order; each text gets its origin into its metadata.

    `frozen_version`: version of the engines' weights where no trainer sends any, so that engines know of
    none. Raises ValueError naming the sample for anything the trainer could not learn from: arrays that
    disagree, numbers that are not finite, versions out of order, contradictory labels.
    """
    rollout = f"{origin.group_id}/{origin.rollout_index}"
    _check_whose(texts, origin, rollout)
    samples = []
    for step, (text, labels) in enumerate(zip(texts, emit_situations(texts, rollout), strict=True)):
        sampled = int(np.count_nonzero(text.labels != MASKED_TOKEN_ID))
        if frozen_version is not None:
            text.weight_versions = [(frozen_version, 0, sampled)]
            text.metadata.pop("exact_versions", None)  # an engine that names no weights still has these
        elif not text.weight_versions or text.weight_versions[-1][2] != sampled:
            # Not made from an engine's answer, or masked or joined since then: every token is at least as new
            # as the rollout's start.
            text.weight_versions = [(origin.version, 0, sampled)]
            text.metadata["exact_versions"] = False
        text.made_in = origin.group_id, origin.rollout_index
        text.metadata["group_id"] = origin.group_id
        text.metadata["step_index"] = step
        text.metadata["model_version"] = min(version for version, _, _ in text.weight_versions)
        _check(
            text.input_ids,
            text.labels,
            text.logprobs,
            text.weight_versions,
            text.reward,
            f"{rollout}/{step}",
        )
        _check_routes(text.routed_experts, len(text.input_ids), f"{rollout}/{step}")
        record = text.to_record()
        samples.append(
            Sample(
                group_id=origin.group_id,
                rollout_index=origin.rollout_index,
                step_index=step,
                input_ids=text.input_ids,
                labels=text.labels,
                old_logprobs=text.logprobs,
                ref_logprobs=text.ref_logprobs,
                weight_versions=text.weight_versions,
                reward=text.reward,
                finished=text.finished,
                finish_reason=text.finish_reason,
                prompt_tokens=text.prompt_tokens,
                output_tokens=text.output_tokens,
                exact_versions=text.metadata.get("exact_versions") is not False,
                routed_experts=text.routed_experts,
                shown={name: record[name] for name in _SHOWN},
                **msgspec.structs.asdict(labels),
            )
        )
    return samples


def _check_whose(texts: Sequence[TrainingText], origin: RolloutOrigin, rollout: str) -> None:
    """Whether each sample is one call of this rollout; raises BadSample.

    A sample that a policy kept from another problem would be trained on with this one's reward.
    """
    for step, text in enumerate(texts):
        if (made_in := text.made_in) is None:  # nobody noted whose it is
            continue
        if made_in != (origin.group_id, origin.rollout_index):
            raise BadSample(
                "foreign_text",
                f"sample {rollout}/{step}: it is one of rollout {made_in[0]}/{made_in[1]}; return those "
                "that this rollout has made",
            )
    if len({id(text) for text in texts}) < len(texts):
        raise BadSample(
            "duplicate_text", f"rollout {rollout}: training_texts holds one sample twice; return each once"
        )


def settle_group(samples: Iterable[Sample]) -> None:
    """Fill in the places that foreign writers leave out, over the samples of one group.

    Raises BadSample when a situation of the group mixes pooled and end-aligned samples, or a segment
    declares several lengths.
    """
    rollouts: dict[str, list[Sample]] = {}
    pooled: dict[str, bool] = {}
    for sample in samples:
        rollouts.setdefault(sample.rollout, []).append(sample)
        compared = sample.situation is not None and not sample.masked
        if compared and pooled.setdefault(str(sample.situation), sample.pooled) != sample.pooled:
            raise BadSample(
                "bad_labels",
                f"sample {sample.name}: situation {sample.situation!r} has both pooled and end-aligned ones",
            )
    for name, rollout in rollouts.items():
        in_order = sorted(rollout, key=lambda sample: sample.step_index)
        try:
            fill_places(in_order, name)
        except ValueError as error:
            raise BadSample("bad_labels", str(error)) from None


def identity_of(record: Mapping[str, Any]) -> tuple[str, int, int]:
    """(group_id, rollout_index, step_index) as the actor wrote them; raises BadSample without them."""
    metadata = metadata_of(record)
    group_id = record.get("group_id")
    rollout, step = metadata.get("rollout_index"), metadata.get("step_index")
    if not isinstance(rollout, int) or not isinstance(step, int) or rollout < 0 or step < 0:
        raise BadSample(
            "foreign_index",
            f"a sample of group {group_id} has rollout_index={rollout!r} and step_index={step!r} in its "
            "metadata, expected two integers >= 0; the actor writes them",
        )
    if group_id is None:
        raise BadSample("foreign_group", f"a sample of rollout {rollout} has no group_id")
    return str(group_id), rollout, step


def _array(values: Any, dtype: type[np.generic]) -> np.ndarray:
    """int32 or float32 in one dimension; TypeError, OverflowError or struct.error for anything else."""
    integers = dtype is np.int32
    if isinstance(values, list):  # of a foreign writer; twice as fast as numpy, and refuses fractions
        return np.frombuffer(struct.pack(f"{len(values)}{'i' if integers else 'f'}", *values), dtype)
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in ("iu" if integers else "fiu"):
        kind = "integers" if integers else "numbers"
        raise TypeError(f"expected {kind} in one dimension, got {array.dtype} of shape {array.shape}")
    converted = array.astype(dtype, copy=False)
    if integers and converted is not array and (converted != array).any():
        raise OverflowError("an id has more than 32 bits")
    return converted


def _spans(record: Mapping[str, Any], metadata: Mapping[str, Any], n_labels: int) -> list[VersionSpan]:
    spans = [(index(v), index(start), index(end)) for v, start, end in record.get("weight_versions") or []]
    version = metadata.get("model_version")
    if not spans and version is not None:
        return [(index(version), 0, n_labels)]
    return spans


def _check(
    ids: np.ndarray,
    labels: np.ndarray,
    old_logprobs: np.ndarray,
    spans: Sequence[VersionSpan],
    reward: float,
    name: str,
) -> None:
    """Whether anything can be learnt from it; raises BadSample."""
    if len(ids) != len(labels):
        raise BadSample("label_mismatch", f"sample {name}: {len(ids)} input_ids but {len(labels)} labels")
    learned = labels != MASKED_TOKEN_ID
    count = int(np.count_nonzero(learned))  # of short arrays twice as fast as any() and all()
    if count != len(old_logprobs):
        raise BadSample(
            "label_mismatch", f"sample {name}: {len(old_logprobs)} logprobs but {count} labelled tokens"
        )
    if np.count_nonzero((labels != ids) & learned):
        raise BadSample("label_mismatch", f"sample {name}: a label differs from the token that it labels")
    if count == 0 or (count == 1 and learned[0]):  # nothing predicts the first token
        raise BadSample(
            "no_labels", f"sample {name}: no label is learnt; leave such a sample out of training_texts"
        )
    if not math.isfinite(reward):
        raise BadSample("not_finite", f"sample {name}: reward is {reward}, expected a finite number")
    if abs(reward) > LARGEST:
        raise BadSample(
            "too_large",
            f"sample {name}: reward is {reward}, expected at most {LARGEST:g} in size, because gradients and "
            "their squares are float32; scale rewards down",
        )
    if np.count_nonzero(np.isfinite(old_logprobs)) != count:
        raise BadSample("not_finite", f"sample {name}: a log-probability is not finite")
    if (highest := float(old_logprobs.max())) > ROUNDING:
        raise BadSample(
            "too_large",
            f"sample {name}: a log-probability is {highest:g}, expected at most 0; pass what the engine said "
            "of the sampled tokens, and no loss or logit",
        )
    end = newest = 0
    for version, start, stop in spans:
        if start != end or stop <= start or version < newest:
            raise BadSample(
                "bad_versions",
                f"sample {name}: weight_versions {list(spans)} are not contiguous spans, oldest first",
            )
        end, newest = stop, version
    if spans and end != count:
        raise BadSample(
            "bad_versions", f"sample {name}: weight_versions cover {end} of {count} output tokens"
        )


def _check_routes(routes: Any, tokens: int, name: str) -> None:
    """Whether a record of routed experts, if there is one, can be that of these tokens; raises BadSample."""
    if routes is None:
        return
    fits = isinstance(routes, np.ndarray) and routes.ndim == 3 and routes.dtype in (np.uint8, np.uint16)
    if not fits or len(routes) > tokens or 0 in routes.shape[1:]:
        found = f"{routes.dtype} {routes.shape}" if isinstance(routes, np.ndarray) else type(routes).__name__
        raise BadSample(
            "bad_routes",
            f"sample {name}: routed_experts is {found}, expected uint8 or uint16 of at most {tokens} tokens, "
            "[tokens, layers, active]",
        )
