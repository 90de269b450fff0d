"""The recipe: train a tokenizer, imitate demonstrations phase by phase, measure the gates, save."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipelinerl.bootstrap.demonstrations import Demonstration, Source
from pipelinerl.bootstrap.gates import GateResult, measure
from pipelinerl.bootstrap.model import ROPE_THETA, build_model
from pipelinerl.bootstrap.packs import PackedBatch, PackStream, loader
from pipelinerl.bootstrap.supervised import train_supervised
from pipelinerl.bootstrap.tokenizer import train_tokenizer
from pipelinerl.config.bootstrap import BootstrapConfig

TOKENIZER_SEED = 1_000_000_000
"""World seeds of the tokenizer's texts, of the gates and of training never meet."""
GATE_SEED = 2_000_000_000
WARMUP_FRACTION = 0.02
_REPORTS, _PROBES = 60, 10


def run(
    recipe: BootstrapConfig,
    added_tokens: Sequence[str],
    source: Source,
    out: Path,
    *,
    device: str = "cpu",
    log: Callable[[str], None] = print,
) -> list[GateResult]:
    """Train, measure and save into `out` (HF format, bfloat16, with `recipe.json`); returns the gates.

    `recipe` is taken as it stands: `workers` are that many, phases have their tokens whatever `budget` says.
    `added_tokens` become entries of the tokenizer as they are.
    """
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    texts = (d.prompt + d.completion for d in _take(recipe, source, TOKENIZER_SEED, recipe.tokenizer_texts))
    tokenizer = train_tokenizer(texts, recipe.vocab_size, added_tokens, recipe.shape.max_length)
    tokenizer.save_pretrained(out)
    log(f"tokenizer: {len(tokenizer)} entries")
    model = build_model(recipe.shape, tokenizer, recipe.seed)
    log(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters on {device}")
    _train(recipe, source, model, tokenizer, out / "tokenizer.json", device, log)
    with torch.no_grad():
        for parameter in model.parameters():  # measure what will be saved, not what was trained
            parameter.copy_(parameter.to(torch.bfloat16))
    held_out = _take(recipe, source, GATE_SEED, recipe.gate_demonstrations)
    fast = tokenizer.backend_tokenizer
    results = measure(model.eval(), fast, held_out, recipe.gates, recipe.shape.max_length)
    # Everything that decides the result besides the demonstrations.
    record = recipe.model_dump(exclude={"out", "budget"})
    record["shape"]["rope_theta"] = ROPE_THETA
    record |= {"added_tokens": list(added_tokens), "warmup_fraction": WARMUP_FRACTION}
    _save(model, out, record, results, time.monotonic() - started)
    return results


def steps_of(recipe: BootstrapConfig) -> list[int]:
    """Optimizer steps of each phase, at least one."""
    return [max(1, round(phase.tokens / recipe.pack_tokens)) for phase in recipe.phases]


def _take(recipe: BootstrapConfig, source: Source, first_seed: int, count: int) -> Iterator[Demonstration]:
    """Demonstrations of the first phase, from worlds that no training demonstration comes from."""
    worlds = (source(seed, recipe.phases[0].name) for seed in itertools.count(first_seed))
    return itertools.islice(itertools.chain.from_iterable(worlds), count)


def _train(
    recipe: BootstrapConfig,
    source: Source,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tokenizer_file: Path,
    device: str,
    log: Callable[[str], None],
) -> None:
    reports, total = itertools.count(1), sum(steps_of(recipe))
    probe = list(_take(recipe, source, GATE_SEED, recipe.gate_demonstrations // 4))

    def report(record: dict[str, float]) -> None:
        log(
            f"step {record['step']:.0f}/{total}  loss {record['loss']:.4f}  "
            f"{record['tokens'] / 1e6:.1f}M tokens  {record['tokens_per_sec'] / 1e3:.0f}k tok/s"
        )
        if next(reports) % (_REPORTS // _PROBES) == 0:
            skills = measure(model, tokenizer.backend_tokenizer, probe, {}, recipe.shape.max_length)
            log("  skills: " + "  ".join(f"{s.kind} {s.accuracy:.2f}" for s in skills))

    train_supervised(
        model,
        _batches(recipe, source, tokenizer_file),
        steps=total,
        learning_rate=recipe.learning_rate,
        num_warmup_steps=max(1, int(WARMUP_FRACTION * total)),
        weight_decay=recipe.weight_decay,
        log=report,
        log_every=max(1, total // _REPORTS),
        device=device,
    )


def _batches(recipe: BootstrapConfig, source: Source, tokenizer_file: Path) -> Iterator[PackedBatch]:
    for index, (phase, steps) in enumerate(zip(recipe.phases, steps_of(recipe))):
        stream = PackStream(
            source,
            phase.name,
            tokenizer_file,
            first_seed=recipe.seed * 100_000_000 + index * 10_000_000,
            pack_tokens=recipe.pack_tokens,
            max_length=recipe.shape.max_length,
            prompt_loss=phase.prompt_loss,
        )
        yield from itertools.islice(loader(stream, recipe.workers), steps)


def _save(
    model: PreTrainedModel,
    out: Path,
    recipe: Mapping[str, Any],
    results: Sequence[GateResult],
    seconds: float,
) -> None:
    """Weights in bfloat16, and `recipe.json`: recipe, gates, seconds and the weights' checksum."""
    model.config._attn_implementation = "sdpa"
    model.to(dtype=torch.bfloat16).save_pretrained(out)
    record = {
        "recipe": recipe,
        "gates": [asdict(r) for r in results],
        "seconds": round(seconds, 1),
        "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    }
    (out / "recipe.json").write_text(json.dumps(record, indent=1) + "\n")
