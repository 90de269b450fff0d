"""What vLLM's HTTP process does to build one answer: `VLLM_PYTHON=... python -m benchmarks.vllm_answer`.

vLLM's own functions, called in its interpreter on an answer of 512 tokens with their log-probabilities,
without a server: reading the log-probabilities, making the objects of the answer, turning them into dicts,
writing them as JSON. Each is the shortest of 15 times 20 calls, so the shares hold, and the sum is below what
a busy process needs (`benchmarks.vllm_front`). The route is that of 0.26. Results go to
benchmarks/results/vllm_answer.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks._figures import RESULTS, Figure, report
from benchmarks.gpu.served import PYTHON
from pipelinerl.inference.vllm import installed_version

TOKENS = 512
DEADLINE_S = 180.0
PARTS = """
import json, random, sys, time
from fastapi.responses import JSONResponse
from vllm.entrypoints.openai.engine.protocol import UsageInfo
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateResponse, GenerateResponseChoice
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.logprobs import FlatLogprobs
tokens = int(sys.argv[1])
ids = [random.randrange(2000) for _ in range(tokens)]
flat = FlatLogprobs()
for one in ids:
    flat.append_fast([one], [random.gauss(-7, 1)], (1,), (None,))

def read():
    return [flat[place] for place in range(tokens)]

def objects():
    return ServingTokens._create_tokens_logprobs(None, ids, flat, 0)

def response():
    usage = UsageInfo(prompt_tokens=1, completion_tokens=tokens, total_tokens=tokens + 1)
    choice = GenerateResponseChoice(index=0, logprobs=made, finish_reason="length", token_ids=ids)
    return GenerateResponse(
        request_id="x", created=1, model="bench", choices=[choice], usage=usage, prompt_logprobs=None
    )

def shortest(work):
    seconds = []
    for _ in range(15):
        started = time.perf_counter()
        for _ in range(20):
            work()
        seconds.append((time.perf_counter() - started) / 20)
    return 1e3 * min(seconds)

made = objects()
answer = response()
content = answer.model_dump()
found = {"reading log-probabilities": shortest(read)}
found["objects"] = shortest(objects) - found["reading log-probabilities"] + shortest(response)
found["dicts"] = shortest(answer.model_dump)
found["JSON"] = shortest(lambda: JSONResponse(content=content))
print("FOUND " + json.dumps(found))
"""


def figures(found: dict[str, float]) -> list[Figure]:
    """Milliseconds of each part, and its share of them all."""
    whole = sum(found.values())
    rows = [Figure(f"an answer of {TOKENS} tokens", whole, "ms")]
    for part, value in found.items():
        rows += [Figure(f"  {part}", value, "ms"), Figure(f"  {part}: share", 100 * value / whole, "%")]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=PYTHON, help="interpreter with vLLM; VLLM_PYTHON by default")
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm_answer.json")
    options = parser.parse_args()
    version = installed_version(options.python) if options.python else None
    if version is None:
        raise SystemExit("name an interpreter that has vLLM: --python or VLLM_PYTHON")
    command = [options.python, "-c", PARTS, str(TOKENS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    said = [line for line in run.stdout.splitlines() if line.startswith("FOUND ")]
    if not said:
        last = (run.stderr.strip().splitlines() or ["no output"])[-1]
        raise SystemExit(f"vLLM {version} has no such route, or it failed: {last}")
    report("vllm_answer", figures(json.loads(said[0].removeprefix("FOUND "))), {"vllm": version}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
