"""TRL's asynchronous trainer on the work of `benchmarks.gpu.trl`, which starts this in TRL's environment.

    python -m benchmarks.gpu.trl_peer [--model DIR] [--url URL] [--hardware gpu|cpu] [--steps 12] [--out FILE]

A vLLM server runs beside it at `--url`. Every optimizer step appends a line of JSON to `--out`: TRL's own
metrics and the time. TRL is used as its documents say, with these exceptions:

- Its attention kernel comes from a hub; here torch's variable-length one computes the same, offline.
- `ignore_eos` is sent with each request, which TRL has no option for: completions have the same length then.
- On a CPU, the rehearsal: a plain attention, no transfer of weights, and no vLLM has to be installed.

Nothing else of this repository is imported but the workload. TRL's rollout process imports this file again.
"""

import argparse
import inspect
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl.chat_template_utils import add_response_schema
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing
from trl.experimental.async_grpo import async_grpo_trainer as trainer_module
from trl.experimental.async_grpo import async_rollout_worker as worker_module

from benchmarks.gpu.trl_workload import WORKLOADS, Workload, prompts, reward
from pipelinerl.base.errors import CommandParser


def on_card(query: Any, key: Any, value: Any, *spans: Any, softmax_scale: Any = None, **_: Any) -> Any:
    """FlashAttention's arguments to torch's kernel: `[tokens, heads, size]`, offsets and longest lengths."""
    from torch.nn.attention.varlen import varlen_attn

    # Causal and aligned at the last key in every version; the names have changed.
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "scale" in known:
        options["scale"] = softmax_scale
    groups = query.shape[1] // key.shape[1]
    if "enable_gqa" in known:
        options["enable_gqa"] = groups > 1
    elif groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    of_queries, of_keys, most_queries, most_keys = spans
    offsets = of_queries.int(), of_keys.int()
    return varlen_attn(query, key, value, *offsets, int(most_queries), int(most_keys), **options)


def on_cpu(query: Any, key: Any, value: Any, *spans: Any, softmax_scale: Any = None, **_: Any) -> Any:
    """The same, one segment after the other."""
    groups, out = query.shape[1] // key.shape[1], []
    of_queries, of_keys = (pairwise(one.tolist()) for one in spans[:2])
    for (first, last), (begin, end) in zip(of_queries, of_keys, strict=True):
        q, k, v = (part.transpose(0, 1) for part in (query[first:last], key[begin:end], value[begin:end]))
        new, known = last - first, end - begin
        mask = torch.ones(new, known, dtype=torch.bool).tril(known - new)
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=softmax_scale
        )
        out.append(attended.transpose(0, 1))
    return torch.cat(out)


ask = worker_module._AsyncRolloutLoop._post


async def ask_for_all(self: Any, path: str, payload: dict[str, Any], *rest: Any, **named: Any) -> Any:
    """TRL's request, without an end before the last token."""
    return await ask(self, path, payload | {"ignore_eos": True}, *rest, **named)


def adapt(cpu: bool) -> None:
    """What the docstring of this file names; in TRL's rollout process as well, which imports this."""
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=on_cpu if cpu else on_card)
    worker_module._AsyncRolloutLoop._post = ask_for_all
    if cpu:
        worker_module.is_vllm_available = lambda *_, **__: True
        trainer_module.get_peak_flops_per_device = lambda *_: None


class NoTransfer:
    """Weights stay as they are."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Steps(TrainerCallback):
    """Appends what TRL logs of each optimizer step."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        numbers = {name: one for name, one in (logs or {}).items() if isinstance(one, (int, float))}
        with self._out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"time": time.time(), "step": state.global_step, **numbers}) + "\n")


def score(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [reward(ids) for ids in completion_ids]


def tokenizer_of(model: str) -> Any:
    """The model's, whose answers TRL reads as Qwen3's: it knows templates by their text, but not this one."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    template = tokenizer.chat_template
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    tokenizer = add_response_schema(tokenizer)
    tokenizer.chat_template = template
    return tokenizer


def config(work: Workload, options: argparse.Namespace, cpu: bool) -> AsyncGRPOConfig:
    """TRL's defaults, but for the workload, what is written where, and the rehearsal."""
    rehearsal = {"use_cpu": True, "bf16": False} if cpu else {}
    return AsyncGRPOConfig(
        output_dir=str(options.out.with_suffix(".trl")),
        max_steps=options.steps,
        num_generations=work.group,
        max_completion_length=work.sampled,
        max_staleness=work.updates,
        max_inflight_tasks=work.in_flight,
        per_device_train_batch_size=work.texts // work.rows,
        gradient_accumulation_steps=work.rows,
        token_budget=work.row,
        learning_rate=work.learning_rate,
        vllm_server_base_url=options.url,
        report_to=[],
        save_strategy="no",
        **rehearsal,
    )


def main() -> int:
    parser = CommandParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--hardware", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    cpu, work = options.hardware == "cpu", WORKLOADS[options.hardware]
    questions = [{"prompt": [{"role": "user", "content": text}]} for text in prompts(work)]
    AsyncGRPOTrainer(
        model=options.model,
        reward_funcs=score,
        args=config(work, options, cpu),
        train_dataset=Dataset.from_list(questions),
        processing_class=tokenizer_of(options.model),
        callbacks=[Steps(options.out)],
        weight_transfer=NoTransfer() if cpu else None,
    ).train()
    return 0


adapt("cpu" in sys.argv)

if __name__ == "__main__":
    sys.exit(main())
