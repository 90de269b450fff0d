"""Training tokens per second on a CPU beside a plain loop: `python -m benchmarks.trainer [--sizes 1M 5M]
[--rounds 7] [--threads 1]`.

One optimizer step is 8 texts of 512 tokens, float32, one thread unless `--threads` says otherwise. *Ours*
is `Learner.accumulate` and `apply` on packed micro-batches: ratios, clipping, entropy, statistics and all.
*Plain* is what one would write first: transformers' forward on padded rows with its own attention, logits
of all tokens, log_softmax, the policy gradient, AdamW. Both are also measured on texts of very different
lengths (log-normal, mean 256), where padding costs. Steps of both alternate; ratios are medians of pairs.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks._figures import Figure, at_least, command_line, report
from benchmarks._texts import random_texts
from benchmarks.engine import SIZES, build_model
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.optimiser import build_optimiser
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.schedulers import build_scheduler
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.model import load_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.rollouts import MASKED_TOKEN_ID

PROMPT = 64
SEQ_LENGTH = 2048
LEARNING_RATE = 1e-5


def learner_of(model: PreTrainedModel, rl: RLConfig) -> Learner:
    """The trainer's side of a run with a constant learning rate."""
    optimiser = build_optimiser(model, learning_rate=LEARNING_RATE)
    return Learner(Policy(model), optimiser, build_scheduler(optimiser, "constant", 0, 1), rl, Ranks())


def our_step(model: PreTrainedModel, texts: Sequence[Sample]) -> Callable[[], None]:
    """One optimizer step of the trainer, batches already assembled as preprocess delivers them."""
    rl = RLConfig(epsilon_high=4.0)
    learner = learner_of(model, rl)
    batches = assemble_step(list(texts), 0, SEQ_LENGTH)[0]

    def step() -> None:
        for batch in batches:
            learner.accumulate(batch, targets_of(batch, rl), Coefficients(0.0, 0.0))
        learner.apply()

    return step


def plain_step(model: PreTrainedModel, texts: Sequence[Sample]) -> Callable[[], None]:
    """The same texts as padded rows, full logits and the policy gradient."""
    longest = max(len(text.input_ids) for text in texts)
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    labels = torch.full_like(ids, MASKED_TOKEN_ID)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        length = len(text.input_ids)
        ids[row, :length] = torch.from_numpy(text.input_ids.astype(np.int64))
        labels[row, :length] = torch.from_numpy(text.labels.astype(np.int64))
        mask[row, :length] = 1
    advantage = torch.tensor([[text.advantage] for text in texts])
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        target = labels[:, 1:]
        logprobs = logits.log_softmax(-1).gather(2, target.clamp(min=0)[..., None])[..., 0]
        (-(logprobs * advantage * (target >= 0)).sum() / len(texts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def compare(folder: Path, lengths: Sequence[int], rounds: int) -> tuple[float, float, float]:
    """Tokens per second of ours and of the plain loop, and the median ratio of neighbouring steps."""
    plain_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    texts = random_texts(lengths, plain_model.config.vocab_size, PROMPT)
    ours, plain = our_step(load_model(folder), texts), plain_step(plain_model, texts)
    times: dict[Callable[[], None], list[float]] = {ours: [], plain: []}
    for _ in range(1 + rounds):  # the first warms up
        for step, seconds in times.items():
            started = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - started)
    pairs = list(zip(*times.values(), strict=True))[1:]
    fast, slow = (sum(lengths) / min(column) for column in zip(*pairs, strict=True))
    return fast, slow, statistics.median(other / one for one, other in pairs)


def main() -> int:
    options = command_line(__doc__, sizes=SIZES)
    torch.set_num_threads(options.threads)
    varied = np.random.default_rng(1).lognormal(np.log(200), 0.7, 16).clip(32, 2000).astype(int).tolist()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as temporary:
        for size in options.sizes:
            folder = Path(temporary) / size
            build_model(SIZES[size], folder)
            for name, lengths in (("8 x 512", [512] * 8), ("varied lengths", varied)):
                ours, plain, ratio = compare(folder, lengths, options.rounds)
                figures += [
                    Figure(f"{size}, {name}: ours", ours, "tok/s"),
                    Figure(f"{size}, {name}: plain loop", plain, "tok/s"),
                    at_least(f"{size}, {name}: ratio", ratio, "x", 1.0),
                ]
    return min(1, report("trainer", figures, {"threads": options.threads, "rounds": options.rounds}))


if __name__ == "__main__":
    sys.exit(main())
