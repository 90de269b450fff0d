"""Models whose layers have a state: what the launcher chooses for them, says and refuses."""

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.launcher.cards import Card
from pipelinerl.launcher.checks.data import WITH_STATES
from pipelinerl.launcher.decoder_shape import has_states
from pipelinerl.modeling.decoder_defaults import DEFAULTS, TEXT_PART
from pipelinerl.modeling.delta_kernel import kernel_missing
from tests.unit.launcher.conftest import QWEN_1_7B, Placed
from tests.unit.launcher.hub_configs import HUB
from tests.unit.launcher.test_vllm_elsewhere import interpreter

ON_CARDS = ("hardware=gpu", "hardware.devices=2xH200-141GB")


@pytest.fixture(params=["Qwen/Qwen3.5-4B", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def name(request: pytest.FixtureRequest, model: Path) -> str:
    (model / "config.json").write_text(json.dumps(HUB[request.param]))
    return str(request.param)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets this interpreter have the packages that are named, of Triton this version."""
    find, version = importlib.util.find_spec, importlib.metadata.version

    def installed(*names: str, triton: str = "3.7.1") -> None:
        def found(name: str, package: str | None = None) -> Any:
            return name in names if name in ("fla", "triton", "tilelang") else find(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", lambda *one: found(*one) or None)
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: triton if name == "triton" else version(name)
        )

    return installed


def test_rows_share_prefixes_unless_they_are_told_not_to(name: str, placed: Placed) -> None:
    for words, shares in (((), True), (("finetune.share_prefixes=false",), False)):
        cfg, said = placed(*words)
        assert cfg.finetune.shares_prefixes is shares
        assert "shared prefixes" not in said


def test_layers_are_compiled_where_their_kernel_is_installed(
    model: Path, placed: Placed, refused: Callable[..., str], packages: Callable[..., None]
) -> None:
    (model / "config.json").write_text(json.dumps(HUB["Qwen/Qwen3.5-4B"]))
    packages("fla", "triton")
    assert placed(*ON_CARDS)[0].derived.compile == "later"
    packages("triton")
    cfg, said = placed(*ON_CARDS)
    assert cfg.derived.compile is False and cfg.derived.gradient_checkpointing is True
    assert "layers with a state, without" in said
    assert "torch's own form, slow │ flash-linear-attention is not │ install the extra `linear`" in said
    assert "(flash-linear-attention is not installed); install the extra `linear`, or set" in refused(
        *ON_CARDS, "finetune.compile=true"
    )


def test_a_triton_whose_gradients_are_wrong_is_named_before_anything_starts(
    model: Path, placed: Placed, refused: Callable[..., str], packages: Callable[..., None]
) -> None:
    (model / "config.json").write_text(json.dumps(HUB["Qwen/Qwen3.5-4B"]))
    packages("fla", "triton", triton="3.6.0")
    cfg, said = placed(*ON_CARDS)
    assert cfg.derived.compile is False and "torch's own form, slow" in said
    assert "with Triton 3.6.0" in said and "install tilelang or Triton 3.7.1" in said
    assert "(its gradients are wrong on Hopper cards with Triton 3.6.0); install tilelang" in refused(
        *ON_CARDS, "finetune.compile=true"
    )
    cfg, said = placed("hardware=gpu", "hardware.devices=4xA100-80GB")
    assert cfg.derived.compile == "later" and "torch's own form" not in said


@pytest.mark.parametrize(
    ("triton", "more", "hopper", "works"),
    [
        ("3.3.1", (), True, True),
        ("3.4.0", (), True, False),
        ("3.6.0+git1", (), True, False),
        ("3.6.0", ("tilelang",), True, True),
        ("3.6.0", (), False, True),
        ("3.7.0", (), True, False),
        ("3.7.1", (), True, True),
    ],
)
def test_which_versions_of_triton_have_the_kernel(
    packages: Callable[..., None], triton: str, more: tuple[str, ...], hopper: bool, works: bool
) -> None:
    packages("fla", "triton", *more, triton=triton)
    assert (kernel_missing(hopper) is None) is works


def test_cards_of_hopper_are_known_by_their_names() -> None:
    hopper = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA H20", "H200-141GB")
    others = ("NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA L40S", "")
    assert all(Card(1, 1, name).hopper for name in hopper)
    assert not any(Card(1, 1, name).hopper for name in others)


def test_the_types_that_are_let_through_are_those_with_a_shape() -> None:
    sized = {kind for kind, fields in DEFAULTS.items() if "linear_num_value_heads" in fields}
    assert {*WITH_STATES} == sized | {whole for whole, text in TEXT_PART.items() if text in sized}


def test_other_layers_that_are_called_linear_have_no_known_state() -> None:
    assert not has_states(
        {"model_type": "minimax", "num_hidden_layers": 2, "layer_types": 2 * ["linear_attention"]}
    )
    assert not has_states({}) and not has_states(None)


TRITON = "--gdn-prefill-backend triton"


@pytest.fixture
def beside_vllm(tmp_path: Path) -> Callable[[bool], str]:
    """An override that names an interpreter with a vLLM, with flashinfer or without."""

    def made(flashinfer: bool) -> str:
        folder = tmp_path / f"flashinfer_{flashinfer}"
        folder.mkdir(exist_ok=True)
        return f"vllm_config.python={interpreter(folder, '0.33.0', True, 'vllm', flashinfer)}"

    return made


def started(folder: Path) -> str:
    """How a dry run would start its first engine."""
    return (folder / "run/actor_vllm_0/start.sh").read_text()


def test_engines_without_flashinfer_get_the_kernel_that_every_vllm_has(
    model: Path, placed: Placed, beside_vllm: Callable[[bool], str], tmp_path: Path
) -> None:
    (model / "config.json").write_text(json.dumps(HUB["Qwen/Qwen3.5-4B"]))
    said = placed(*ON_CARDS, beside_vllm(False))[1]
    assert "prompts through triton │ vLLM without flashinfer" in said
    assert TRITON in started(tmp_path)
    said = placed(*ON_CARDS, beside_vllm(True))[1]
    assert "prompts through" not in said and "gdn-prefill" not in started(tmp_path)


def test_a_kernel_that_was_asked_for_stays(
    model: Path, placed: Placed, beside_vllm: Callable[[bool], str], tmp_path: Path
) -> None:
    (model / "config.json").write_text(json.dumps(HUB["Qwen/Qwen3.5-4B"]))
    given = "+vllm_config.vllm_kwargs.gdn_prefill_backend=cutedsl"
    said = placed(*ON_CARDS, beside_vllm(False), given)[1]
    assert "prompts through cutedsl" in said and "flashinfer" not in said
    assert "--gdn-prefill-backend cutedsl" in started(tmp_path) and TRITON not in started(tmp_path)


def test_engines_of_a_model_of_attention_alone_get_no_such_flag(
    model: Path, placed: Placed, beside_vllm: Callable[[bool], str], tmp_path: Path
) -> None:
    (model / "config.json").write_text(json.dumps(QWEN_1_7B))
    placed(*ON_CARDS, beside_vllm(False))
    assert "gdn-prefill" not in started(tmp_path)
