"""What the trainer takes from the configuration tree, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelinerl.config import Config, RLConfig
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.modeling.options import Checkpointing, LoraSettings, Sharding
from pipelinerl.run_state.snapshots import KINDS


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Names are those of the configuration; B = texts_per_step."""

    output_dir: Path
    model_path: str
    rl: RLConfig
    texts_per_step: int
    last_step: int
    max_train_steps: int
    learning_rate: float = 1e-6
    optim: str = "adamw_torch"
    value_head: bool = False
    weight_decay: float = 0.01
    gradient_clipping_threshold: float | None = 0.3
    lr_scheduler_type: str = "cosine"
    num_warmup_steps: int = 50
    gradient_checkpointing: Checkpointing = False
    compile: bool = False
    flash_attention: bool = True
    """Use the device's variable-length attention where it has one."""
    reentrant_checkpointing: bool = False
    trust_remote_code: bool = False
    bfloat16: bool = False
    sharding: Sharding | None = None
    """None: every rank holds everything."""
    lora: LoraSettings | None = None
    """None: all weights are trained."""
    device: str = "cpu"
    threads: int = 1
    seed: int = 42
    max_lag: int | None = None
    texts_per_update: int = 1
    save_checkpoint_steps: int = 100
    also_save_steps: tuple[int, ...] = ()
    keep_intermediate_checkpoints: bool = True
    save_final_training_state: bool = True
    log_each_n_steps: int = 1
    memory_debug: bool = False
    """Report memory after every `memory_every_n_steps`-th step."""
    memory_every_n_steps: int = 1
    cuda_empty_cache: bool = False
    """Give the allocator's unused memory back after each step, before the weights are published."""
    input_topic: str = "training_data"
    actor_topic: str = "actor"
    streams_from: Path | None = None
    """Folder of recorded streams to replay instead of this run's own."""
    data_deadline_s: float = 3600.0
    snapshots_of: tuple[str, ...] = ()
    """Roles whose snapshot must be there before a checkpoint: of a run that resumes bit for bit."""
    follows_preprocess: bool = True
    """False: `training_data` is a recording, which a resumed trainer goes on reading where it stopped."""
    engine_urls: tuple[str, ...] = ()
    engine_dtype: str = "float32"
    start_deadline_s: float = 900.0
    weights: dict[str, Any] = field(default_factory=dict)
    """The configuration's `weights`, and `group_port`, the first port tried for an NCCL group."""

    @property
    def folder(self) -> Path:
        return self.output_dir / "finetune"


def settings_from_config(cfg: Config, output_dir: Path, job_idx: int | None) -> TrainerSettings:
    """Read the typed tree."""
    finetune = cfg.finetune
    engines = tuple(job.url for job in cfg.jobs if job.kind == "actor_llm")
    job = next((job for job in cfg.jobs if job.idx == job_idx), None)
    on_gpu = cfg.on_gpu(job)
    names = {job.name for job in cfg.jobs}
    follows_preprocess = any(job.kind == "preprocessor" for job in cfg.jobs)
    return TrainerSettings(
        output_dir=output_dir,
        model_path=cfg.policy_path,
        rl=finetune.rl,
        texts_per_step=cfg.derived.texts_per_step,
        last_step=finetune.last_step,
        max_train_steps=finetune.max_train_steps,
        learning_rate=finetune.learning_rate,
        optim=finetune.optim,
        value_head=finetune.has_value_head,
        weight_decay=finetune.weight_decay,
        gradient_clipping_threshold=finetune.gradient_clipping_threshold,
        lr_scheduler_type=finetune.lr_scheduler_type,
        num_warmup_steps=finetune.num_warmup_steps,
        gradient_checkpointing=finetune.gradient_checkpointing,
        compile=finetune.compile and on_gpu,
        flash_attention=finetune.use_flash_attention,
        reentrant_checkpointing=finetune.reentrant_checkpointing,
        trust_remote_code=finetune.trust_remote_code,
        bfloat16=finetune.load_as_bf16,
        sharding=cfg.sharding if on_gpu else None,
        lora=_lora(finetune.lora),
        device="cuda" if on_gpu else "cpu",
        threads=cfg.hardware.threads_per_process,
        seed=cfg.seed,
        max_lag=cfg.max_lag,
        texts_per_update=cfg.derived.texts_per_update,
        save_checkpoint_steps=finetune.save_checkpoint_steps,
        also_save_steps=tuple(finetune.also_save_steps),
        keep_intermediate_checkpoints=finetune.keep_intermediate_checkpoints,
        save_final_training_state=finetune.save_final_training_state,
        log_each_n_steps=finetune.log_each_n_steps,
        memory_debug=finetune.memory_debug.enabled,
        memory_every_n_steps=finetune.memory_debug.every_n_steps,
        cuda_empty_cache=finetune.cuda_empty_cache and on_gpu,
        input_topic=finetune.input,
        actor_topic=cfg.preprocess.input,
        streams_from=cfg.streams_source("finetune"),
        data_deadline_s=cfg.watchdog.input_deadline_s,
        follows_preprocess=follows_preprocess,
        snapshots_of=tuple(role for role in KINDS if cfg.max_lag == 0 and role in names),
        engine_urls=engines if cfg.updates_engines else (),
        engine_dtype=cfg.engine_dtype,
        start_deadline_s=cfg.engine.start_deadline_s,
        weights={
            **{name: getattr(cfg.weights, name) for name in type(cfg.weights).model_fields},
            "ahead": cfg.weights_ahead,
            "group_port": cfg.world.actor_group_port,
        },
    )


def _lora(lora: LoraConfig) -> LoraSettings | None:
    if not lora.enabled:
        return None
    targets = tuple(lora.target_modules)
    return LoraSettings(r=lora.r, alpha=lora.alpha, dropout=lora.dropout, target_modules=targets)
