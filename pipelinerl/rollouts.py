"""What a domain returns: samples, metrics and the rollout that holds them."""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    model_validator,
)

MASKED_TOKEN_ID = -100
"""Label of a token that is not learnt (the prompt)."""


def _to_array(dtype: type[np.generic]) -> Callable[[Any], np.ndarray]:
    def convert(value: Any) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype == dtype and value.ndim == 1:
            return np.ascontiguousarray(value)
        array = np.asarray(value if value is not None else [])
        if array.ndim != 1:
            raise ValueError(f"expected one dimension, got shape {array.shape}")
        if array.size and dtype is np.int32 and not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"expected integers, got {array.dtype}")
        return np.ascontiguousarray(array, dtype=dtype)

    return convert


_listed = PlainSerializer(lambda array: array.tolist(), when_used="json")
Int32Array = Annotated[np.ndarray, BeforeValidator(_to_array(np.int32)), _listed]
Float32Array = Annotated[np.ndarray, BeforeValidator(_to_array(np.float32)), _listed]


def _none_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


OptionalFloat = Annotated[float | None, BeforeValidator(_none_if_nan)]


def _routes(value: Any) -> np.ndarray | None:
    if value is None:
        return None
    array = np.asarray(value)
    if isinstance(value, list) and array.size and array.dtype.kind == "i" and array.min() >= 0:  # from JSON
        array = array.astype(np.uint8 if array.max() <= 255 else np.uint16)
    if array.ndim != 3 or array.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"expected uint8 or uint16 of [tokens, layers, active], got {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array)


_listed_routes = PlainSerializer(lambda array: None if array is None else array.tolist(), when_used="json")
Routes = Annotated[np.ndarray | None, BeforeValidator(_routes), _listed_routes]
"""Experts that each token went to, uint8 or uint16 `[tokens, layers, active]`; None where nobody knows."""
OptionalStr = Annotated[str | None, BeforeValidator(_none_if_nan)]
VersionSpan = tuple[int, int, int]
"""(version, start, end): output tokens start..end-1 were sampled by weights of that version."""


class TrainingText(BaseModel):
    """One sequence to learn from: the prompt and output of one call to the model.

    Token arrays are int32 `[tokens]` (prompt, then output) and float32 `[output tokens]`; lists are
    accepted and stored as arrays. `situation` to `padding_reward` say what it is compared with and how much
    it weighs: section 1 of `docs/objective.md`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, validate_assignment=True)

    text: str
    """Prompt and output for people; never tokenised again to train."""
    n_predicted: int
    """Length of the output part of `text`, in characters."""
    reward: float = 0.0
    logprobs: Float32Array = Field(default_factory=lambda: np.empty(0, np.float32))
    """Log-probabilities of the labelled tokens under the policy that sampled them, at its temperature."""
    ref_logprobs: Float32Array = Field(default_factory=lambda: np.empty(0, np.float32))
    input_ids: Int32Array = Field(default_factory=lambda: np.empty(0, np.int32))
    labels: Int32Array = Field(default_factory=lambda: np.empty(0, np.int32))
    """`input_ids` with `MASKED_TOKEN_ID` on the prompt."""
    group_id: str | None = None
    finished: bool = False
    """Generation ended by itself, not by a length limit."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    visual_features: dict[str, np.ndarray] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    weight_versions: list[VersionSpan] = Field(default_factory=list)
    """Spans over the output tokens."""
    situation: OptionalStr = None
    position: Literal["end", "pool"] = "end"
    role: str | None = None
    loss_weight: float = Field(default=1.0, ge=0.0)
    masked: bool = False
    padding_value: OptionalFloat = None
    padding_reward: OptionalFloat = None
    finish_reason: OptionalStr = None
    routed_experts: Routes = None
    """Of the first tokens of `input_ids`: the last sampled one went nowhere."""
    _made_in: tuple[str, int] | None = PrivateAttr(default=None)

    @property
    def made_in(self) -> tuple[str, int] | None:
        """Group and attempt that it was made in, also where a policy renames them; None: not known."""
        index = self.metadata.get("rollout_index")
        given = None if self.group_id is None or index is None else (self.group_id, index)
        return self._made_in or given

    @made_in.setter
    def made_in(self, rollout: tuple[str, int]) -> None:
        self._made_in = rollout
        self.group_id, self.metadata["rollout_index"] = rollout

    @property
    def prompt_text(self) -> str:
        return self.text[: len(self.text) - self.n_predicted]

    @property
    def output_text(self) -> str:
        return self.text[len(self.text) - self.n_predicted :]

    def to_record(self) -> dict[str, Any]:
        """A tree of plain values and arrays, the form in which a sample travels through streams."""
        record = dict(self.__dict__)
        record["weight_versions"] = [list(span) for span in self.weight_versions]
        record["metadata"] = plain(self.metadata, "metadata")
        if self.routed_experts is None:
            del record["routed_experts"]
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "TrainingText":
        return cls.model_validate(record)


class BaseMetrics(BaseModel):
    """Statistics of one rollout; subclasses or further names add float, int, bool or lists of them."""

    model_config = ConfigDict(extra="allow")

    reward: float
    success: bool | None
    """None where the domain has no notion of it: nothing is then shown or counted as success."""
    no_error: bool
    no_answer: bool


class RolloutResult(BaseModel):
    """One attempt on one problem.

    A rollout that failed has its reason in `failed` and no samples; one that has neither a reason nor samples
    counts as empty. `metrics` may be left out of a failed rollout only. Nothing reads further names, which
    are remarked.
    """

    model_config = ConfigDict(extra="allow")

    training_texts: list[TrainingText]
    metrics: BaseMetrics | None = None
    latency: float = 0.0
    """Seconds, for code written for upstream; nothing reads it, because the actor times rollouts itself."""
    model_version: int | None = None
    dataset_name: str | None = None
    group_id: str | None = None
    domain: str | None = None
    failed: str | None = None

    @model_validator(mode="after")
    def _failed_or_measured(self) -> "RolloutResult":
        if self.failed is not None and self.training_texts:
            raise ValueError(
                f"a failed rollout ({self.failed}) has {len(self.training_texts)} samples, expected 0"
            )
        if self.failed is None and self.metrics is None:
            raise ValueError("metrics are missing; only a rollout with `failed` set may leave them out")
        return self


@dataclass(frozen=True)
class RolloutOrigin:
    """Which attempt of which group is running; `version` was announced when it started."""

    group_id: str
    rollout_index: int
    version: int
    training: bool


ROLLOUT_ORIGIN: ContextVar[RolloutOrigin | None] = ContextVar("rollout_origin", default=None)
"""Set while an async rollout policy runs, for logs that must name their rollout; None outside a run."""


@dataclass(frozen=True)
class TrainingTextSummary:
    """Token counts of a rollout's samples."""

    prompt_tokens: list[int]
    output_tokens: list[int]
    overflow: bool
    num_turns: int


def apply_rollout_reward(training_texts: Sequence[TrainingText], reward: float) -> list[TrainingText]:
    """Give every sample of a rollout the rollout's reward; returns these samples."""
    texts = list(training_texts)
    for text in texts:
        text.reward = reward
    return texts


def rollout_has_overflow(training_texts: Sequence[TrainingText]) -> bool:
    """Whether any sample was cut off."""
    return any(not text.finished for text in training_texts)


def summarize_training_texts(training_texts: Sequence[TrainingText]) -> TrainingTextSummary:
    return TrainingTextSummary(
        prompt_tokens=[text.prompt_tokens for text in training_texts],
        output_tokens=[text.output_tokens for text in training_texts],
        overflow=rollout_has_overflow(training_texts),
        num_turns=len(training_texts),
    )


def plain(value: Any, where: str) -> Any:
    """`value` as a tree of None, bool, int, float, str, bytes, list, dict and arrays.

    Raises ValueError naming `where` for anything else, since records hold no pickles.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [plain(item, where) for item in sorted(value)]
    raise ValueError(
        f"{where} is a {type(value).__name__}; "
        "a record holds None, bool, int, float, str, bytes, lists, dicts and arrays"
    )
