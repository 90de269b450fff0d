"""Do engine and trainer mean the same by a probability? `python -m benchmarks.agreement [--port 18090]`.

An engine of its own process samples from random models of 1M and 5M parameters and from the bundled ones,
32 requests at a time; the trainer's forward scores the same tokens, both in float32 at temperature 1. The
rounding of the trainer's own forward, against the same model in float64, stands beside: a sharp model
amplifies it, and no engine that computes in float32 can be closer than that. Results go to
benchmarks/results/agreement.json.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks._figures import ROOT, Figure, at_most, command_line, report
from benchmarks._texts import learner_for
from benchmarks.engine import SIZES, build_model, serving
from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.fleet import Fleet
from pipelinerl.modeling.model import load_model

BUNDLED = ("guessing", "privacy_hopqa", "raro", "reputation_hacking")
MAX_GOAL, MEAN_GOAL = 2e-5, 1e-6
REQUESTS, PROMPT, OUTPUT = 128, 32, 96


async def sample(url: str, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids `[128, 128]` of prompts and answers, and what the engine says of the answers: `[128, 96]`."""
    generator = np.random.default_rng(0)
    sampling = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
    connector = aiohttp.TCPConnector(limit=32)
    async with aiohttp.ClientSession(connector=connector) as session, Fleet([url], session) as fleet:
        prompts = [generator.integers(0, vocab, PROMPT) for _ in range(REQUESTS)]
        answers = await asyncio.gather(*(fleet.generate(prompt, sampling) for prompt in prompts))
    ids = [np.concatenate([one.prompt_ids, one.token_ids]) for one in answers]
    return np.stack(ids), np.stack([one.logprobs for one in answers])


def trainer_scores(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Log-probabilities of the answers by the trainer's forward, `[128, 96]`."""
    learner = learner_for(load_model(folder))
    scores = [learner.score_rows(part) for part in np.split(ids, REQUESTS // 8)]
    return np.concatenate(scores)[:, PROMPT - 1 :]


@torch.no_grad()
def exact_scores(folder: Path, ids: np.ndarray) -> np.ndarray:
    """The same by transformers' forward in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    rows = []
    for part in torch.from_numpy(ids.astype(np.int64)).split(8):
        logprobs = model(part).logits[:, :-1].log_softmax(-1)
        rows.append(logprobs.gather(2, part[:, 1:, None])[..., 0].numpy())
    return np.concatenate(rows)[:, PROMPT - 1 :]


def compare(name: str, folder: Path, port: int) -> list[Figure]:
    """Differences of one model, in nats."""
    vocab = int(AutoModelForCausalLM.from_pretrained(folder).config.vocab_size)
    with serving(folder, port, "--max-model-len", str(PROMPT + OUTPUT)) as url:
        ids, served = asyncio.run(sample(url, vocab))
    trained = trainer_scores(folder, ids).astype(np.float64)
    between = np.abs(served.astype(np.float64) - trained)
    rounding = np.abs(trained - exact_scores(folder, ids))
    return [
        at_most(f"{name}: engine and trainer, max", float(between.max()), "nats", MAX_GOAL),
        at_most(f"{name}: engine and trainer, mean", float(between.mean()), "nats", MEAN_GOAL),
        Figure(f"{name}: trainer and float64, max", float(rounding.max()), "nats"),
        Figure(f"{name}: trainer and float64, mean", float(rounding.mean()), "nats"),
    ]


def main() -> int:
    port = command_line(__doc__).port
    torch.set_num_threads(1)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in ("1M", "5M"):
            build_model(SIZES[size], Path(folder) / size)
            figures += compare(f"random {size}", Path(folder) / size, port)
    for name in BUNDLED:
        figures += compare(name, ROOT / "domains" / name / "checkpoint", port)
    return report("agreement", figures, {"requests": REQUESTS, "prompt": PROMPT, "sampled": OUTPUT})


if __name__ == "__main__":
    sys.exit(main())
