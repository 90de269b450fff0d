"""The recipe: a new or a pretrained model imitates demonstrations phase by phase, is measured, and saved."""

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from pipelinerl.base.files import let_others_read
from pipelinerl.base.tokenizing import copy_tokenizer, load_tokenizer
from pipelinerl.config.bootstrap import BootstrapConfig
from pipelinerl.extras.bootstrap.demonstrations import Demonstration, Source, encode
from pipelinerl.extras.bootstrap.formats import SMALL_CHAT, ChatFormat, chat_format
from pipelinerl.extras.bootstrap.gates import GateResult, measure
from pipelinerl.extras.bootstrap.model import ROPE_THETA, build_model
from pipelinerl.extras.bootstrap.packs import PackedBatch, PackStream, loader, pack
from pipelinerl.extras.bootstrap.supervised import Resumable, train_supervised
from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from pipelinerl.modeling.loading import load_causal_lm

TOKENIZER_SEED = 1_000_000_000
"""World seeds of the tokenizer's texts, of the gates and of training never meet."""
GATE_SEED = 2_000_000_000
WARMUP_FRACTION = 0.02
STATE = "training.pt"
_REPORTS, _PROBES = 60, 10
_SEEDS_OF_A_START = 100_000
_VALIDATED = 100
"""Held-out demonstrations that the validation loss is of."""


@dataclass(frozen=True)
class Pupil:
    """What imitates: model, tokenizer and the form of its dialogues."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    chat: ChatFormat


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
    `added_tokens` become entries of a new tokenizer as they are. Raises ValueError for a state in `out` that
    another recipe has left, DamagedModel for a model that cannot be gone on from.
    """
    started = time.monotonic()
    # Beside an earlier model, whose weights would else have another tokenizer if this one never ends.
    beside = out / "unfinished"
    beside.mkdir(parents=True, exist_ok=True)
    new = recipe.start is None
    pupil = _new(recipe, added_tokens, source, beside, log) if new else _pretrained(recipe, beside)
    model = pupil.model
    log(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters on {device}")
    asked = recipe.model_dump(mode="json", exclude={"out", "budget", "workers"})
    resumable = Resumable(out / STATE, recipe.checkpoint_steps, asked)
    last = _train(recipe, source, pupil, beside / "tokenizer.json", device, log, resumable)
    with torch.no_grad():
        for parameter in model.parameters():  # measure what will be saved, not what was trained
            parameter.copy_(parameter.to(torch.bfloat16))
    held_out = _take(recipe, source, GATE_SEED, recipe.gate_demonstrations)
    results = measure(
        model.eval(), pupil.tokenizer, held_out, recipe.gates, recipe.shape.max_length, pupil.chat
    )
    # Everything that decides the result besides the demonstrations.
    record = recipe.model_dump(exclude={"out", "budget", "checkpoint_steps"})
    record["shape"]["rope_theta"] = ROPE_THETA
    record |= {"added_tokens": list(added_tokens), "warmup_fraction": WARMUP_FRACTION}
    copy_tokenizer(str(beside), out)
    _save(model, out, record, results, last, time.monotonic() - started)
    shutil.rmtree(beside)
    resumable.path.unlink(missing_ok=True)
    return results


def _new(
    recipe: BootstrapConfig,
    added_tokens: Sequence[str],
    source: Source,
    out: Path,
    log: Callable[[str], None],
) -> Pupil:
    """Random weights, and a tokenizer made from demonstrations."""
    texts = (d.prompt + d.completion for d in _take(recipe, source, TOKENIZER_SEED, recipe.tokenizer_texts))
    tokenizer = train_tokenizer(texts, recipe.vocab_size, added_tokens, recipe.shape.max_length)
    tokenizer.save_pretrained(out)
    log(f"tokenizer: {len(tokenizer)} entries")
    return Pupil(build_model(recipe.shape, tokenizer, recipe.seed), tokenizer.backend_tokenizer, SMALL_CHAT)


def _pretrained(recipe: BootstrapConfig, out: Path) -> Pupil:
    """The model that the recipe starts from; its tokenizer's files go to `out` as they are."""
    start = str(recipe.start)
    tokenizer = load_tokenizer(start)
    model = load_causal_lm(start, dtype=torch.float32)
    copy_tokenizer(start, out)
    return Pupil(model, tokenizer.backend_tokenizer, chat_format(tokenizer))


def steps_of(recipe: BootstrapConfig) -> list[int]:
    """Optimizer steps of each phase, at least one."""
    return [max(1, round(phase.tokens / recipe.pack_tokens)) for phase in recipe.phases]


def _take(
    recipe: BootstrapConfig, source: Source, first_seed: int, count: int, phase: int = 0
) -> Iterator[Demonstration]:
    """Demonstrations of a phase, from worlds that no training demonstration comes from."""
    worlds = (source(seed, recipe.phases[phase].name) for seed in itertools.count(first_seed))
    return itertools.islice(itertools.chain.from_iterable(worlds), count)


def _train(
    recipe: BootstrapConfig,
    source: Source,
    pupil: Pupil,
    tokenizer_file: Path,
    device: str,
    log: Callable[[str], None],
    resumable: Resumable,
) -> dict[str, float]:
    """The last record of training."""
    reports, total = itertools.count(1), sum(steps_of(recipe))
    longest, last = recipe.shape.max_length, {}
    probe = list(_take(recipe, source, GATE_SEED, recipe.gate_demonstrations // 4))
    # Of the last phase, since that is what the model shall do.
    validation = _take(recipe, source, GATE_SEED, min(_VALIDATED, recipe.gate_demonstrations), phase=-1)
    held_out = list(pack(encode(pupil.tokenizer, validation, longest, 0.0, pupil.chat), recipe.pack_tokens))

    def report(record: dict[str, float]) -> None:
        last.update(record)
        log(
            f"step {record['step']:.0f}/{total}  loss {record['loss']:.4f}  "
            f"{record['tokens'] / 1e6:.1f}M tokens  {record['tokens_per_sec'] / 1e3:.0f}k tok/s  "
            f"validation {record['validation_loss']:.4f}"
        )
        if next(reports) % (_REPORTS // _PROBES) == 0:
            skills = measure(pupil.model, pupil.tokenizer, probe, {}, longest, pupil.chat)
            log("  skills: " + "  ".join(f"{s.kind} {s.accuracy:.2f}" for s in skills))

    if resumable.step:
        log(f"going on after step {resumable.step}")
    train_supervised(
        pupil.model,
        _batches(recipe, source, tokenizer_file, pupil.chat, resumable),
        steps=total,
        learning_rate=recipe.learning_rate,
        num_warmup_steps=max(1, int(WARMUP_FRACTION * total)),
        weight_decay=recipe.weight_decay,
        log=report,
        log_every=max(1, total // _REPORTS),
        device=device,
        held_out=held_out,
        resumable=resumable,
    )
    return last


def _batches(
    recipe: BootstrapConfig, source: Source, tokenizer_file: Path, chat: ChatFormat, done: Resumable
) -> Iterator[PackedBatch]:
    """The rows that are left. Every start has worlds of its own: those of the starts before are used up."""
    before = done.step
    for index, (phase, steps) in enumerate(zip(recipe.phases, steps_of(recipe))):
        left = max(0, steps - before)
        before = max(0, before - steps)
        if not left:
            continue
        first = recipe.seed * 100_000_000 + index * 10_000_000 + done.starts * _SEEDS_OF_A_START
        stream = PackStream(
            source,
            phase.name,
            tokenizer_file,
            first_seed=first,
            pack_tokens=recipe.pack_tokens,
            max_length=recipe.shape.max_length,
            prompt_loss=phase.prompt_loss,
            chat=chat,
        )
        yield from itertools.islice(loader(stream, recipe.workers), left)


def _save(
    model: PreTrainedModel,
    out: Path,
    recipe: Mapping[str, Any],
    results: Sequence[GateResult],
    last: Mapping[str, float],
    seconds: float,
) -> None:
    """Weights in bfloat16, and `recipe.json`: recipe, gates, losses, seconds and the weights' checksum."""
    model.config._attn_implementation = "sdpa"
    model.to(dtype=torch.bfloat16).save_pretrained(out)
    let_others_read(out)
    record = {
        "recipe": recipe,
        "gates": [asdict(r) for r in results],
        "loss": last.get("loss"),
        "validation_loss": last.get("validation_loss"),
        "seconds": round(seconds, 1),
        "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    }
    (out / "recipe.json").write_text(json.dumps(record, indent=1) + "\n")
