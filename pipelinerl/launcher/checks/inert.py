"""Keys that were set and that this run would not read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipelinerl.config.tree import Config
from pipelinerl.config.variants import REGISTRIES
from pipelinerl.domain import Domain
from pipelinerl.engines.kind import engine_kind
from pipelinerl.finetune.rl.losses import declared
from pipelinerl.launcher.checks.dotted import as_written
from pipelinerl.weights.transports.base import not_ahead, weights_ahead


@dataclass(frozen=True)
class Inert:
    """A key, or all keys below it, without effect in some runs."""

    key: str
    when: Callable[[Config], bool]
    because: str | Callable[[Config], str]
    """What such a run does, and what to set instead."""
    but: str = ""
    """The key below it that is read nevertheless."""

    def said(self, cfg: Config) -> str:
        """The reason for this run."""
        return self.because if isinstance(self.because, str) else self.because(cfg)


UNREAD: dict[str, str] = {
    "actor.problem_queue_size": "problems are drawn when a rollout may start; leave it out",
    "preprocess.raw_queue_size": "groups are read when they are needed; leave it out",
    "preprocess.input_queue_size": "groups are read when they are needed; leave it out",
    "preprocess.output_queue_size": "steps are written when they are complete; leave it out",
    "finetune.use_safetensors": "checkpoints are always safetensors; leave it out",
}
"""Keys of upstream that no run reads."""


def _on_cpu(cfg: Config) -> bool:
    return cfg.hardware.kind == "cpu"


def _imitates(cfg: Config) -> bool:
    rl = cfg.finetune.rl
    return not declared(rl.policy_loss).compares and not rl.filter_zero_advantage_groups


def _switched_off(switch: str, because: str) -> Inert:
    """The keys beside a switch, while that is off."""
    return Inert(switch.rpartition(".")[0], lambda cfg: not _value(cfg, switch), because, but=switch)


CONDITIONAL = (  # what belongs to a variant is declared there
    *(
        Inert(f"world.{name}", _on_cpu, "a CPU has no devices to divide; use engine.count")
        for name in ("actor_fraction", "finetune_fraction", "share_device")
    ),
    Inert(
        "engine.min_alive",
        lambda c: "actor_llm" not in c.debug.roles or c.debug.use_existing_llms,
        "no engine is started; leave it out",
    ),
    Inert("engine.per_card", _on_cpu, "a CPU has no cards; use engine.count"),
    Inert("hardware.devices", _on_cpu, "a CPU run uses no GPU; use hardware=gpu"),
    *(
        Inert(
            f"finetune.{name}",
            lambda c: not c.finetune.optim.startswith("adamw"),
            "this optimizer has its own constants; set finetune.optim=adamw_torch",
        )
        for name in ("adam_beta1", "adam_beta2", "adam_epsilon")
    ),
    Inert(
        "finetune.num_warmup_steps",
        lambda c: c.finetune.lr_scheduler_type == "constant" and c.finetune.num_warmup_steps > 0,
        "a constant rate has no warm-up; set finetune.lr_scheduler_type=constant_with_warmup",
    ),
    Inert(
        "finetune.rl.divide_advantage_by_std",
        # The filter of groups looks at the size of advantages also where the loss reads none.
        lambda c: _imitates(c) and c.finetune.rl.divide_advantage_by_std,
        lambda c: f"finetune.rl.policy_loss={c.finetune.rl.policy_loss} reads no advantage; leave it out",
    ),
    Inert(
        "finetune.rl.correction",
        lambda c: c.finetune.rl.correction.mode == "off",
        "nothing is corrected; set finetune.rl.correction.mode",
        but="finetune.rl.correction.mode",
    ),
    Inert(
        "finetune.rl.correction.low",
        lambda c: c.finetune.rl.correction.mode == "truncate",
        "truncate has an upper bound only; set finetune.rl.correction.mode=clip",
    ),
    *(
        Inert(
            f"finetune.rl.epsilon_{side}",
            lambda c: c.finetune.rl.correction.mode != "off" and c.finetune.rl.correction.proximal,
            "with finetune.rl.correction.proximal=true the loss's own ratio is 1, since a sample is trained "
            f"once; set finetune.rl.correction.{side}",
        )
        for side in ("low", "high")
    ),
    Inert(
        "finetune.share_prefixes",
        lambda c: c.finetune.share_prefixes and not c.finetune.seq_packing,
        "with one sample in a row there is nothing to share; set finetune.seq_packing=true",
    ),
    Inert("finetune.cuda_empty_cache", _on_cpu, "memory of a CPU is not cached by torch; leave it out"),
    Inert("finetune.use_flash_attention", _on_cpu, "a CPU has no variable-length attention; leave it out"),
    _switched_off(
        "finetune.memory_debug.enabled", "no memory is reported; set finetune.memory_debug.enabled=true"
    ),
    Inert(
        "preprocess.n_workers",
        lambda c: c.world.preprocessor_fraction == 0 and not c.teacher.urls,
        "no reference engine scores samples; set world.preprocessor_fraction",
    ),
    Inert(
        "teacher",
        lambda c: "preprocessor" not in c.debug.roles,
        lambda c: f"debug.mode={c.debug.mode} computes no advantages; leave it out",
    ),
    *(
        Inert(
            f"teacher.{name}",
            lambda c: not c.teacher.places,
            "there is no teacher; set teacher.model_path or teacher.url",
        )
        for name in ("weight", "with_rewards")
    ),
    Inert(
        "teacher.deadline_s",
        lambda c: not c.teacher.urls,
        "preprocess scores by itself; set teacher.url",
    ),
    Inert(
        "finetune.rl.divide_advantage_by_std",
        lambda c: c.teacher.alone and c.finetune.rl.divide_advantage_by_std,
        "rewards have no part in the advantages; set teacher.with_rewards=true",
    ),
    Inert("accelerate_config", _on_cpu, "one process trains on a CPU; leave it null"),
    Inert(
        "weights.ahead",
        lambda c: not engine_kind(c).ahead or c.weights.ahead != weights_ahead(c),
        not_ahead,
    ),
    Inert(
        "weights.lora",
        lambda c: not c.finetune.lora.enabled,
        "all weights are trained; set finetune.lora.enabled=true",
    ),
    Inert("fsdp", lambda c: c.sharding is None, "nothing is sharded; set use_fsdp=true"),
    Inert("deepspeed_config", lambda c: not c.use_deepspeed, "nothing is sharded; set use_deepspeed=true"),
    _switched_off("wandb.use_wandb", "wandb.use_wandb=false"),
    Inert("actor.difficulty", lambda c: c.actor.sampling == "uniform", "set actor.sampling=difficulty"),
    _switched_off(
        "actor.difficulty_aware_penalty.enabled", "set actor.difficulty_aware_penalty.enabled=true"
    ),
    _switched_off("finetune.lora.enabled", "all weights are trained; set finetune.lora.enabled=true"),
    Inert(
        "test_llm",
        lambda c: not c.evaluates,
        lambda c: (
            "nothing is evaluated; "
            + ("set eval_at_end=true" if c.test_dataset_names else "name test_dataset_names")
        ),
    ),
    Inert("eval_at_end", lambda c: not c.test_dataset_names, "nothing is evaluated; name test_dataset_names"),
    Inert(
        "eval_every_n_versions",
        lambda c: c.debug.evaluates_only,
        "debug.mode=evaluate evaluates once; leave it out",
    ),
    Inert("bootstrap", lambda c: True, "only python -m pipelinerl.bootstrap reads it"),
)

POLICY_KEYS = ("rewards", "actor.discount_factor", "actor.system_prompt", "actor.task_template")
"""Keys that only a rollout policy reads."""


def check(cfg: Config, given: Sequence[str], domain: Domain) -> Iterator[str]:
    """Problems with keys that the command line set; `domain` says which keys of policies it reads."""
    for key in dict.fromkeys(given):
        because = next(_reasons(key, cfg, domain), None)
        if because is not None:
            yield f"{key}={_shown(cfg, key)}: has no effect here: {because}"


def left_over(cfg: Config) -> list[str]:
    """`key=value` of keys that no run reads and that differ from their default, wherever they were set."""
    plain = Config()
    return [f"{key}={_shown(cfg, key)}" for key in UNREAD if _value(cfg, key) != _value(plain, key)]


def _reasons(key: str, cfg: Config, domain: Domain) -> Iterator[str]:
    yield from (because for parent, because in UNREAD.items() if _below(key, parent))
    for inert in CONDITIONAL:
        if _below(key, inert.key) and key != inert.but and inert.when(cfg):
            yield inert.said(cfg)
    for variants in REGISTRIES:
        ignored = variants.of(cfg).ignores
        yield from (because for parent, because in ignored.items() if _below(key, parent))
    scaled = cfg.actor.difficulty_aware_penalty.enabled and key == "rewards.buffer_tokens"
    read = scaled or domain.policy_keys is None or _below(key, *domain.policy_keys)
    if _below(key, *POLICY_KEYS) and not read:
        yield f"the rollout policy of {cfg.domain_name or 'this domain'} does not read it"


def _below(key: str, *parents: str) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)


def _value(cfg: Config, key: str) -> Any:
    value: Any = cfg.model_dump(mode="json", by_alias=True)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _shown(cfg: Config, key: str) -> str:
    value = _value(cfg, key)
    return "..." if isinstance(value, dict | list) else as_written(value)
