"""What preprocess takes from the configuration tree, as one frozen value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelinerl.finetune.rl.config import RLConfig
from pipelinerl.preprocess.reading import SampleLimits


@dataclass(frozen=True, kw_only=True)
class PreprocessSettings:
    """Names are those of the configuration; B = texts_per_step."""

    output_dir: Path
    model_path: str
    rl: RLConfig
    limits: SampleLimits
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
    weight_update_interval: int = 1
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


def settings_from_config(cfg: Any, output_dir: Path) -> PreprocessSettings:
    """Read the typed tree; vocabulary and end of sequence come from the model's config.json."""
    finetune, preprocess = cfg.finetune, cfg.preprocess
    jobs = [job for job in cfg.jobs if job.kind == "preprocessor"]
    ranks = max([1, *(len(job.gpus) for job in cfg.jobs if job.kind == "finetune")])
    texts = finetune.train_batch_size * finetune.gradient_accumulation_passes
    model_path = str(finetune.config_name or cfg.model_path)
    vocab_size, eos_token_ids = model_vocabulary(model_path)
    return PreprocessSettings(
        output_dir=output_dir,
        model_path=model_path,
        rl=RLConfig.from_tree(finetune.rl),
        limits=SampleLimits(vocab_size, finetune.seq_length, cfg.attempts, cfg.max_lag is not None),
        texts_per_step=-(-texts // ranks) * ranks,
        last_step=finetune.last_step,
        eos_token_ids=eos_token_ids,
        ranks=ranks,
        seq_packing=finetune.seq_packing,
        max_lag=cfg.max_lag,
        pop_old_data=cfg.pop_old_data,
        chunk_n_groups=preprocess.chunk_n_groups,
        n_workers=preprocess.n_workers,
        dataset_buffer_size=preprocess.dataset_buffer_size,
        ring_buffer_size=preprocess.ring_buffer_size,
        max_ready_samples_per_lead=preprocess.max_ready_samples_per_lead,
        log_every_n_samples=preprocess.log_every_n_samples,
        weight_update_interval=finetune.weight_update_interval,
        save_checkpoint_steps=finetune.save_checkpoint_steps,
        also_save_steps=tuple(finetune.also_save_steps),
        input_topic=preprocess.input,
        output_topic=preprocess.output,
        streams_from=_recording(cfg),
        has_trainer=any(job.kind == "finetune" for job in cfg.jobs),
        data_deadline_s=cfg.watchdog.input_deadline_s,
        start_deadline_s=cfg.engine.start_deadline_s * 2,
        threads=cfg.hardware.threads_per_process,
        reference_device="cuda" if any(job.gpus for job in jobs) else "cpu",
        flash_attention=finetune.use_flash_attention,
        bfloat16=finetune.load_as_bf16,
        reference_urls=tuple(job.url for job in cfg.jobs if job.kind == "preprocessor_llm"),
    )


def _recording(cfg: Any) -> Path | None:
    """The folder whose groups are replayed, where no actor makes any."""
    if cfg.debug.streams_from is None or any(job.kind == "actor" for job in cfg.jobs):
        return None
    return Path(cfg.debug.streams_from)


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
