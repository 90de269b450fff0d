"""What preprocess takes from the configuration tree, as one frozen value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipelinerl.config import Config, RLConfig
from pipelinerl.preprocess.validate import Limits


@dataclass(frozen=True, kw_only=True)
class PreprocessSettings:
    """Names are those of the configuration; B = texts_per_step."""

    output_dir: Path
    model_path: str
    rl: RLConfig
    limits: Limits
    texts_per_step: int
    last_step: int
    eos_token_ids: tuple[int, ...] = ()
    ranks: int = 1
    seq_packing: bool = True
    max_lag: int | None = None
    pop_old_data: bool = True
    chunk_n_groups: int = 2
    n_workers: int = 8
    dataset_buffer_size: int = 0
    ring_buffer_size: int = 128
    max_ready_samples_per_lead: int = 64
    log_every_n_samples: int = 128
    texts_per_update: int = 1
    save_checkpoint_steps: int = 100
    also_save_steps: tuple[int, ...] = ()
    input_topic: str = "actor"
    output_topic: str = "training_data"
    streams_from: Path | None = None
    """Folder of an earlier run whose groups are replayed."""
    has_trainer: bool = True
    """Whether this run's own trainer takes the steps."""
    data_deadline_s: float = 3600.0
    start_deadline_s: float = 900.0
    threads: int = 1
    reference_device: str = "cpu"
    flash_attention: bool = True
    bfloat16: bool = False
    """Compute the reference as the policy is computed, in bfloat16."""
    reference_urls: tuple[str, ...] = ()
    """Engines that serve the reference model; empty: it is loaded into this process."""


def settings_from_config(cfg: Config, output_dir: Path) -> PreprocessSettings:
    """Read the typed tree; vocabulary and end of sequence come from the model's config.json."""
    finetune, preprocess = cfg.finetune, cfg.preprocess
    vocab_size, eos_token_ids = model_vocabulary(cfg.policy_path)
    return PreprocessSettings(
        output_dir=output_dir,
        model_path=cfg.policy_path,
        rl=finetune.rl,
        limits=Limits(vocab_size, finetune.seq_length, cfg.attempts, cfg.max_lag is not None),
        texts_per_step=cfg.derived.texts_per_step,
        last_step=finetune.last_step,
        eos_token_ids=eos_token_ids,
        ranks=cfg.derived.trainer_ranks,
        seq_packing=finetune.seq_packing,
        max_lag=cfg.max_lag,
        pop_old_data=cfg.pop_old_data,
        chunk_n_groups=preprocess.chunk_n_groups,
        n_workers=preprocess.n_workers,
        dataset_buffer_size=preprocess.dataset_buffer_size,
        ring_buffer_size=preprocess.ring_buffer_size,
        max_ready_samples_per_lead=preprocess.max_ready_samples_per_lead,
        log_every_n_samples=preprocess.log_every_n_samples,
        texts_per_update=cfg.derived.texts_per_update,
        save_checkpoint_steps=finetune.save_checkpoint_steps,
        also_save_steps=tuple(finetune.also_save_steps),
        input_topic=preprocess.input,
        output_topic=preprocess.output,
        streams_from=cfg.streams_source("preprocessor"),
        has_trainer=bool(cfg.jobs_of("finetune")),
        data_deadline_s=cfg.watchdog.input_deadline_s,
        start_deadline_s=cfg.engine.start_deadline_s * 2,
        threads=cfg.hardware.threads_per_process,
        reference_device="cuda" if any(job.gpus for job in cfg.jobs_of("preprocessor")) else "cpu",
        flash_attention=finetune.use_flash_attention,
        bfloat16=finetune.load_as_bf16,
        reference_urls=tuple(job.url for job in cfg.jobs_of("preprocessor_llm")),
    )


def model_vocabulary(model_path: str) -> tuple[int, tuple[int, ...]]:
    """Vocabulary size and end-of-sequence ids of a model folder or hub name, without importing torch.

    Raises ValueError when there is no readable config.json.
    """
    path = Path(model_path) / "config.json"
    if not Path(model_path).is_dir():
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(model_path, "config.json"))
    try:
        config = json.loads(path.read_text())
        eos = config.get("eos_token_id")
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return int(config["vocab_size"]), tuple(int(i) for i in ids)
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: no model configuration with a vocab_size ({error})") from error
