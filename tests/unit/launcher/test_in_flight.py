"""How many rollouts run at once where nobody said: what the lag admits and the cache holds, within bounds."""

import json
from pathlib import Path

import pytest

from pipelinerl.config.compose import compose
from pipelinerl.launcher.cards import GIB, Card
from pipelinerl.launcher.memory_choice import IN_FLIGHT as KEY
from pipelinerl.launcher.memory_choice import choose_memory
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import ON_GPUS, QWEN_1_7B, Placed

BATCH, LENGTH = "finetune.gradient_accumulation_passes", "vllm_config.vllm_kwargs.max_model_len"
H200, A10 = (Card(total=n * GIB, free=n * GIB) for n in (140, 24))
SIZES = QWEN_1_7B | {"tie_word_embeddings": True}


def chosen(
    model: Path, *overrides: str, devices: int = 2, card: Card | None = H200
) -> tuple[int | None, str]:
    (model / "config.json").write_text(json.dumps(SIZES))
    made = compose(["+domain=guessing", "hardware=gpu", f"model_path={model}", f"{LENGTH}=2048", *overrides])
    found = choose_memory(made, one_host(devices), True, lambda device: card)
    return found.tree.actor.llm_max_rollouts, found.reasons.get(KEY, "")


@pytest.mark.parametrize(
    ("overrides", "devices", "number", "because"),
    [
        ((f"{BATCH}=256",), 2, 256, "256 samples of an update for 1 engine"),
        ((f"{BATCH}=256",), 8, 64, "258 samples of an update for 5 engines, at least 64"),
        ((f"{BATCH}=128", "max_lag=256"), 2, 384, "384 samples that max_lag=256 admits for 1 engine"),
        (
            (f"{BATCH}=256", "max_lag=1024"),
            2,
            512,
            "1280 samples that max_lag=1024 admits for 1 engine, at most 512",
        ),
        ((f"{BATCH}=16", "max_lag=0"), 2, 64, "16 samples that max_lag=0 admits for 1 engine, at least 64"),
        ((f"{BATCH}=256", "max_lag=100"), 2, 256, "256 samples that max_lag=100 admits for 1 engine"),
        (("vllm_config.vllm_kwargs.max-num-seqs=100",), 2, 100, "vllm_config.vllm_kwargs.max-num-seqs"),
        ((f"{KEY}=7",), 2, 7, ""),
    ],
)
def test_as_many_as_the_next_update_takes_are_shared_out(
    model: Path, overrides: tuple[str, ...], devices: int, number: int, because: str
) -> None:
    assert chosen(model, *overrides, devices=devices) == (number, because)


def test_no_more_than_the_cache_of_an_engine_holds(model: Path) -> None:
    number, because = chosen(model, f"{BATCH}=512", "finetune.lora.enabled=true", card=A10)
    assert number is not None and 64 < number < 200 and because == "room for their keys and values"
    assert chosen(model, f"{BATCH}=512", card=None)[0] == 512
    loose = "vllm_config.vllm_kwargs.max-num-seqs=400"
    bounded, because = chosen(model, f"{BATCH}=512", "finetune.lora.enabled=true", loose, card=A10)
    assert bounded is not None and 64 < bounded < 200 and because == "room for their keys and values"


def test_engine_and_actor_get_the_same_number_and_the_table_says_why(placed: Placed, tmp_path: Path) -> None:
    cfg, out = placed(*ON_GPUS, "hardware.devices=2", f"{BATCH}=256")
    assert (cfg.actor.llm_max_rollouts, cfg.engine.max_num_seqs) == (256, 256)
    assert "--max-num-seqs 256" in (tmp_path / "run/actor_vllm_0/start.sh").read_text()
    assert "256 for each engine" in out and "256 samples of an update" in out


@pytest.mark.parametrize(("given", "shown"), [((), 2), (("vllm_config.api_server_count=3",), 3)])
def test_the_table_has_the_http_processes_of_the_command(
    placed: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], shown: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    _, out = placed(*ON_GPUS, "hardware.devices=2", *given)
    assert f"HTTP processes │ {shown} for each engine" in out
    assert f"--api-server-count {shown}" in (tmp_path / "run/actor_vllm_0/start.sh").read_text()


def test_what_cannot_be_placed_is_left_to_the_checks(model: Path) -> None:
    for wrong in ("vllm_config.vllm_kwargs.tensor-parallel-size=x", "world.actor_fraction=-1"):
        assert chosen(model, wrong) == (None, "")


def test_a_cpu_keeps_its_profile(placed: Placed) -> None:
    assert placed()[0].actor.llm_max_rollouts == 64
