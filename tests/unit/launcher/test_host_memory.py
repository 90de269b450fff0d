"""Host memory of a planned run: what is counted, the line in the table, and the refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.config.compose import compose
from pipelinerl.launcher.cards import GIB
from pipelinerl.launcher.host_memory import available_memory, check_host, host_bytes, most_at_once
from pipelinerl.launcher.memory_choice import choose_memory
from pipelinerl.launcher.memory_values import DoesNotFit, MemoryPlan
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import ON_GPUS, Placed
from tests.unit.launcher.test_memory_plan import card, configured, folder, planned, shape

SIZE = {name: shape(name).parameters for name in ("0.5B", "8B")}


def parts(model: str, gb: int, count: int, **changes: Any) -> dict[str, float]:
    files = {"weights": {"transport": "file"}} if count == 1 else {}
    plan = planned(model, gb, count, **changes)
    return {k: v for k, v in host_bytes(configured(**files | changes), shape(model), plan).items() if v}


def test_what_the_plan_puts_into_host_memory_is_summed() -> None:
    """By hand: float32 of the whole model on each of three ranks; nothing where nothing is sharded."""
    eight = SIZE["8B"]
    sharded = planned("8B", 80, 4)
    assert sharded.trainer is not None and sharded.trainer.ranks == 3
    found = parts("8B", 80, 4)
    assert found["loading"] == 3 * 4 * eight
    assert found.get("copy for the engines", 0) == (2 * eight if sharded.trainer.whole_on_host else 0)
    assert parts("0.5B", 141, 2) == {}
    # Float32 weights, gradients and both moments in host memory.
    offloaded = parts("8B", 80, 2, fsdp={"cpu_offload": True})
    assert offloaded["states of shards"] == 16 * eight and offloaded["loading"] == 4 * eight
    tune = {"gradient_checkpointing": "offload", "seq_length": 20_000}
    # Of 36 layers on each of three ranks 20,000 x 4,096 numbers of 2 bytes, rounded up to a power of two.
    assert parts("8B", 80, 4, finetune=tune)["inputs of layers"] == 3 * 36 * 2**28
    lean = {"optim": "adamw_8bit"}
    assert parts("8B", 80, 2, fsdp={"cpu_offload": True}, finetune=lean)["states of shards"] == pytest.approx(
        10.1 * eight
    )


def test_files_of_versions_lie_in_shared_memory_unless_a_folder_is_given(tmp_path: Path) -> None:
    one = 2 * SIZE["0.5B"]  # bfloat16: two kept, the sender's memory, one read ahead
    assert parts("0.5B", 80, 1) == {"versions in files": (2 + 1 + 1) * one}
    on_disk = {"transport": "file", "directory": str(tmp_path)}
    assert parts("0.5B", 80, 1, weights=on_disk) == {"versions in files": (1 + 1) * one}


def test_records_of_experts_are_those_of_samples_and_of_all_tokens_in_the_engines_caches() -> None:
    """Of 30B-A3B a token has 48 layers of 8 experts, a byte each, and keys and values of 4 heads of 128 in
    each layer; a dense model has no experts."""
    replayed = {"rl": {"routing": "replay"}}
    plan = planned("30B-A3B", 141, 8, max_lag=1000, finetune=replayed)
    assert plan.engine is not None
    samples = 1000 + plan.engines * plan.engine.requests
    found = parts("30B-A3B", 141, 8, max_lag=1000, finetune=replayed)
    cached = plan.engine.cards * plan.engine.parts["keys and values"] / (48 * 2 * 4 * 128 * 2)
    expected = (samples * 10000 + plan.engines * cached) * 48 * 8
    assert found["records of experts"] == pytest.approx(expected, rel=1e-9)
    free = {"rl": {"routing": "free"}}
    assert "records of experts" not in parts("30B-A3B", 141, 8, max_lag=1000, finetune=free)
    assert "records of experts" not in parts("8B", 80, 4)


def test_loading_and_what_comes_after_are_not_there_together() -> None:
    assert most_at_once({"loading": 9.0, "states of shards": 4.0, "versions in files": 3.0}) == 9.0
    assert most_at_once({"loading": 5.0, "states of shards": 4.0, "versions in files": 3.0}) == 7.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"loading": 50.0 * GIB, "versions in files": 9.0 * GIB},
            "50 GiB (loading 50.0), 40 GiB are available",
        ),
        (
            {"loading": 1.0 * GIB, "states of shards": 60.0 * GIB, "versions in files": 9.0 * GIB},
            "versions in files 9.0), 40 GiB are available; set fsdp.cpu_offload=false",
        ),
    ],
)
def test_more_than_there_is_is_refused_with_the_largest_part(given: dict[str, float], said: str) -> None:
    whole = dict.fromkeys(("loading", "states of shards", "versions in files"), 0.0) | given
    with pytest.raises(DoesNotFit) as refused:
        check_host(whole, 40 * GIB)
    assert said in refused.value.problems[0] and "\n" not in refused.value.problems[0]
    check_host(whole, 70 * GIB)
    check_host(whole, None)


def test_available_memory_is_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 64 kB\nMemFree: 8 kB\nMemAvailable:   48 kB\n")
    assert available_memory(tmp_path / "meminfo") == 48 * 1024
    (tmp_path / "old").write_text("MemTotal: 64 kB\n")
    assert available_memory(tmp_path / "old") is None and available_memory(tmp_path / "none") is None


def chosen_with(model: Path, available: Callable[[], int | None], *overrides: str) -> MemoryPlan | None:
    made = compose(["+domain=guessing", "hardware=gpu", f"model_path={folder(model, '8B')}", *overrides])
    return choose_memory(made, one_host(4), False, lambda device: card(80), available).memory


def test_a_host_that_is_too_small_is_refused_before_anything_starts(model: Path) -> None:
    with pytest.raises(
        DoesNotFit, match=r"host memory: the trainer needs \d+ GiB \(loading .*world\.finetune"
    ):
        chosen_with(model, lambda: 64 * GIB)
    plan = chosen_with(model, lambda: 512 * GIB)
    assert plan is not None and plan.host_available == 512 * GIB
    imagined = chosen_with(model, lambda: 1, "hardware.devices=4xH100-80GB")
    assert imagined is not None and imagined.host_available is None and imagined.host


def test_no_change_is_named_for_which_the_host_is_too_small(model: Path) -> None:
    def refused(available: int) -> str:
        made = compose(["+domain=guessing", "hardware=gpu", f"model_path={folder(model, '8B')}"])
        with pytest.raises(DoesNotFit) as error:
            choose_memory(made, one_host(2), False, lambda device: card(80), lambda: available)
        return str(error.value)

    # Float32 weights, gradients and both moments of 8.19 billion numbers are 122 GiB.
    assert "fsdp.cpu_offload=true" in refused(200 * GIB)
    assert "fsdp.cpu_offload" not in refused(100 * GIB) and "(more cards)" in refused(100 * GIB)


def test_the_table_has_a_line_for_host_memory(placed: Placed, model: Path) -> None:
    folder(model, "8B")
    out = placed(*ON_GPUS, "hardware.devices=4xH100-80GB")[1]
    # Three ranks, 8.19 billion numbers of 4 bytes each.
    assert "bytes of host memory │ 91.5 of unknown: loading 91.5" in out
