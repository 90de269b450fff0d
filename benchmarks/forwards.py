"""The embedded engine's two ways to run a step of a Llama: fused, and through transformers' modules.

    python -m benchmarks.forwards [--model DIR] [--rounds 20] [--results FILE]

Both get the same steps in turn, in one process on one thread: 32 sequences that decode a token behind 256
others, one such sequence, and a prompt of 256 tokens. Random weights in the shape of the 5M of
`benchmarks.engine` and in SmolLM2-135M's with 6 of its 30 layers, and with `--model` a model of yours too
(`python -m pipelinerl.pretrained smollm2 DIR`). Times are CPU time of this process; a round's ratio is of the
generic way to the fused one. Medians over the rounds, beside them the lowest and the highest ratio, and how
far the log-probabilities after the prompt are apart.
"""

import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from benchmarks._figures import Figure, command_line, report
from benchmarks.engine import SIZES
from pipelinerl.engines.cpu import model as packed
from pipelinerl.engines.cpu.model import PackedModel
from pipelinerl.engines.cpu.scheduler import Chunk, Plan
from pipelinerl.engines.cpu.sequence import Request, Sequence
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.openai.protocol import SamplingFields

SLOTS, LENGTH = 32, 256
# As `benchmarks.engine.SIZES`, and the vocabulary; tied.
SHAPES = {"5M": (*SIZES["5M"], 2048), "SmolLM2, 6 layers": (576, 6, 1536, 9, 3, 64, 49152)}


def build_model(
    shape: tuple[int, ...],
    folder: Path,
    config_class: type[PreTrainedConfig] = LlamaConfig,
    model_class: type[PreTrainedModel] = LlamaForCausalLM,
) -> None:
    """Random weights."""
    hidden, layers, feed_forward, heads, key_heads, head_size, vocabulary = shape
    torch.manual_seed(0)
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=feed_forward,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head_size,
        tie_word_embeddings=True,
    )
    model_class(config).save_pretrained(folder)


def loaded(folder: Path, fused: bool) -> PackedModel:
    """One of the two, with keys and values in every slot: untouched pages would be read from one place."""
    settings = EngineSettings(
        model=folder, max_num_seqs=SLOTS, max_model_len=LENGTH + 1, enable_prefix_caching=False
    )
    with mock.patch.object(packed, "fused_forward_applies", lambda _: fused):
        model = PackedModel(settings)
    generator = torch.Generator().manual_seed(0)
    for one in (*model.cache.keys, *model.cache.values):
        one.normal_(generator=generator)
    return model


def steps(vocab: int) -> dict[str, tuple[Plan, list[int]]]:
    """Each kind of step, and the packed rows whose logits it asks for."""
    generator = np.random.default_rng(0)

    def sequence(slot: int) -> Sequence:
        ids = generator.integers(0, vocab, LENGTH + 1).tolist()
        request = Request(str(slot), ids, SamplingFields(), max_tokens=1, eos_ids=frozenset())
        (one,) = request.sequences
        one.slot = slot
        return one

    sequences = [sequence(slot) for slot in range(SLOTS)]
    decodes = [Chunk(one, LENGTH, LENGTH + 1) for one in sequences]
    return {
        f"{SLOTS} decodes": (Plan(decodes, []), list(range(SLOTS))),
        "one decode": (Plan(decodes[:1], []), [0]),
        f"a prompt of {LENGTH}": (Plan([], [Chunk(sequences[0], 0, LENGTH)]), [LENGTH - 1]),
    }


def in_turn(
    name: str, models: dict[str, PackedModel], rounds: int
) -> tuple[list[Figure], dict[str, torch.Tensor]]:
    """Milliseconds of two models that take every kind of step in turn, and ratios of the first to the second.

    With them the log-probabilities of both after the last step, the prompt.
    """
    figures, found = [], {}
    first, second = models
    for kind, (plan, rows) in steps(models[second].vocab_size).items():
        seconds: dict[str, list[float]] = {way: [] for way in models}
        for _ in range(rounds + 1):
            for way, model in models.items():
                began = time.process_time()
                found[way] = model.logits(plan, rows).log_softmax(-1)
                seconds[way].append(time.process_time() - began)
        taken = {way: np.array(values[1:]) for way, values in seconds.items()}  # the first warms up
        ratios = taken[first] / taken[second]
        for way, values in taken.items():
            figures.append(Figure(f"{name}: {kind}, {way}", 1000 * float(np.median(values)), "ms"))
        figures.append(Figure(f"{name}: {kind}, ratio", float(np.median(ratios)), "x"))
        figures.append(Figure(f"{name}: {kind}, lowest ratio", float(ratios.min()), "x"))
        figures.append(Figure(f"{name}: {kind}, highest ratio", float(ratios.max()), "x"))
    return figures, found


def compare(name: str, folder: Path, rounds: int) -> list[Figure]:
    """Milliseconds and ratios of every kind of step, and how far the two are apart."""
    models = {"generic": loaded(folder, fused=False), "fused": loaded(folder, fused=True)}
    figures, found = in_turn(name, models, rounds)
    apart = (found["generic"] - found["fused"]).abs().max().item()
    return [*figures, Figure(f"{name}: largest difference", apart, "nats")]


def main() -> int:
    options = command_line(__doc__)
    torch.set_num_threads(1)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            build_model(shape, Path(folder) / name)
            figures += compare(name, Path(folder) / name, options.rounds)
    if options.model:
        figures += compare(options.model.name, options.model, options.rounds)
    return report("forwards", figures, {"rounds": options.rounds, "threads": 1}, options.results)


if __name__ == "__main__":
    sys.exit(main())
