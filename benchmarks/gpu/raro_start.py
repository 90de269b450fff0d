"""A supervised start in RARO's `full` prompts for a pretrained model, on scripted play of chained arithmetic.

    python -m benchmarks.gpu.raro_start [--model DIR] [--out DIR] [--plays 24000]
                                        [--questions 8000] [--pack-tokens 16384]
                                        [--learning-rate 2e-4] [--seed 1] [--look 256]

An instruction model that was never taught the format neither ends with `<answer>` nor names a verdict; here
it learns both, and with them the players' mistakes (`benchmarks/_raro_arithmetic.py`). `benchmarks.gpu.raro`
calls it once for all arms. `start.json` in the folder says what was done, what the model and its start
answer to `--look` held-out questions and pairs, and that it is finished.
"""

import hashlib
import json
import random
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks._figures import command_line, write_json
from benchmarks._raro_arithmetic import (
    Play,
    chains,
    demonstrations,
    question,
    result_of,
    says_truly,
    worked_out,
)
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, extract_answer, parse_verdict
from domains.raro.prompts import critic_prompt, ordered, policy_prompt
from pipelinerl.base.tokenizing import decode, encode
from pipelinerl.extras.bootstrap.demonstrations import Encoded
from pipelinerl.extras.bootstrap.packs import pack
from pipelinerl.extras.bootstrap.supervised import train_supervised
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.modeling.loading import load_causal_lm
from pipelinerl.rollouts import MASKED_TOKEN_ID

WARMUP = 0.03
WEIGHT_DECAY = 0.01
MARK = "start.json"
MOST_TOKENS = 128
"""Of a completion."""


def encoded(llm: TrainableLLM, plays: Iterable[Play]) -> Iterator[Encoded]:
    """Each call as the actor sends it and reads it; the completion and the token that ends it are learned."""
    tokenizer = llm.load_tokenizer()
    for play in plays:
        prompt = llm.prompt_ids(play.prompt)
        said = np.append(encode(tokenizer, play.completion), np.int32(tokenizer.eos_token_id))
        labels = np.concatenate([np.full(len(prompt), MASKED_TOKEN_ID, np.int32), said])
        ids = np.concatenate([prompt, said]).astype(np.int32)
        yield Encoded(ids, labels, np.ones(len(ids), np.float32))


def save(model: torch.nn.Module, source: Path, out: Path) -> None:
    """Weights in bfloat16, and beside them everything but weights that the source has."""
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            shutil.copy(path, out)
    model.config._attn_implementation = "sdpa"
    model.to(dtype=torch.bfloat16).save_pretrained(out)


@torch.no_grad()
def sampled(llm: TrainableLLM, folder: Path, prompts: Sequence[Prompt], device: str) -> list[str | None]:
    """One completion at temperature 1 for each prompt; None where it does not end by itself."""
    tokenizer = llm.load_tokenizer()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = load_causal_lm(folder, dtype=dtype).to(device).eval()
    ids = [llm.prompt_ids(prompt) for prompt in prompts]
    longest, end = max(map(len, ids)), tokenizer.eos_token_id
    rows = np.stack([np.pad(one, (longest - len(one), 0), constant_values=end) for one in ids])
    mask = np.stack([np.arange(longest) >= longest - len(one) for one in ids])
    made = model.generate(
        input_ids=torch.tensor(rows, dtype=torch.int64, device=device),
        attention_mask=torch.tensor(mask, dtype=torch.int64, device=device),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MOST_TOKENS,
        eos_token_id=end,
        pad_token_id=end,
        use_cache=True,
    )
    texts = [row[longest:].tolist() for row in made.cpu()]
    return [decode(tokenizer, row[: row.index(end)], True) if end in row else None for row in texts]


def look(llm: TrainableLLM, folder: Path, count: int, device: str) -> dict[str, float | None]:
    """Shares over held-out questions: attempts that answer and are right, verdicts that can be read, ..."""
    asked, rng = chains("test", count), random.Random(count)
    attempts = sampled(llm, folder, [policy_prompt("full", "text", question(one)) for one in asked], device)
    answers = [None if said is None else extract_answer(said) for said in attempts]
    right = [said is not None and said.strip() == str(result_of(one)) for one, said in zip(asked, answers)]
    places = [1 + at % 2 for at in range(count)]
    pairs = [ordered(str(result_of(one)), str(worked_out(one, rng)[1]), at) for one, at in zip(asked, places)]
    prompts = [critic_prompt("full", question(one), *pair) for one, pair in zip(asked, pairs)]
    critics = sampled(llm, folder, prompts, device)
    verdicts = [None if said is None else parse_verdict(said) for said in critics]
    committed = [(verdict, at) for verdict, at in zip(verdicts, places) if verdict not in (None, TIE)]
    experts = [verdict == (ANSWER_1, ANSWER_2)[at - 1] for verdict, at in committed]
    return {
        "answered": float(np.mean([answer is not None for answer in answers])),
        "right": float(np.mean(right)),
        "verdicts": float(np.mean([verdict is not None for verdict in verdicts])),
        "agreement told truly": float(np.mean([said is not None and says_truly(said) for said in critics])),
        "ties": float(np.mean([verdict == TIE for verdict in verdicts])),
        "critic accuracy": float(np.mean(experts)) if experts else None,
        "questions": count,
    }


def main() -> int:
    options = command_line(__doc__)
    begun, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    llm = TrainableLLM(model_name=str(options.model), tokenizer_name=str(options.model))
    plays = demonstrations(options.seed, options.plays, options.questions)
    batches = list(pack(encoded(llm, plays), options.pack_tokens))
    model = load_causal_lm(options.model, dtype=torch.float32)
    losses = list[float]()

    def report(record: dict[str, float]) -> None:
        losses.append(record["loss"])
        print(f"{record['step']:.0f}/{len(batches)}  loss {record['loss']:.4f}", flush=True)

    train_supervised(
        model,
        batches,
        steps=len(batches),
        learning_rate=options.learning_rate,
        num_warmup_steps=max(1, int(WARMUP * len(batches))),
        weight_decay=WEIGHT_DECAY,
        log=report,
        log_every=max(1, len(batches) // 10),
        device=device,
    )
    save(model, options.model, options.out)
    record = {
        "plays": options.plays,
        "steps": len(batches),
        "tokens": int(sum(len(batch.input_ids) for batch in batches)),
        "learning_rate": options.learning_rate,
        "losses": losses,
        "seconds": round(time.monotonic() - begun, 1),
        "look": {
            "model": look(llm, options.model, options.look, device),
            "start": look(llm, options.out, options.look, device),
        },
        "sha256": hashlib.sha256((options.out / "model.safetensors").read_bytes()).hexdigest(),
    }
    write_json(options.out / MARK, record)
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
