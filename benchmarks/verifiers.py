"""What an environment of verifiers adds to a call, beside asking the rollout's llm directly.

    python -m benchmarks.verifiers [--episodes 40] [--rounds 5]

An engine in another process answers every call at once with 8 tokens, so that what remains is the client's
part: verifiers' seat, its interception server, its renderer, OpenAI's client and the recording endpoint, all
in this process. An episode of `halving` has one call, one of `higher_lower` eight; both are in
`docs/examples/verifiers`. The ways take turns; times are medians over the episodes of a round, divided by
their calls.
"""

import asyncio
import statistics
import sys
import time
from typing import Any

import aiohttp

from benchmarks._figures import ROOT, Figure, at_most, command_line, report
from benchmarks._instant import CONTEXT, TOKENS, serve
from benchmarks._processes import function
from domains.verifiers import generate_verifiers_rollout, load_problems
from pipelinerl.async_llm import llm_async_generate
from pipelinerl.config.compose import compose
from pipelinerl.extras import recorder
from pipelinerl.llm import Prompt, TrainableLLM

MODEL = ROOT / "domains/guessing/checkpoint"
CALLS = {"halving": 1, "higher_lower": 8}
TOGETHER = 16


async def measure(port: int, episodes: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """By way, milliseconds of a call and of a core for one, in each round."""
    cfg = compose(["+domain=verifiers", "hardware=cpu"]).tree
    llm = TrainableLLM(model_name=str(MODEL), base_url=f"http://127.0.0.1:{port}", context_size=CONTEXT)
    llm.parameters["max_tokens"], llm.collect_logprobs = 16, True
    tasks = {way: load_problems(["test"], {"taskset": {"id": way}}, test_count=1)[0] for way in CALLS}
    async with aiohttp.ClientSession() as http:

        async def play(way: str) -> None:
            if way == "llm":
                await llm_async_generate(llm, Prompt.from_user_message("guess 1-100"), http)
                return
            result = await generate_verifiers_rollout(cfg, llm, tasks[way], http)
            assert result.failed is None and result.metrics is not None, result.failed
            turns: Any = result.metrics
            assert turns.turns == CALLS[way], turns

        found: dict[str, dict[str, list[float]]] = {way: {"wall": [], "cpu": []} for way in ("llm", *CALLS)}
        for way in found:
            await asyncio.gather(*(play(way) for _ in range(TOGETHER)))
        for _ in range(rounds):
            for way, one in found.items():
                calls, times = CALLS.get(way, 1), []
                for _ in range(episodes):
                    start = time.perf_counter()
                    await play(way)
                    times.append(1e3 * (time.perf_counter() - start) / calls)
                one["wall"].append(statistics.median(times))
                start = time.process_time()
                await asyncio.gather(*(play(way) for _ in range(TOGETHER)))
                one["cpu"].append(1e3 * (time.process_time() - start) / (TOGETHER * calls))
    await recorder.close()
    return found


def main() -> int:
    options = command_line(__doc__)
    sys.path.insert(0, str(ROOT / "docs/examples/verifiers"))
    with function(serve, 0.0, TOKENS) as engine:
        found = asyncio.run(measure(engine.recv(), options.episodes, options.rounds))
    figures = [Figure("a call to the llm directly, median", statistics.median(found["llm"]["wall"]), "ms")]
    for way, calls in CALLS.items():
        name = f"an episode of {calls} call{'s' if calls > 1 else ''}"
        wall = [one - other for one, other in zip(found[way]["wall"], found["llm"]["wall"], strict=True)]
        cpu = [one - other for one, other in zip(found[way]["cpu"], found["llm"]["cpu"], strict=True)]
        figures += [
            at_most(f"added to a call, {name}, worst round", max(wall), "ms", 45.0),
            Figure(f"added to a call, {name}, median round", statistics.median(wall), "ms"),
            Figure(f"added CPU time of a call, {name}, median round", statistics.median(cpu), "ms/core"),
        ]
    return report("verifiers", figures, vars(options))


if __name__ == "__main__":
    sys.exit(main())
