"""Exchanges recorded from real servers, read by the client's own functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.inference.answers import UNVERSIONED, read_generations, read_prompt_logprobs
from pipelinerl.inference.vllm import VllmVersion

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
RECORDED = sorted(path.name for path in FIXTURES.glob("vllm_*.json"))


def exchanges(name: str) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads((FIXTURES / name).read_text())["exchanges"]:
        rows.setdefault(row["path"].partition("?")[0], []).append(row)
    return rows


def generations(rows: dict[str, list[dict[str, Any]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    answered = [row for row in rows["/inference/v1/generate"] if row["status"] == 200]
    return answered[0], answered[1]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_generation_becomes_ids_log_probabilities_and_versions(name: str) -> None:
    rows = exchanges(name)
    version = VllmVersion.parse(rows["/version"][0]["answer"]["version"])
    row, _ = generations(rows)
    prompt = np.array(row["request"]["token_ids"], dtype=np.int32)
    (one,) = read_generations(json.dumps(row["answer"]).encode(), prompt, n=1, announced_version=7)
    assert len(one.token_ids) == row["request"]["sampling_params"]["max_tokens"] == len(one.logprobs)
    assert one.finish_reason == "length" and (one.logprobs < 0).all()
    if version.has_scale_out:  # it says what sampled each token
        assert one.versions == [(UNVERSIONED, 0, len(one.token_ids))] and one.exact_versions
    else:
        assert one.versions == [(7, 0, len(one.token_ids))] and not one.exact_versions


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_prompt_scores_are_read(name: str) -> None:
    _, row = generations(exchanges(name))
    prompt = np.array(row["request"]["token_ids"], dtype=np.int32)
    scores = read_prompt_logprobs(json.dumps(row["answer"]).encode(), prompt)
    assert scores.shape == (len(prompt) - 1,) and (scores < 0).all()


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_control_routes_are_as_the_publisher_reads_them(name: str) -> None:
    rows = exchanges(name)
    assert rows["/get_world_size"][0]["answer"]["world_size"] == 1
    assert isinstance(rows["/is_paused"][0]["answer"]["is_paused"], bool)
    assert rows["/update_weights"][0]["status"] == 500, "out of order"
    assert rows["/weight_info"][0]["status"] in (200, 404)
