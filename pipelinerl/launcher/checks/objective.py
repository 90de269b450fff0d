"""The objective: losses and estimators that do not exist, settings that contradict each other or idle."""

from collections.abc import Iterator

from pipelinerl.config.finetune import RLConfig
from pipelinerl.config.tree import Config
from pipelinerl.finetune.rl import advantages
from pipelinerl.finetune.rl.advantages import ESTIMATORS, AdvantageEstimator
from pipelinerl.finetune.rl.losses import LOSSES, declared
from pipelinerl.launcher.checks.dotted import as_written, dotted

_OF_SITUATIONS = ("pad_step_rewards_for_advantage", "step_reward_advantages")
"""Refused with a remedy of their own where an estimator does not read them."""


def check(cfg: Config) -> Iterator[str]:
    """Problems between the keys of `finetune.rl`, and with the functions that they name."""
    rl = cfg.finetune.rl
    yield from _functions(rl)
    if rl.pad_step_rewards_for_advantage and "pad_step_rewards_for_advantage" in _estimator(rl).ignores:
        yield (
            "finetune.rl.pad_step_rewards_for_advantage=true: pads situations; "
            "set finetune.rl.step_reward_advantages=true"
        )
    if rl.role_weights and rl.loss_scale_scope == "chunk":
        yield "finetune.rl.loss_scale_scope=chunk: role_weights need whole steps; set loss_scale_scope=batch"
    compares = rl.use_advantages and declared(rl.policy_loss).compares and not cfg.finetune.has_value_head
    if compares and cfg.attempts == 1 and not cfg.teacher.alone:
        yield "finetune.attempts=1: a lone rollout has advantage 0; use at least 2, or use_advantages=false"
    if rl.router_aux_loss_coef and cfg.finetune.reentrant_checkpointing:
        yield (
            f"finetune.rl.router_aux_loss_coef={rl.router_aux_loss_coef:g}: reads what routers computed, "
            "which finetune.reentrant_checkpointing=true does not keep; set "
            "finetune.reentrant_checkpointing=false"
        )
    if rl.router_aux_loss_coef and cfg.finetune.seq_parallel > 1:
        yield (
            f"finetune.rl.router_aux_loss_coef={rl.router_aux_loss_coef:g}: balances the experts of whole "
            f"rows, which finetune.seq_parallel={cfg.finetune.seq_parallel} divides; "
            "set finetune.seq_parallel=1"
        )
    correction, loss = rl.correction, rl.policy_loss
    bounded = correction.mode in ("clip", "truncate") and not correction.proximal
    if bounded and not declared(loss).reads_ratio:
        yield (
            f"finetune.rl.correction.mode={correction.mode}: policy_loss={loss} uses no ratio; "
            "set finetune.rl.correction.proximal=true, or mode=mask"
        )
    yield from _value_head(cfg)
    yield from _ineffective(cfg)
    yield from _reference(cfg)


def _value_head(cfg: Config) -> Iterator[str]:
    tune, rl = cfg.finetune, cfg.finetune.rl
    if rl.value_loss_coef > 0 and not tune.has_value_head:
        yield (
            f"finetune.rl.value_loss_coef={rl.value_loss_coef}: there is no value head; set it to 0, or "
            "finetune.model_class=causal-language-modeling-with-value-head"
        )
    if not tune.has_value_head:
        return
    if rl.value_loss_coef == 0:
        yield (
            f"finetune.model_class={tune.model_class}: nothing trains the head; "
            "set finetune.rl.value_loss_coef"
        )
    for key, needed in (
        ("use_advantages", True),
        ("divide_advantage_by_std", False),
        ("filter_zero_advantage_groups", False),
    ):
        if getattr(rl, key) != needed:
            given, wanted = as_written(not needed), as_written(needed)
            yield f"finetune.rl.{key}={given}: the advantage is reward minus value; set {key}={wanted}"


def _ineffective(cfg: Config) -> Iterator[str]:
    """Settings that differ from their default and that this run would not read."""
    rl = cfg.finetune.rl
    plain = RLConfig()
    unread = [(key, f"policy_loss={rl.policy_loss}") for key in declared(rl.policy_loss).ignores]
    ignored = [key for key in _estimator(rl).ignores if key not in _OF_SITUATIONS]
    unread += [(key, f"advantage_estimator={rl.estimator}") for key in ignored]
    if not rl.filter_zero_advantage_groups:
        unread.append(("zero_advantage_epsilon", "filter_zero_advantage_groups=false"))
    if rl.batch_size_normalization == "training_texts" and not rl.role_weights:
        unread.append(("loss_scale_scope", "batch_size_normalization=training_texts"))
    for key, cause in unread:
        default = getattr(plain, key)
        default = 0.0 if default is None else default  # null follows the first weight, which must be 0 itself
        if getattr(rl, key) not in (default, None):
            value, plain_value = as_written(getattr(rl, key)), as_written(default)
            yield f"finetune.rl.{key}={value}: has no effect with {cause}; leave it at {plain_value}"


def _reference(cfg: Config) -> Iterator[str]:
    rl, share = cfg.finetune.rl, cfg.world.preprocessor_fraction
    if share == 0:
        return
    if not rl.uses_reference:
        yield (
            f"world.preprocessor_fraction={share}: no KL term, so nothing is scored; "
            "set world.preprocessor_fraction=0 or finetune.rl.kl_coef"
        )
    if rl.temperature != 1:
        yield (
            f"world.preprocessor_fraction={share}: engines score at temperature 1, the policy samples at "
            f"{rl.temperature:g}; set world.preprocessor_fraction=0 to score inside preprocess"
        )


def _functions(rl: RLConfig) -> Iterator[str]:
    """Names that lead nowhere."""
    for key, name, known, what in (
        ("policy_loss", rl.policy_loss, LOSSES, "loss"),
        ("advantage_estimator", rl.advantage_estimator, ESTIMATORS, "estimator"),
    ):
        if name is None or name in known:
            continue
        if "." in name:
            yield from dotted(f"finetune.rl.{key}", name, f"the {what}")
        else:
            yield (
                f"finetune.rl.{key}={name}: no such {what}; use {', '.join(known)} "
                "or the dotted path of a function"
            )
    named = rl.advantage_estimator
    if named and rl.step_reward_advantages and "step_reward_advantages" in _estimator(rl).ignores:
        yield f"finetune.rl.advantage_estimator={named}: step_reward_advantages=true says situation; set one"


def _estimator(rl: RLConfig) -> AdvantageEstimator:
    return advantages.declared(rl.estimator)
