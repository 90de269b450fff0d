"""Settings of the domain (the block `privacy_hopqa`), with the published recipe's names and defaults.

The domain's hooks check them at the start of a run; the agent and the rewards read them from then on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from domains.blocks import Block, block_of

REPLACED_KEYS = {
    "llm_provider": "not needed: every call goes to the rollout policy",
    "verbose": "not needed: use trace_fraction",
    "browsecomp_enabled": "use no_web",
    "retrieval_context_mode": "not needed: documents are always windowed",
    "reader_excerpt_chars": "use reader_window_chars",
    "browsecomp_max_chars": "use retrieval_source_chars",
    "large_parent_window_policy": "use large_parent_top_windows and large_parent_neighbor_windows",
    "parallel_searches": "use max_parallel_retrieval_actions",
    "log_prompts": "use trace_fraction",
    "semantic_threshold": "use local_search_threshold",
}
DATASET_KEYS = (
    "final_dataset_path",
    "final_train_dataset_path",
    "final_val_dataset_path",
    "final_test_dataset_path",
)
_REPLACED_PREFIXES = {
    "use_remote_": "not needed: searches always go to the retrieval server",
    "local_index_": "not needed: the retrieval server indexes task_data_root",
    "embedding_": "not needed: retrieval is BM25",
}


class LeakageSettings(Block):
    """Which private questions the leakage evaluation asks."""

    questions: Literal["chain", "task"] = "chain"


class PrivacyHopQASettings(Block):
    """All keys of the block. Lengths are characters unless a name says tokens; times are seconds."""

    # Data. Without any dataset path a world is generated from `world`.
    final_dataset_path: str | None = None
    final_train_dataset_path: str | None = None
    final_val_dataset_path: str | None = None
    final_test_dataset_path: str | None = None
    task_data_root: str | None = None
    web_corpus_path: str | None = None
    max_examples: PositiveInt | None = None
    world: dict[str, Any] = Field(default_factory=lambda: {"seed": 0, "size": "small"})

    # Services. A null address starts the embedded one.
    helper_service_url: str | tuple[str, ...] | None = None
    """A retrieval service that runs already, `http://HOST:PORT`, or a list of servers over the same data; all
    are asked for the chains' tasks and pages before a run starts. Their token is the environment's
    RETRIEVAL_TOKEN."""
    privacy_reward_service_url: str | None = None
    helper_timeout_s: PositiveFloat = 180.0
    helper_outage_s: NonNegativeFloat = 60.0
    """How long the retrieval service may be away before a search, and with it its rollout, fails: searches
    are repeated after 0.5, 1 and then every 2 s. Enough for a server of the run to be started again."""
    retrieval_workers: PositiveInt = 1
    """Processes of each retrieval server that the launcher starts; one index, one port."""
    retrieval_replicas: PositiveInt = 1
    """Retrieval servers that the launcher starts, each with its own port and log, over one index; searches
    are spread over them, and one that is dead is left out."""
    privacy_reward_timeout_s: PositiveFloat = 30.0
    scoring_server_options: list[str] | None = None
    """Null: the deterministic scorer in each worker. A list starts a scoring server with these options."""

    # Context, in tokens.
    generation_context_limit_tokens: PositiveInt = 16384
    generation_context_margin_tokens: NonNegativeInt = 128
    hop_plan_max_tokens: PositiveInt = 4096
    doc_choose_max_tokens: PositiveInt = 4096
    doc_read_max_tokens: PositiveInt = 4096
    hop_resolve_max_tokens: PositiveInt = 4096

    # Loop.
    max_iterations: PositiveInt = 14
    iteration_budget_per_hop: PositiveInt = 2
    hop_plan_attempts: PositiveInt = 1
    max_parallel_retrieval_actions: PositiveInt = 3
    retrieval_top_k: int = Field(5, ge=1, le=50)
    browsecomp_top_k: int | None = Field(None, ge=1, le=50)
    choose_top_k: PositiveInt = 3
    max_candidate_cards: PositiveInt = 20
    max_parallel_doc_reads: PositiveInt = 5
    max_history_entries: PositiveInt = 10
    local_search_threshold: NonNegativeFloat = 0.0
    reader_min_answer_confidence: float = Field(0.75, ge=0.0, le=1.0)
    no_web: bool = False
    constrained_resolver: bool = False
    enable_generic_retrieval_fallback: bool = False
    enable_local_search_bootstrap: bool = False
    stop_after_incorrect_hop: bool = False

    # Windows.
    reader_window_chars: PositiveInt = 10_000
    reader_window_overlap_chars: NonNegativeInt = 1_000
    retrieval_chunk_chars: PositiveInt = 4_000
    retrieval_chunk_overlap_chars: NonNegativeInt = 800
    retrieval_source_chars: NonNegativeInt = 0
    """Of each hit, private or public; 0: as many as the service gives (ours 200,000)."""
    retrieval_answer_chars: NonNegativeInt = 0
    """Of all hits of a search together; 0: as many as the service gives (ours 1,000,000)."""
    read_all_windows_max_count: NonNegativeInt = 5
    large_parent_top_windows: PositiveInt = 4
    large_parent_neighbor_windows: NonNegativeInt = 1
    large_parent_max_read_windows: NonNegativeInt = 0
    max_windows_per_parent: NonNegativeInt = 0
    chooser_excerpt_chars: PositiveInt = 500

    # Rewards.
    capture_mode: Literal["planning_only", "all_calls"] = "planning_only"
    reward_mode: Literal["hop_accuracy", "all_hops_correct"] = "hop_accuracy"
    training_reward_mode: Literal["outcome", "hop_step_situational"] = "outcome"
    answer_match_mode: Literal["exact_or_f1", "accepted_exact", "f1_or_substring"] = "exact_or_f1"
    answer_match_f1_threshold: float = Field(0.75, ge=0.0, le=1.0)
    short_answers: bool = False
    """Answers go through `domains.short_answers` first: `U.S.` is `US`, `the Nile` is `Nile`."""
    hop_step_source_bonus: NonNegativeFloat = 0.25
    hop_step_doc_bonus: NonNegativeFloat | None = None
    zero_error_step_reward: bool = True
    privacy_reward_weight: NonNegativeFloat = 0.0
    privacy_reward_threshold: float = Field(0.5, ge=0.0, le=1.0)
    privacy_reward_context_hops: PositiveInt = 2

    # Additions of this project.
    prompt_set: Literal["full", "compact"] = "full"
    planner_privacy_prompt: bool = False
    answer_context: Literal["agent", "gold"] = "agent"
    privacy_facts: Literal["chain", "task"] = "chain"
    on_stage_error: Literal["end_rollout", "spend_iteration"] = "end_rollout"
    max_read_rounds: PositiveInt = 8
    rollout_timeout_s: PositiveFloat = 1800.0
    audit_required: bool = True
    trace_fraction: float = Field(0.0, ge=0.0, le=1.0)
    anchor_stages: bool = False
    anchor_max_texts: PositiveInt = 4
    train_stopping: bool = True
    empty_plan_pool: Literal["memory", "retrieved"] = "memory"
    leakage: LeakageSettings = Field(default_factory=LeakageSettings)

    @model_validator(mode="after")
    def _check_pairs(self) -> "PrivacyHopQASettings":
        for size, overlap in (
            ("reader_window_chars", "reader_window_overlap_chars"),
            ("retrieval_chunk_chars", "retrieval_chunk_overlap_chars"),
        ):
            if getattr(self, overlap) >= getattr(self, size):
                raise ValueError(
                    f"{overlap}={getattr(self, overlap)} must be smaller than {size}={getattr(self, size)}"
                )
        if self.anchor_stages and self.training_reward_mode != "hop_step_situational":
            raise ValueError("anchor_stages=true needs training_reward_mode=hop_step_situational")
        if self.anchor_stages and self.capture_mode != "all_calls":
            raise ValueError(
                "anchor_stages=true keeps reads and resolutions; it needs capture_mode=all_calls"
            )
        if self.prompt_set == "compact":
            self._check_compact()
        return self

    def _check_compact(self) -> None:
        if self.max_candidate_cards > 9:
            raise ValueError(
                f"prompt_set=compact names documents d1 to d9: "
                f"max_candidate_cards={self.max_candidate_cards} must be at most 9"
            )
        if self.constrained_resolver:
            raise ValueError(
                "constrained_resolver=true needs prompt_set=full: the compact resolver is short already"
            )

    @property
    def retrieval_urls(self) -> tuple[str, ...]:
        """Addresses of the retrieval servers; empty until the launcher has filled them in."""
        named = self.helper_service_url
        return (named,) if isinstance(named, str) else named or ()

    @property
    def web_top_k(self) -> int:
        """Hits asked of the web search."""
        return self.retrieval_top_k if self.browsecomp_top_k is None else self.browsecomp_top_k

    @property
    def doc_bonus(self) -> float:
        """Bonus of a plan that retrieves the gold document."""
        return self.hop_step_source_bonus if self.hop_step_doc_bonus is None else self.hop_step_doc_bonus

    @property
    def situational(self) -> bool:
        """Whether texts are rewarded by situation instead of by the outcome of their rollout."""
        return self.training_reward_mode == "hop_step_situational"

    @property
    def gold_switches(self) -> dict[str, bool]:
        """Settings that let gold answers influence a rollout, and whether they are on."""
        return {
            "answer_context=gold": self.answer_context == "gold",
            "stop_after_incorrect_hop=true": self.stop_after_incorrect_hop,
        }

    @property
    def dataset_paths(self) -> dict[str, Any]:
        """The chain files that are named by keys, by key."""
        return {key: path for key in DATASET_KEYS if (path := getattr(self, key))}

    def stage_max_tokens(self, stage: str) -> int:
        """Output cap in tokens of a stage named `hop_plan`, `doc_choose`, `doc_read` or `hop_resolve`."""
        return int(getattr(self, f"{stage}_max_tokens"))


def dataset_names(cfg: Mapping[Any, Any]) -> list[str]:
    """The datasets of training and evaluation: names of chain files, or their paths."""
    return [*(cfg.get("train_dataset_names") or ()), *(cfg.get("test_dataset_names") or ())]


def has_data(cfg: DictConfig, settings: PrivacyHopQASettings) -> bool:
    """Whether chain files are named, by keys or as datasets; otherwise a world is to be generated."""
    return bool(settings.dataset_paths) or any(Path(name).is_file() for name in dataset_names(cfg))


def remedy_for(key: str) -> str | None:
    """Why a key of other configurations is no setting here and what replaces it; None for any other key."""
    found = REPLACED_KEYS.get(key) or next(
        (text for prefix, text in _REPLACED_PREFIXES.items() if key.startswith(prefix)), None
    )
    return f"is not a setting here; {found}" if found else None


def settings_of(cfg: DictConfig) -> PrivacyHopQASettings:
    """The domain's block of the tree as it is now. Raises ValueError with one line."""
    return block_of(cfg, "privacy_hopqa", PrivacyHopQASettings, remedy_for)
