"""Rollouts as a log of inspect (inspect.aisi.org.uk): `python -m pipelinerl.view RUN --eval FILE.eval`.

Such a log is a zip of JSON: `header.json`, `summaries.json`, `_journal/start.json`, a file for each sample.
What is written opens in `inspect view` and in `read_eval_log`. A group is a sample, its attempts are epochs;
situations, advantages and weight versions are metadata of a sample, because inspect has no place for them.
"""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelinerl.extras.viewer.join import by_rollout, reward_parts
from pipelinerl.extras.viewer.source import Record, RunSource, TextId, Trained
from pipelinerl.run_state.accounting import rollout_id

_FORMAT = 2
_SCORER = "reward"
Rewards = Callable[[str], float | None]
"""The reward of a rollout by its name, where it was measured."""


def write_eval(
    path: Path,
    source: RunSource,
    chosen: set[str],
    trained: Mapping[TextId, Trained],
    rewards: Rewards,
) -> int:
    """Write the chosen groups; returns how many rollouts they are. Raises OSError."""
    beside = path.with_name(f"~{path.name}")
    began, summaries, values = datetime.now(UTC), list[dict[str, Any]](), list[float]()
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as log:
        for sample in _samples(source, chosen, trained, rewards):
            name = f"{str(sample['id']).replace('/', '_')}_epoch_{sample['epoch']}.json"
            log.writestr(f"samples/{name}", json.dumps(sample))
            values.append(sample["scores"][_SCORER]["value"])
            kept = ("id", "epoch", "input", "target", "scores")
            summaries.append({key: sample[key] for key in kept} | {"completed": True})
        header = _header(source, began, values, len({summary["id"] for summary in summaries}))
        log.writestr("_journal/start.json", json.dumps({k: header[k] for k in ("version", "eval", "plan")}))
        log.writestr("summaries.json", json.dumps(summaries))
        log.writestr("header.json", json.dumps(header))
    beside.replace(path)
    return len(summaries)


def _samples(
    source: RunSource, chosen: set[str], trained: Mapping[TextId, Trained], rewards: Rewards
) -> Iterator[dict[str, Any]]:
    for records in source.groups():
        if (group := str(records[0]["group_id"])) not in chosen:
            continue
        for attempt, texts in by_rollout(records).items():
            name = rollout_id(group, attempt)
            reward = rewards(name)
            if reward is None:
                reward = sum(record["reward"] for record in texts) / len(texts)
            yield _sample(group, attempt, texts, reward, trained, source.accounting.outcome(name))


def _sample(
    group: str,
    attempt: int,
    texts: Sequence[Record],
    reward: float,
    trained: Mapping[TextId, Trained],
    outcome: tuple[str, str],
) -> dict[str, Any]:
    """One rollout: each text as a question of the user and the model's answer."""
    messages = [message for step, text in enumerate(texts) for message in _messages(text, step)]
    turns = [_turn(text, trained.get((group, attempt, step))) for step, text in enumerate(texts)]
    tokens = {
        "input_tokens": sum(len(text["input_ids"]) - len(text["logprobs"]) for text in texts),
        "output_tokens": sum(len(text["logprobs"]) for text in texts),
    }
    usage = tokens | {"total_tokens": sum(tokens.values())}
    last = messages[-1] if messages else {"role": "assistant", "content": ""}
    stop = {"length": "max_tokens"}.get(str(texts[-1]["finish_reason"]), "stop")
    return {
        "id": group,
        "epoch": attempt + 1,
        "input": messages[0]["content"] if messages else "",
        "target": "",
        "messages": messages,
        "output": {"model": "policy", "choices": [{"message": last, "stop_reason": stop}], "usage": usage},
        "scores": {_SCORER: {"value": reward, "answer": last["content"]}},
        "metadata": {"fate": outcome[0], "reason": outcome[1], "turns": turns},
        "store": {},
        "events": [],
        "model_usage": {"policy": usage},
        "attachments": {},
    }


def _messages(text: Record, step: int) -> list[dict[str, Any]]:
    end = len(text["text"]) - text["n_predicted"]
    return [
        {"id": f"prompt-{step}", "role": "user", "content": text["text"][:end]},
        {"id": f"answer-{step}", "role": "assistant", "content": text["text"][end:], "model": "policy"},
    ]


def _turn(text: Record, values: Trained | None) -> dict[str, Any]:
    """What inspect has no place for."""
    said = {"situation": text["situation"], "role": text["role"], "reward": text["reward"]}
    said |= {"parts": dict(reward_parts(text["metadata"])), "weight_versions": text["weight_versions"]}
    said |= {"logprobs": [round(float(value), 4) for value in text["logprobs"]]}
    return said if values is None else said | {"advantage": values.advantage, "step": values.step}


def _header(source: RunSource, began: datetime, rewards: Sequence[float], samples: int) -> dict[str, Any]:
    created, name = began.isoformat(), source.output_dir.resolve().name
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    metrics = {"mean": {"name": "mean", "value": mean, "params": {}}}
    score = {"name": _SCORER, "scorer": _SCORER, "params": {}, "metrics": metrics}
    task = str(source.tree.get("domain_name") or name)
    return {
        "version": _FORMAT,
        "status": "success",
        "eval": {
            "run_id": name,
            "eval_id": name,
            "task_id": name,
            "created": created,
            "task": task,
            "task_version": 0,
            "task_attribs": {},
            "task_args": {},
            "dataset": {"name": task, "samples": samples},
            "model": "policy",
            "model_args": {},
            "config": {"epochs": int(source.tree.get("attempts") or 1)},
            "packages": {},
            "metadata": {"model_path": str(source.tree.get("model_path") or "")},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {"total_samples": len(rewards), "completed_samples": len(rewards), "scores": [score]},
        "stats": {"started_at": created, "completed_at": created, "model_usage": {}},
    }
