"""The recipe: train a tokenizer, imitate demonstrations phase by phase, measure the gates, save."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipelinerl.bootstrap.demonstrations import Demonstration, PackStream, Source, TokenPack
from pipelinerl.bootstrap.gates import GateResult, measure
from pipelinerl.bootstrap.model import ModelShape, build_model
from pipelinerl.bootstrap.tokenizer import train_tokenizer
from pipelinerl.finetune.supervised import PackedBatch, train_supervised

TOKENIZER_SEED = 1_000_000_000
"""World seeds of the tokenizer's texts, of the gates and of training never meet."""
GATE_SEED = 2_000_000_000
_REPORTS, _PROBES = 60, 10


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training on one kind of demonstrations."""

    name: str
    tokens: int
    prompt_loss: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the result besides the demonstrations."""

    seed: int = 1
    vocab_size: int = 2048
    added_tokens: Sequence[str] = ()
    tokenizer_texts: int = 30_000
    shape: ModelShape = field(default_factory=ModelShape)
    phases: Sequence[Phase]
    pack_tokens: int = 65_536
    learning_rate: float = 2e-3
    warmup_fraction: float = 0.02
    weight_decay: float = 0.01
    workers: int = 1
    gate_demonstrations: int = 4_000
    gates: Mapping[str, float] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        """Optimizer steps of each phase, at least one."""
        return [max(1, round(p.tokens / self.pack_tokens)) for p in self.phases]


def run(
    recipe: Recipe,
    source: Source,
    out: Path,
    *,
    device: str = "cpu",
    log: Callable[[str], None] = print,
) -> list[GateResult]:
    """Train, measure and save into `out` (HF format, bfloat16, with `recipe.json`); returns the gates."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(recipe, source)
    tokenizer.save_pretrained(out)
    log(f"tokenizer: {len(tokenizer)} entries")
    model = build_model(recipe.shape, tokenizer, recipe.seed)
    log(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters on {device}")
    _train(recipe, source, model, tokenizer, out / "tokenizer.json", device, log)
    with torch.no_grad():
        for parameter in model.parameters():  # measure what will be saved, not what was trained
            parameter.copy_(parameter.to(torch.bfloat16))
    results = check(recipe, source, model, tokenizer)
    save(model, tokenizer, out, recipe, results, time.monotonic() - started)
    return results


def _tokenizer(recipe: Recipe, source: Source) -> PreTrainedTokenizerFast:
    texts = (
        d.prompt + d.completion
        for d in _take(source, recipe.phases[0].name, TOKENIZER_SEED, recipe.tokenizer_texts)
    )
    return train_tokenizer(texts, recipe.vocab_size, recipe.added_tokens, recipe.shape.max_length)


def _take(source: Source, phase: str, first_seed: int, count: int) -> Iterator[Demonstration]:
    worlds = (source(seed, phase) for seed in itertools.count(first_seed))
    return itertools.islice(itertools.chain.from_iterable(worlds), count)


def _train(
    recipe: Recipe,
    source: Source,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tokenizer_file: Path,
    device: str,
    log: Callable[[str], None],
) -> None:
    reports = itertools.count(1)
    probe = list(_take(source, recipe.phases[0].name, GATE_SEED, recipe.gate_demonstrations // 4))

    def report(record: dict[str, float]) -> None:
        log(
            f"step {record['step']:.0f}/{sum(recipe.steps)}  loss {record['loss']:.4f}  "
            f"{record['tokens'] / 1e6:.1f}M tokens  {record['tokens_per_sec'] / 1e3:.0f}k tok/s"
        )
        if next(reports) % (_REPORTS // _PROBES) == 0:
            skills = measure(model, tokenizer.backend_tokenizer, probe, {}, recipe.shape.max_length)
            log("  skills: " + "  ".join(f"{s.kind} {s.accuracy:.2f}" for s in skills))

    on_gpu = torch.device(device).type == "cuda"
    train_supervised(
        model,
        _batches(recipe, source, tokenizer_file),
        steps=sum(recipe.steps),
        learning_rate=recipe.learning_rate,
        num_warmup_steps=max(1, int(recipe.warmup_fraction * sum(recipe.steps))),
        weight_decay=recipe.weight_decay,
        device=device,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        compile=on_gpu,
        log=report,
        log_every=max(1, sum(recipe.steps) // _REPORTS),
    )


def _batches(recipe: Recipe, source: Source, tokenizer_file: Path) -> Iterator[PackedBatch]:
    for index, (phase, steps) in enumerate(zip(recipe.phases, recipe.steps)):
        stream = PackStream(
            source,
            phase.name,
            tokenizer_file,
            first_seed=recipe.seed * 100_000_000 + index * 10_000_000,
            workers=recipe.workers,
            pack_tokens=recipe.pack_tokens,
            max_length=recipe.shape.max_length,
            prompt_loss=phase.prompt_loss,
        )
        try:
            for pack in itertools.islice(stream, steps):
                yield _packed_batch(pack)
        finally:
            stream.close()


def _packed_batch(pack: TokenPack) -> PackedBatch:
    offsets = np.concatenate([[0], np.cumsum(pack.lengths)]).astype(np.int32)
    positions = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1], pack.lengths)
    return PackedBatch(pack.input_ids, pack.labels, positions, offsets, pack.weights)


def check(
    recipe: Recipe, source: Source, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> list[GateResult]:
    """The gates, on worlds that no training demonstration came from."""
    held_out = _take(source, recipe.phases[0].name, GATE_SEED, recipe.gate_demonstrations)
    fast: Tokenizer = tokenizer.backend_tokenizer
    return measure(model.eval(), fast, held_out, recipe.gates, recipe.shape.max_length)


def save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    recipe: Recipe,
    results: Sequence[GateResult],
    seconds: float,
) -> None:
    """Weights in bfloat16, tokenizer, and `recipe.json`: recipe, gates, seconds and the weights' checksum."""
    model.config._attn_implementation = "sdpa"
    model.to(dtype=torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    record = {
        "recipe": asdict(recipe),
        "gates": [asdict(r) for r in results],
        "seconds": round(seconds, 1),
        "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    }
    (out / "recipe.json").write_text(json.dumps(record, indent=1, default=dict) + "\n")
