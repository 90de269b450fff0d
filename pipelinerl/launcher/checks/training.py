"""Batches, memory, buffers, rollouts: settings of the trainer and around it that contradict each other."""

import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from pipelinerl.config.machine import DerivedConfig
from pipelinerl.config.roles import DifficultyConfig
from pipelinerl.config.staleness import Staleness
from pipelinerl.config.tree import Config
from pipelinerl.finetune.rl.losses import declared

_HIGH_RATE, _HIGH_DECAY = 0.1, 1.0


def check(cfg: Config, derived: DerivedConfig | None, dry_run: bool = False) -> Iterator[str]:
    """Problems between the keys of trainer, preprocess and actor; `derived` is None if nothing was placed."""
    yield from _steps(cfg)
    if not dry_run and cfg.finetune.optim == "adamw_8bit" and find_spec("torchao") is None:
        yield (
            "finetune.optim=adamw_8bit: the package torchao is not installed; install the extra `torchao`, "
            "or set finetune.optim=adamw_torch"
        )
    yield from _sharding_keys(cfg)
    yield from _layers(cfg)
    if derived is not None:
        yield from _sharding(cfg, derived)
        yield from _buffers(cfg, derived)
    yield from _actor(cfg)


def remarks(cfg: Config) -> Iterator[str]:
    """What a run should hear of its trainer though it may go on: values that are allowed and seldom meant."""
    tune = cfg.finetune
    if cfg.seed < 0:
        yield f"seed={cfg.seed}: fixed like every seed; give each run its own for other random numbers"
    if "finetune" not in cfg.debug.roles:
        return
    for name in [name for name, count in Counter(cfg.train_dataset_names).items() if count > 1]:
        yield f"train_dataset_names: {name} is named several times, so its problems are drawn as often"
    if tune.learning_rate == 0:
        yield "finetune.learning_rate=0: no step changes the weights; give one above 0 to train"
    elif tune.learning_rate >= _HIGH_RATE:
        yield (
            f"finetune.learning_rate={tune.learning_rate:g}: a step moves each weight by about as much, "
            f"which ruins a model; rates are below {_HIGH_RATE:g}, for large models below 1e-4"
        )
    if tune.weight_decay > _HIGH_DECAY:
        yield (
            f"finetune.weight_decay={tune.weight_decay:g}: each step shrinks the matrices by the rate times "
            f"as much, {tune.weight_decay * tune.learning_rate:.2g} of their size; usual are 0 to 0.1"
        )
    if tune.lora.enabled and tune.lora.dropout and declared(tune.rl.policy_loss).compares:
        yield (
            f"finetune.lora.dropout={tune.lora.dropout:g}: engines drop nothing, so that importance ratios "
            "are those of the dropout too; set 0 unless you imitate"
        )
    warmup, steps = tune.num_warmup_steps, tune.max_train_steps
    if tune.lr_scheduler_type != "constant" and warmup >= steps and tune.learning_rate:
        yield (
            f"finetune.num_warmup_steps={warmup}: the run ends at finetune.max_train_steps={steps}, so that "
            f"the rate only rises, to {steps / (warmup + 1):.0%} of finetune.learning_rate; "
            "give fewer of the former"
        )


def _steps(cfg: Config) -> Iterator[str]:
    tune = cfg.finetune
    if cfg.attempts != tune.attempts:
        yield f"attempts={cfg.attempts}: finetune.attempts is {tune.attempts}; set finetune.attempts only"
    if tune.interrupt_train_steps > tune.max_train_steps:
        yield (
            f"finetune.interrupt_train_steps={tune.interrupt_train_steps}: beyond "
            f"finetune.max_train_steps={tune.max_train_steps}; lower it or set -1"
        )
    if cfg.watchdog.progress_deadline_s < cfg.actor.rollout_deadline_s:
        yield (
            f"watchdog.progress_deadline_s={cfg.watchdog.progress_deadline_s:g}: one rollout may take "
            f"actor.rollout_deadline_s={cfg.actor.rollout_deadline_s:g}; raise the former or lower the latter"
        )


def _sharding_keys(cfg: Config) -> Iterator[str]:
    on_cpu = cfg.hardware.kind == "cpu"
    if cfg.use_fsdp is True and cfg.use_deepspeed:
        yield "use_fsdp=true and use_deepspeed=true: two ways of sharding; choose one"
    if cfg.fsdp.param_dtype == "bf16" and not cfg.finetune.load_as_bf16:
        yield "fsdp.param_dtype=bf16: set finetune.load_as_bf16=true, which decides how weights compute"
    if cfg.fsdp.buffer_dtype == "bf16":
        yield "fsdp.buffer_dtype=bf16: buffers keep their type; set fp32"
    if cfg.use_deepspeed:
        yield from _deepspeed(cfg.deepspeed_config)
    for key in ("use_fsdp", "use_deepspeed"):
        if getattr(cfg, key) is True and on_cpu:
            yield f"{key}=true: sharding needs several GPUs; set {key}=false on a CPU"
    if cfg.fsdp.cpu_offload and on_cpu:
        yield "fsdp.cpu_offload=true: a CPU run is in host memory anyway; set fsdp.cpu_offload=false on a CPU"
    if cfg.fsdp.cpu_offload and cfg.use_deepspeed:
        yield "fsdp.cpu_offload=true and use_deepspeed=true: DeepSpeed's shards stay on the GPUs; choose one"


def _deepspeed(name: str) -> Iterator[str]:
    """A name that says more than a stage and bfloat16 is of a file with settings that nothing here reads."""
    stage = re.search("stage[123]", name)
    if stage is None:
        yield f"deepspeed_config={name}: names no stage; use one of stage1, stage2 or stage3"
    elif not re.fullmatch("(deepspeed_)?stage[123](_bf16)?", name):
        offload = ", or use_deepspeed=false use_fsdp=true fsdp.cpu_offload=true" if "offload" in name else ""
        yield (
            f"deepspeed_config={name}: only the stage is imitated here; "
            f"set deepspeed_config=deepspeed_{stage[0]}_bf16{offload}"
        )


def _layers(cfg: Config) -> Iterator[str]:
    """Recomputed and compiled layers."""
    tune, on_cpu = cfg.finetune, cfg.hardware.kind == "cpu"
    how = tune.gradient_checkpointing
    if how == "offload" and on_cpu:
        yield "finetune.gradient_checkpointing=offload: a CPU run is in host memory anyway; set true on a CPU"
    elif how in ("selective", "offload") and tune.reentrant_checkpointing:
        yield f"finetune.gradient_checkpointing={how}: needs finetune.reentrant_checkpointing=false"
    recomputes = how is not False and not (how == "auto" and on_cpu)
    if tune.lora.enabled and recomputes and tune.reentrant_checkpointing:
        yield "finetune.reentrant_checkpointing=true: no gradient passes frozen layers; set false with lora"
    if tune.compile is not True:
        return
    if on_cpu:
        yield "finetune.compile=true: layers are compiled for GPUs only; set finetune.compile=false on a CPU"
    elif not tune.load_as_bf16:
        yield "finetune.compile=true: float32 would compile each sample; set finetune.load_as_bf16=true"
    elif not tune.use_flash_attention:
        yield "finetune.compile=true: compiles for each sample; set finetune.use_flash_attention=true"


def _sharding(cfg: Config, derived: DerivedConfig) -> Iterator[str]:
    # Torch's Adafactor takes no shards; a lone rank has them in host memory only, whatever the keys say.
    sharding = cfg.sharding
    shards = sharding is not None and (derived.trainer_ranks > 1 or sharding.offload)
    if cfg.finetune.optim == "adafactor" and shards:
        key = "use_deepspeed" if cfg.use_deepspeed else "use_fsdp"
        key = "fsdp.cpu_offload" if cfg.fsdp.cpu_offload and not cfg.use_deepspeed else key
        yield (
            "finetune.optim=adafactor: cannot train a sharded policy; set finetune.optim=adamw_torch or lion "
            f"or {key}=false"
        )


def _buffers(cfg: Config, derived: DerivedConfig) -> Iterator[str]:
    pre, texts, admitted = (
        cfg.preprocess,
        derived.texts_per_step,
        cfg.staleness_with(derived).admitted,
    )
    if pre.dataset_buffer_size not in (0, pre.ring_buffer_size):
        yield (
            f"preprocess.dataset_buffer_size={pre.dataset_buffer_size}: must be 0 or equal to "
            f"preprocess.ring_buffer_size={pre.ring_buffer_size}"
        )
    elif pre.dataset_buffer_size % texts:
        yield (
            f"preprocess.dataset_buffer_size={pre.dataset_buffer_size}: not a multiple of the {texts} "
            f"samples of a step; set a multiple of {texts}"
        )
    if pre.dataset_buffer_size and cfg.pop_old_data and not cfg.staleness.bounded:
        yield "preprocess.dataset_buffer_size: never fills while old samples drop; set pop_old_data=false"
    if admitted is not None and pre.dataset_buffer_size > admitted:
        yield (
            f"preprocess.dataset_buffer_size={pre.dataset_buffer_size}: {cfg.staleness} admits at most "
            f"{admitted} samples, so it never fills; lower it or raise {Staleness.KEY}"
        )
    for key, expected in (("input", "actor"), ("output", "training_data")):
        if getattr(pre, key) != expected and not cfg.debug.mode:
            yield f"preprocess.{key}={getattr(pre, key)}: no other role uses this topic; set {expected}"
    if cfg.finetune.input != pre.output:
        yield f"finetune.input={cfg.finetune.input}: preprocess writes {pre.output}; make them equal"


def _actor(cfg: Config) -> Iterator[str]:
    actor = cfg.actor
    if actor.rollout_retry_initial_delay_s > actor.rollout_retry_max_delay_s:
        yield (
            f"actor.rollout_retry_initial_delay_s={actor.rollout_retry_initial_delay_s}: above "
            f"actor.rollout_retry_max_delay_s={actor.rollout_retry_max_delay_s}; lower the first"
        )
    for domain, weight in (actor.domain_mix or {}).items():
        if weight < 0:
            yield f"actor.domain_mix.{domain}={weight}: weights are at least 0"
    if actor.domain_mix and not any(weight > 0 for weight in actor.domain_mix.values()):
        yield "actor.domain_mix: every weight is 0; give at least one domain a positive weight"
    right = cfg.rewards.correct_answer_finished
    for status in ("wrong_answer", "no_answer", "unparsable"):  # equal ones reward the form of an answer
        if (paid := getattr(cfg.rewards, f"{status}_finished")) > right:
            yield (
                f"rewards.{status}_finished={paid:g}: more than a right answer gets "
                f"(rewards.correct_answer_finished={right:g}), so right answers would be unlearned; "
                "lower it or raise that"
            )
    if actor.difficulty_aware_penalty.enabled and cfg.rewards.buffer_tokens == 0:
        yield "actor.difficulty_aware_penalty.enabled=true: nothing to scale; set rewards.buffer_tokens"
    if actor.sampling == "difficulty":
        yield from _band(actor.difficulty)


def _band(difficulty: DifficultyConfig) -> Iterator[str]:
    low, high = difficulty.low, difficulty.high
    if low > high:
        yield f"actor.difficulty.low={low:g}: above actor.difficulty.high={high:g}; lower the first"
    for name, end in (("low", low), ("high", high)):
        if difficulty.metric == "success" and not 0 <= end <= 1:
            yield (
                f"actor.difficulty.{name}={end:g}: success lies between 0 and 1; give an end there, or name "
                "another metric in actor.difficulty.metric"
            )
