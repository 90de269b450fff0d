"""A small run that never took place, with texts of a real tokenizer, to test the page of rollouts with.

Two groups of training with three attempts of two turns, of which one is trained and one filtered, a failed
rollout, and two evaluations of two problems.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from pipelinerl.base.tokenizing import decode, encode, load_tokenizer
from pipelinerl.config.files import config_path
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.sample import Sample, settle_group
from pipelinerl.rollouts import MASKED_TOKEN_ID, TrainingText
from pipelinerl.run_state.accounting import Outcome, RolloutLog
from pipelinerl.streams import SingleStreamSpec, write_to_streams

MODEL = Path(__file__).parents[2] / "domains" / "guessing" / "checkpoint"
HOSTILE = '</script><img src=x onerror="window.broken=1"><b>bold</b> \u2028 \U0001f600'
"""An answer that tries to become markup and code."""
TRAINED, FILTERED, FAILED = "0-000001", "0-000002", "0-000003"
Record = dict[str, Any]


def text(
    group: str, attempt: int, step: int, reward: float, answer: str, version: int = 0, **fields: Any
) -> Record:
    """One text as the actor writes it; its answer is in the prompt of the next one."""
    tokenizer = load_tokenizer(str(MODEL))
    earlier = "".join(f"<|user|>turn {turn}: guess 1-100<|assistant|>50" for turn in range(step))
    prompt = f"{earlier}<|user|>turn {step}: guess 1-100<|assistant|>"
    before, sampled = encode(tokenizer, prompt), encode(tokenizer, answer)
    output = decode(tokenizer, sampled, skip_special=False)
    logprobs = -np.arange(1, len(sampled) + 1, dtype=np.float32) / 4
    half = len(sampled) // 2
    spans = [(version, 0, half), (version + 8, half, len(sampled))] if half else [(version, 0, len(sampled))]
    record = TrainingText(
        text=decode(tokenizer, before, skip_special=False) + output,
        n_predicted=len(output),
        reward=reward,
        logprobs=logprobs,
        input_ids=np.concatenate([before, sampled]),
        labels=np.concatenate([np.full(len(before), MASKED_TOKEN_ID, np.int32), sampled]),
        group_id=group,
        finished=True,
        prompt_tokens=len(before),
        output_tokens=len(sampled),
        weight_versions=spans,
        situation=f"guess:{step}",
        finish_reason="stop",
        metadata={
            "group_id": group,
            "rollout_index": attempt,
            "step_index": step,
            "model_version": version,
            "reward_task": reward,
            "reward_length": -0.25 * (attempt == 2),
            "note": "plain",
        },
    ).to_record()
    return record | fields


def group(
    name: str, rewards: Sequence[float], turns: int = 2, version: int = 0, last: str = "50"
) -> list[Record]:
    """A group with one attempt for each reward; the last attempt ends with `last`."""
    return [
        text(
            name,
            attempt,
            step,
            reward,
            last if (attempt, step) == (len(rewards) - 1, turns - 1) else f"{50 + attempt}",
            version,
        )
        for attempt, reward in enumerate(rewards)
        for step in range(turns)
    ]


def _evaluation(version: int, problem: int) -> list[Record]:
    reward = 1.0 if version and problem == 0 else 0.5
    return [text(f"0-eval{version}-{problem}", 0, 0, reward, f"{version + problem}", version)]


def write_training(
    output_dir: Path, records: Sequence[Record], advantages: Sequence[float], step: int = 0
) -> None:
    """The texts as an optimizer step saw them."""
    samples = [Sample.from_record(record) for record in records]
    settle_group(samples)
    for sample, advantage in zip(samples, advantages, strict=True):
        sample.advantage, sample.ref_logprobs, sample.loss_weight_scale = (
            advantage,
            sample.old_logprobs - 0.5,
            0.5,
        )
    with write_to_streams(SingleStreamSpec(output_dir, "training_data")) as stream:
        for batch in assemble_step(samples, step, 4096)[0]:
            stream.write(batch.to_record())


def recorded_run(output_dir: Path, hostile: str = HOSTILE) -> Path:
    """Write the run; returns its folder."""
    trained = group(TRAINED, [0.0, 0.5, 1.0], version=8, last=hostile)
    filtered = group(FILTERED, [0.5, 0.5, 0.5])
    config_path(output_dir).parent.mkdir(parents=True)
    OmegaConf.save(
        {"model_path": str(MODEL), "domain_name": "guessing", "attempts": 3}, config_path(output_dir)
    )
    with write_to_streams(SingleStreamSpec(output_dir, "actor")) as stream:
        for records in (trained, filtered):
            stream.write(records)
    with write_to_streams(SingleStreamSpec(output_dir, "actor_test")) as stream:
        for version in (0, 16):
            for problem in range(2):
                stream.write(_evaluation(version, problem))
    write_training(output_dir, trained, [reward - 0.5 for reward in (0, 0, 0.5, 0.5, 1, 1)], step=4)
    with write_to_streams(SingleStreamSpec(output_dir, "stats_test")) as stream:
        for version in (0, 16):
            values = {"reward": [0.5 + version / 32, 0.5], "success": [1, 0]}
            stream.write({"version": version, "start": "0", "values": values})
    with write_to_streams(SingleStreamSpec(output_dir, "stats_rollouts")) as stream:
        for name in (TRAINED, FILTERED, FAILED):
            stream.write(_measured(name))
    _account(output_dir)
    return output_dir


def _measured(name: str) -> Record:
    failed = name == FAILED
    rollouts = [
        {
            "index": index,
            "reward": None if failed else index / 2,
            "success": None if failed else 1.0,
            "seconds": 1.5,
            "retries": 0,
            "dataset": "train",
            "domain": None,
            "ending": "failed" if failed else "done",
            "reason": "timeout" if failed else "",
        }
        for index in range(1 if failed else 3)
    ]
    return {"group": name, "problem": 7, "version": 8, "rollouts": rollouts}


def _account(output_dir: Path) -> None:
    names = {name: [f"{name}/{index}" for index in range(3)] for name in (TRAINED, FILTERED)}
    tests = [f"0-eval{version}-{problem}/0" for version in (0, 16) for problem in range(2)]
    with RolloutLog(output_dir, "actor") as log:
        log.record(Outcome.STARTED, [*names[TRAINED], *names[FILTERED], f"{FAILED}/0"])
        log.record(Outcome.FAILED, [f"{FAILED}/0"], "timeout")
        log.record(Outcome.EVAL_STARTED, tests)
        log.record(Outcome.EVAL_DONE, tests)
    with RolloutLog(output_dir, "finetune") as log:
        log.record(Outcome.TRAINED, names[TRAINED])
    with RolloutLog(output_dir, "preprocess") as log:
        log.record(Outcome.FILTERED, names[FILTERED], "zero_advantage")
