"""Models whose layers have a state: what the launcher chooses for them, says and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.launcher import memory_choice, trainer_choice, trainer_memory
from pipelinerl.launcher.checks.data import WITH_STATES
from pipelinerl.launcher.decoder_defaults import DEFAULTS, TEXT_PART
from pipelinerl.launcher.decoder_shape import has_states
from tests.unit.launcher.conftest import Placed
from tests.unit.launcher.hub_configs import HUB

ON_CARDS = ("hardware=gpu", "hardware.devices=2xH200-141GB")


@pytest.fixture(params=["Qwen/Qwen3.5-4B", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def name(request: pytest.FixtureRequest, model: Path) -> str:
    (model / "config.json").write_text(json.dumps(HUB[request.param]))
    return str(request.param)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def installed(there: bool) -> None:
        for module in (trainer_choice, trainer_memory, memory_choice):
            monkeypatch.setattr(module, "kernel_installed", lambda: there)

    return installed


def test_rows_share_no_prefixes_and_the_table_says_so(name: str, placed: Placed) -> None:
    cfg, said = placed()
    assert not cfg.finetune.shares_prefixes and cfg.derived.with_states
    assert "shared prefixes │ none │ layers of the model have a state" in said


def test_shared_prefixes_that_were_asked_for_are_refused(name: str, refused: Callable[..., str]) -> None:
    assert "finetune.share_prefixes=true: layers of the model have a state" in refused(
        "finetune.share_prefixes=true"
    )


def test_a_model_of_attention_alone_goes_on_sharing(model: Path, placed: Placed) -> None:
    (model / "config.json").write_text(json.dumps(HUB["Qwen/Qwen3-8B"]))
    cfg, said = placed()
    assert cfg.finetune.shares_prefixes and not cfg.derived.with_states
    assert "shared prefixes" not in said


def test_layers_are_compiled_where_their_kernel_is_installed(
    model: Path, placed: Placed, refused: Callable[..., str], kernel: Callable[[bool], None]
) -> None:
    (model / "config.json").write_text(json.dumps(HUB["Qwen/Qwen3.5-4B"]))
    kernel(True)
    assert placed(*ON_CARDS)[0].derived.compile == "later"
    kernel(False)
    cfg, said = placed(*ON_CARDS)
    assert cfg.derived.compile is False and cfg.derived.gradient_checkpointing is True
    assert "layers with a state, without" in said
    assert "finetune.compile=true: layers with a state, without flash-linear-attention" in refused(
        *ON_CARDS, "finetune.compile=true"
    )


def test_the_types_that_are_let_through_are_those_with_a_shape() -> None:
    sized = {kind for kind, fields in DEFAULTS.items() if "linear_num_value_heads" in fields}
    assert {*WITH_STATES} == sized | {whole for whole, text in TEXT_PART.items() if text in sized}


def test_other_layers_that_are_called_linear_have_no_known_state() -> None:
    assert not has_states(
        {"model_type": "minimax", "num_hidden_layers": 2, "layer_types": 2 * ["linear_attention"]}
    )
    assert not has_states({}) and not has_states(None)
