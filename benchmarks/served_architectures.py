"""Which architectures a CPU build of vLLM serves with the trainer's weights, and how exactly.

    python -m benchmarks.served_architectures [--vllm PYTHON] [NAME ...]

`PYTHON` names the interpreter of an environment with vLLM (CONTRIBUTING.md). Each architecture of
`architectures` is saved with random weights, loaded by vLLM in a process of its own and given two versions
through the file transport, under the names in which versions travel. Log-probabilities of prompts and of
what vLLM samples behind them are compared with transformers' eager attention in float32, before and after
the updates. Rows of `results/vllm_architectures.json` are replaced; `docs/models.md` explains what differs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks._figures import RESULTS, command_line, write_json
from benchmarks.architectures import ARCHITECTURES, BY_NAME, SPREAD, VOCAB, Architecture
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.engines.vllm.options import serve_env
from pipelinerl.engines.vllm.weight_names import vllm_names
from pipelinerl.modeling.model import distinct_parameters, load_model, persistent_buffers
from pipelinerl.weights.transports.file import FileTransport

RECORD = RESULTS / "vllm_architectures.json"
DEADLINE_S = 400.0
POSITIONS = 64
SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "head_dim": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_attention_heads_per_layer": [2, 2],
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
"""vLLM's kernels for CPUs want heads of 32, experts of 32 and latent attention of DeepSeek's own width."""
OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "DiffLlama": {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128},
    "Qwen2": {"use_sliding_window": False, "layer_types": ["full_attention"] * 2, "sliding_window": None},
}
"""Fields of single models. vLLM refuses Qwen 2's windows if only some layers have them."""
ROOT = Path(__file__).resolve().parents[1]


def tiny(one: Architecture, seed: int) -> PreTrainedModel:
    """Its model with the widths that vLLM's kernels have, every weight and buffer random."""
    heads = {"num_key_value_heads": 2} if "kv_lora_rank" in one.fields else {}
    model = one.model({**SIZES, **heads, **OTHERWISE.get(one.family, {})}, SPREAD / 2, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, buffer in persistent_buffers(model):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) / 10)
    return model.float()  # Apertus' activation is in bfloat16 otherwise


@torch.no_grad()
def difference(model: PreTrainedModel, said: list[dict[str, Any]]) -> float:
    """The largest of any token, in nats, of what vLLM said of texts; inf where it said no number."""
    worst = 0.0
    for text in said:
        ids = torch.tensor(text["ids"])
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        own = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        found = float((own - torch.tensor(text["logprobs"])).abs().max())
        worst = max(worst, found if found == found else float("inf"))
    return worst


def measured(one: Architecture, python: str) -> dict[str, Any]:
    """One row: vLLM's class, and differences in nats before and after updates, or why there are none."""
    own, other = tiny(one, 0), tiny(one, 1)
    for (_, old), (_, new) in zip(persistent_buffers(own), persistent_buffers(other), strict=True):
        new.copy_(old)  # they are not trained
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own.save_pretrained(folder / "model")
        transport = FileTransport(folder / "versions")
        versions = []
        for number, source in enumerate((other, own), 1):
            source.save_pretrained(folder / "trained")
            trained = load_model(folder / "trained")
            sent = vllm_names(trained.config.model_type, distinct_parameters(trained))
            versions.append(transport.stage(number, sent).info)
        texts = [rng.integers(3, VOCAB, length).tolist() for length in (23, 9, 30)]
        job = {"texts": texts, "versions": versions, "positions": POSITIONS}
        (folder / "job.json").write_text(json.dumps(job))
        log = _serve(python, folder)
        transport.close()
        answer = folder / "served.json"
        said = json.loads(answer.read_text()) if answer.exists() else {"states": [], "error": log}
    pairs = zip((own, other, own), said["states"], strict=False)
    states = [difference(model, state) for model, state in pairs]
    row = {"name": one.family, "model": said.get("model", "")}
    row |= dict(zip(("before", "after", "again"), states, strict=False))
    return row | ({"error": said["error"]} if "error" in said else {})


def _serve(python: str, folder: Path) -> str:
    """The last line of what vLLM's process wrote."""
    env = {**os.environ, **serve_env(()), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # its model is in the process that loads the versions
    command = [python, "-m", "benchmarks._served_model", str(folder)]
    with (folder / "log").open("wb") as out:
        try:
            subprocess.run(
                command, stdout=out, stderr=out, env=env, cwd=folder, timeout=DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {DEADLINE_S:g} s"
    return ((folder / "log").read_text(errors="replace").splitlines() or ["no word"])[-1]


def main() -> int:
    arguments = command_line(__doc__)
    torch.set_num_threads(1)
    python = str(arguments.vllm or sys.executable)
    try:
        version = installed_version(python)
    except ValueError as error:
        print(str(error).replace("vllm_config.python=", "--vllm ", 1), file=sys.stderr)
        return 2
    if version is None:
        print(f"{python} has no vLLM; name an interpreter that has it with --vllm", file=sys.stderr)
        return 2
    for one in [BY_NAME[name] for name in arguments.words] or ARCHITECTURES:
        row = {**measured(one, python), "vllm": version}
        print(json.dumps(row), flush=True)
        kept = json.loads(RECORD.read_text()) if RECORD.exists() else {"rows": []}
        rows = {each["name"]: each for each in [*kept["rows"], row]}
        write_json(RECORD, kept | {"rows": [rows[name] for name in BY_NAME if name in rows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
