"""Whether engines say the experts of tokens, so that the trainer replays them (`finetune.rl.routing`).

The launcher's plan asks once; the answer is in section `derived`, and the table of choices has the reason.
"""

from dataclasses import dataclass

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.choice import Choice
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.finetune.rl.losses import declared
from pipelinerl.launcher.decoder_shape import has_experts, model_config

KEY = "finetune.rl.routing"


@dataclass(frozen=True)
class RoutingChoice:
    """What the engines of this run say of a token's experts."""

    mixture: bool
    """Whether the model is known to have experts."""
    returned: bool
    because: str

    @property
    def choice(self) -> Choice:
        return Choice("derived.returns_routes", self.returned, self.because)


def choose_routing(cfg: Config, dry_run: bool) -> RoutingChoice:
    """For a placed run. Raises ConfigError for what is wanted and cannot be.

    A dry run, perhaps on another machine, asks no hub for the model's configuration.
    """
    wanted = cfg.finetune.rl.routing
    config = model_config(cfg.policy_path, ask_hub=not dry_run)
    if config is not None and not has_experts(config):
        aux = cfg.finetune.rl.router_aux_loss_coef
        if wanted == "replay" or aux:
            given = f"{KEY}=replay" if wanted == "replay" else f"finetune.rl.router_aux_loss_coef={aux:g}"
            raise ConfigError([f"{given}: the model at {cfg.policy_path} has no experts; leave it out"])
        return RoutingChoice(False, False, "a dense model")
    mixture = config is not None
    if wanted == "replay" and (reason := _divided(cfg)):  # also of records that were made before
        raise ConfigError([f"{KEY}=replay: {reason}, or set {KEY}=free"])
    if wanted == "free":
        return RoutingChoice(mixture, False, "given")
    if not cfg.jobs_of("actor_llm") or cfg.debug.evaluates_only:
        return RoutingChoice(mixture, False, "no engine of this run samples for a trainer")
    if problem := _divided(cfg) or engine_kind(cfg).routes_problem(cfg):
        if wanted == "replay":
            raise ConfigError([f"{KEY}=replay: {problem}, or set {KEY}=free"])
        return RoutingChoice(mixture, False, problem)
    if wanted == "replay":
        return RoutingChoice(mixture, True, "given")
    if not mixture:
        return RoutingChoice(False, False, f"the configuration of {cfg.policy_path} cannot be read")
    if not declared(cfg.finetune.rl.policy_loss).compares:
        return RoutingChoice(
            True, False, f"policy_loss={cfg.finetune.rl.policy_loss} compares with no engine"
        )
    if reason := engine_kind(cfg).routes_unproven(cfg):
        return RoutingChoice(True, False, reason)
    return RoutingChoice(True, True, "so that engine and trainer agree")


def may_replay(cfg: Config) -> bool:
    """Whether engines of a mixture will say the experts of tokens, as far as keys alone tell."""
    wanted = cfg.finetune.rl.routing
    return wanted == "replay" or (wanted == "auto" and not engine_kind(cfg).routes_unproven(cfg))


def _divided(cfg: Config) -> str:
    size = cfg.finetune.seq_parallel
    return f"finetune.seq_parallel={size} divides rows and not their experts; set it to 1" if size > 1 else ""
