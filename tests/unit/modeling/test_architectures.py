"""Architectures of transformers train exactly, with tiny random weights: `docs/models.md` names them."""

import json
import re

import pytest
import torch

from benchmarks import architectures
from benchmarks._figures import RESULTS, ROOT
from benchmarks.architectures import ARCHITECTURES, BY_NAME, Batch, measured, problems, with_gradients
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.policy import Policy

FAST = (
    "Mistral",
    "Gemma2",
    "Gemma3",
    "Cohere2",
    "GptOss",
    "Qwen3Moe",
    "StableLm",
    "DeepseekV3",
    "GPTNeoX",
    "Phimoe",
)
"""One of each kind."""


@pytest.mark.parametrize("name", FAST)
def test_an_architecture_of_each_kind_trains_as_each_sample_alone(name: str) -> None:
    assert list(problems(measured(BY_NAME[name]))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.family for one in ARCHITECTURES if one.family not in FAST])
def test_every_architecture_trains_as_each_sample_alone(name: str) -> None:
    assert list(problems(measured(BY_NAME[name]))) == []


def test_the_page_has_every_architecture() -> None:
    assert len(ARCHITECTURES) >= 30
    written = json.loads((RESULTS / "architectures.json").read_text())["rows"]
    assert [row["name"] for row in written] == [one.family for one in ARCHITECTURES]
    page = (ROOT / "docs/models.md").read_text()
    assert not [one for one in ARCHITECTURES if f"`{one.family}` ({one.examples})" not in page]


def test_the_page_says_what_keeps_vllm_from_agreeing() -> None:
    tried = json.loads((RESULTS / "vllm_architectures.json").read_text())["rows"]
    assert {row["name"] for row in tried} == BY_NAME.keys()
    others = {row["name"] for row in tried if row.get("error") or max(row["before"], row["after"]) > 1e-4}
    listed = (ROOT / "docs/models.md").read_text().partition("The exceptions with vLLM are:")[2]
    said = re.findall(r"`(\w+)`", " ".join(re.findall(r"^- (`.*?):", listed, re.MULTILINE)))
    assert set(said) == others and len(said) == len(others)


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "StableLm"])
@pytest.mark.parametrize("mode", [True, "selective"])
def test_recomputed_layers_have_the_same_gradients(name: str, mode: bool | str) -> None:
    """Also where a layer hands nothing on: what it was told is there when it is computed again."""
    batch, own = Batch.random(), BY_NAME[name].model()
    expected, wanted = with_gradients(batch.alone(own), batch, own)
    model = prepare_model(BY_NAME[name].model(), gradient_checkpointing=mode)  # type: ignore[arg-type]
    found, gradients = with_gradients(batch.packed(Policy(model), True), batch, model)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert architectures.gradient_distance(gradients, wanted) <= architectures.LIMIT


def test_a_wrong_window_is_told() -> None:
    """The comparison can fail: one token more is no rounding."""
    one = BY_NAME["Mistral"]
    batch, own = Batch.random(), one.model()
    expected = batch.alone(own).detach()
    other = one.model()
    other.config.sliding_window += 1
    found = batch.packed(Policy(prepare_model(other)), True).detach()
    assert architectures.distance(found, expected) > 100 * architectures.LIMIT
