"""Settings of the domain (the block `raro`) and the checks that need nothing else.

The hooks in `domain.py` check them before a run starts, every worker reads them.
"""

from collections.abc import Iterator
from typing import Any, Literal

from omegaconf import DictConfig
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from domains.blocks import Block, block_of

KEY = "raro"
TWICE = "2 * "
"""Before a key that counts for both answers of a pair."""


class PolicySettings(Block):
    """The policy's call."""

    max_tokens: PositiveInt = 2048
    """Longest completion, and the constant that its token losses are divided by."""
    template_tokens: PositiveInt = 120
    """Tokens of the prompt besides the question, for the context budget."""


class CriticSettings(PolicySettings):
    """The critic's calls: the same keys; its prompt holds two answers as well."""

    max_tokens: PositiveInt = 1024
    template_tokens: PositiveInt = 160


class ReplaySettings(Block):
    """The shared buffer of earlier pairs."""

    fraction: float = Field(0.5, ge=0.0, lt=1.0)
    """Share of critic groups that judge a pair from the buffer."""
    capacity: PositiveInt = 20_000
    """Pairs kept."""
    mode: Literal["fifo", "reservoir"] = "fifo"
    """Which pair makes room: the oldest, or a uniformly drawn one."""
    backend: Literal["sqlite", "redis"] = "sqlite"
    """A file that all workers share, or a server."""
    path: str | None = None
    """SQLite file on a local disk, or redis://...; null = `<output_dir>/raro/replay.sqlite3`."""
    checkpoint_every_s: PositiveFloat = 60.0
    """Least time between two backups beside the actor's snapshots."""


class RaroSettings(Block):
    """All keys of the block `raro`."""

    reward: Literal["critic", "verifier", "expert"] = "critic"
    """Source of the signal; `expert` trains on the experts' answers themselves (with policy_loss=sft)."""
    tau_pol: float = Field(0.6, ge=0.0, le=1.0)
    """Policy's reward for a tie."""
    tau_crit: float = 0.55
    """Critic's reward for a tie, in (0.5, 1]."""
    allow_degenerate_tau: bool = False
    """Accept any `tau_crit` (ablations)."""
    allow_tie: bool = True
    """false: a tie counts as no verdict (ablation)."""
    critic_group_size: int = Field(16, ge=2)
    """Verdicts per judged pair."""
    critic_parse_failure: Literal["mask", "zero"] = "mask"
    """A verdict that cannot be read is left out, or earns the critic 0 (ablation)."""
    overlength: Literal["mask", "zero"] = "mask"
    """A policy completion that is cut off is left out, or earns 0 like one without an answer. Left out, ever
    longer attempts cost nothing. Cut-off verdicts are always left out."""
    answerless: Literal["zero", "mask"] = "zero"
    """A completion without an answer earns 0, or is left out."""
    short_answers: bool = False
    """Results of `raro.data.source=jsonl` are compared by `domains.short_answers`: `U.S.` is `US`."""
    max_answer_tokens: PositiveInt = 256
    """Longest answer of the policy and, before a critic, of the expert."""
    max_question_tokens: PositiveInt = 256
    """Longest question, for the context budget."""
    max_critic_requests: PositiveInt = 128
    """Critic requests in flight per worker."""
    prompt_set: Literal["full", "tiny"] = "full"
    """Folder of templates below `prompts/`."""
    policy: PolicySettings = PolicySettings()
    """The policy's call."""
    critic: CriticSettings = CriticSettings()
    """The critic's calls."""
    replay: ReplaySettings = ReplaySettings()
    """The shared buffer of earlier pairs."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Where questions come from; keys in `domains.raro.data.DataSettings`."""

    @model_validator(mode="after")
    def _tau_is_worth_playing(self) -> "RaroSettings":
        if not self.allow_degenerate_tau and not 0.5 < self.tau_crit <= 1.0:
            raise ValueError(
                f"tau_crit={self.tau_crit:g} must lie in (0.5, 1]: a tie must beat a guess; "
                "set allow_degenerate_tau=true to run it nevertheless"
            )
        return self


def context_problems(settings: RaroSettings, context: int, key: str) -> Iterator[str]:
    """Roles whose longest call does not fit into `context` tokens; `key` names the limit."""
    s = settings
    terms = {
        "policy": {
            "policy.template_tokens": s.policy.template_tokens,
            "max_question_tokens": s.max_question_tokens,
            "policy.max_tokens": s.policy.max_tokens,
        }
    }
    if s.reward == "critic":
        terms["critic"] = {
            "critic.template_tokens": s.critic.template_tokens,
            "max_question_tokens": s.max_question_tokens,
            f"{TWICE}max_answer_tokens": 2 * s.max_answer_tokens,
            "critic.max_tokens": s.critic.max_tokens,
        }
    for role, parts in terms.items():
        needed, largest = sum(parts.values()), max(parts, key=parts.__getitem__)
        if needed > context:
            yield (
                f"{key}={context}: a {role} call needs up to {needed} tokens; raise it to {needed} or lower "
                f"{KEY}.{largest.removeprefix(TWICE)} ({largest} = {parts[largest]}, the largest part)"
            )


def settings_of(cfg: DictConfig) -> RaroSettings:
    """The domain's block of the tree as it is now. Raises ValueError with one line."""
    return block_of(cfg, KEY, RaroSettings)
