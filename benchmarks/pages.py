"""The page of rollouts: time, memory and disk that writing it takes, and how soon a browser shows it.

    python -m benchmarks.pages [--run DIR] [--rollouts 100000] [--texts 4]

`--run`: a finished quickstart; without it only the made-up run is measured, of so many rollouts in groups of
eight with so many texts each. The page is written by a process of its own; its time is that of the processor,
one core, with the imports, and memory is its peak. The browser is headless Chromium, which opens the page
from the disk; its times are those of the clock.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._figures import Figure, at_most, command_line, report
from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText
from pipelinerl.streams import SingleStreamSpec, write_to_streams
from tests.support.browser import PROGRAM, open_browser

MODEL = Path(__file__).parents[1] / "domains" / "privacy_hopqa" / "checkpoint"
ATTEMPTS, PROMPT, OUTPUT, VOCABULARY = 8, 220, 60, 2000
WORD = "harbour"


def write_run(output_dir: Path, rollouts: int, texts: int) -> None:
    """Streams of a run that never took place, with a configuration that names a tokenizer."""
    config = output_dir / "conf" / "exp_config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(f"model_path: {MODEL}\nattempts: {ATTEMPTS}\n")
    rng = np.random.default_rng(0)
    spec, trained = (SingleStreamSpec(output_dir, topic) for topic in ("actor", "training_data"))
    with write_to_streams(spec) as stream, write_to_streams(trained) as steps:
        for number in range(rollouts // ATTEMPTS):
            records = list(_group(f"0-{number:06d}", number * ATTEMPTS, texts, rng))
            stream.write(records)
            steps.write(_batch(records, number))


def _group(name: str, version: int, texts: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    words = " ".join(f"{WORD[:3]}{n}" for n in rng.integers(0, 10_000, 250).tolist())
    prompt = f"<|user|>{words}<|assistant|>"
    for attempt in range(ATTEMPTS):
        for step in range(texts):
            ids = rng.integers(20, VOCABULARY, PROMPT + OUTPUT).astype(np.int32)
            labels = ids.copy()
            labels[:PROMPT] = MASKED_TOKEN_ID
            answer = f"{step} {WORD} " * 20
            yield TrainingText(
                text=prompt + answer,
                n_predicted=len(answer),
                reward=float(rng.random()),
                logprobs=-rng.random(OUTPUT).astype(np.float32),
                input_ids=ids,
                labels=labels,
                group_id=name,
                finished=True,
                prompt_tokens=PROMPT,
                output_tokens=OUTPUT,
                weight_versions=[(version, 0, OUTPUT)],
                situation=f"turn:{step}",
                finish_reason="stop",
                metadata={
                    "rollout_index": attempt,
                    "step_index": step,
                    "model_version": version,
                    "reward_task": 1.0,
                    "reward_privacy": -0.25 * (attempt == 3),
                    "stage": "plan",
                },
            ).to_record()


def _batch(records: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """One packed row, as far as the page reads it."""
    n, length = len(records), PROMPT + OUTPUT
    zeros = np.zeros((1, n * length), np.float32)
    columns = ("rewards", "ref_logprobs", "old_logprobs", "group_tokens", "num_labels", "overflow")
    ids = np.concatenate([record["input_ids"] for record in records])[None]
    return {
        **dict.fromkeys((*columns, "loss_weight_scale", "kl_weight_scale"), zeros),
        "input_ids": ids,
        "labels": np.concatenate([record["labels"] for record in records])[None],
        "position_ids": np.zeros_like(ids),
        "segment_ids": np.zeros_like(ids),
        "token_versions": np.zeros_like(ids),
        "seq_boundaries": np.arange(n + 1, dtype=np.int32) * length,
        "advantages": np.repeat([record["reward"] - 0.5 for record in records], length).astype(np.float32)[
            None
        ],
        "text_ids": [
            [r["group_id"], r["metadata"]["rollout_index"], r["metadata"]["step_index"]] for r in records
        ],
        "step": step,
        "step_texts": n,
        "is_last": True,
        "roles": [None] * n,
        "situations": [None] * n,
        "sentinel": False,
    }


def write_page(run: Path) -> tuple[float, float, float]:
    """Processor seconds, MB on the disk and the largest MB of memory of `python -m pipelinerl.view`."""
    code = (
        "import resource, sys; from pipelinerl.view import main; status = main(sys.argv[1:]); "
        "used = resource.getrusage(resource.RUSAGE_SELF); "
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    seconds, memory_kb = done.stdout.split()[-2:]
    size = sum(path.stat().st_size for path in (run / "report" / "rollouts").iterdir())
    return float(seconds), size / 1e6, int(memory_kb) * 1024 / 1e6


async def open_page(run: Path, word: str) -> tuple[float, float, float]:
    """Seconds until a rollout stands there, until a first search has answered, and until a second one has."""
    address = (run / "report" / "rollouts" / "index.html").resolve().as_uri()
    async with open_browser() as page:
        await page.size(1600, 1000)
        times = []
        began = time.perf_counter()
        await page.open(address)
        await page.until("document.querySelector('.turn .t')")
        times.append(time.perf_counter() - began)
        for wanted in (word, f"{word}x"):
            began = time.perf_counter()
            await page.run(f"document.querySelector('#filter').value = '{wanted}'; applyFilter()")
            times.append(time.perf_counter() - began)
    return times[0], times[1], times[2]


def figures_of(run: Path, name: str, word: str, goals: tuple[float, float | None, float]) -> list[Figure]:
    """Of one run's page: `goals` are its size, the time to write it and the memory of that."""
    seconds, size, memory = write_page(run)
    shown, first, second = asyncio.run(open_page(run, word))
    return [
        at_most(f"{name}: size", size, "MB", goals[0]),
        at_most(f"{name}: written in, processor time", seconds, "s", goals[1]),
        at_most(f"{name}: memory while writing", memory, "MB", goals[2]),
        at_most(f"{name}: first rollout visible after", shown, "s", 1.0),
        at_most(f"{name}: first search", first, "s", 1.0),
        at_most(f"{name}: search", second, "s", None),
    ]


def main() -> int:
    options = command_line(__doc__)
    if PROGRAM is None:
        print("pages: chromium is not installed", file=sys.stderr)
        return 1
    found = []
    if options.run is not None:
        found += figures_of(options.run, "quickstart", "question", (10, 5, 1000))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, options.rollouts, options.texts)
        stored = sum(path.stat().st_size for path in (run / "streams" / "actor").rglob("*.rec"))
        found.append(Figure("large run: streams a rollout", stored / options.rollouts / 1e3, "kB"))
        found += figures_of(run, "large run", WORD, (60, 60, 500))
    settings = {"rollouts": options.rollouts, "texts": options.texts}
    return min(1, report("pages", found, settings))


if __name__ == "__main__":
    sys.exit(main())
