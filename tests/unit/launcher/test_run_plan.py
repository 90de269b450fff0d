"""A run is one frozen value: planning writes nowhere, and each choice has a key, a value and a reason."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ReadonlyConfigError

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import Composition, compose
from pipelinerl.config.hosts import imagined_hosts
from pipelinerl.config.keys import leaves
from pipelinerl.domain import BaseDomain, ServiceSpec
from pipelinerl.launcher.plan import Facts, RunPlan, plan
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import QWEN_1_7B

GPUS = ("hardware=gpu", "vllm_config.version=0.32.0")
SEVERAL = ("hardware=cpu", "world.backend=ray")
DRY = Facts(dry_run=True, password="p" * 16)
SIZES = QWEN_1_7B | {"max_position_embeddings": 16384}


class Searching(BaseDomain):
    """Needs a server, of which it tells the address, and prepares data."""

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        cfg.seed = -1  # code of a domain may write into what it gets
        return [ServiceSpec(name="search", argv=["search"], url_key="dataset_loader_params.search_url")]


@pytest.fixture
def configured(model: Path, tmp_path: Path) -> Any:
    (model / "config.json").write_text(json.dumps(SIZES))

    def run(*overrides: str) -> Composition:
        folders = (f"model_path={model}", f"output_dir={tmp_path / 'run'}")
        return compose(["+domain=guessing", *folders, *overrides])

    return run


def cards(composition: Composition) -> int:
    return int(str(composition.tree.hardware.devices).partition("x")[0])


def planned(composition: Composition, facts: Facts = DRY) -> RunPlan:
    if composition.tree.world.backend == "ray":
        return plan(composition, imagined_hosts(2, ()), facts, Searching())
    on_gpus = composition.tree.hardware.kind == "gpu"
    return plan(composition, one_host(cards(composition) if on_gpus else 0), facts, Searching())


CASES = st.one_of(
    st.sampled_from([("hardware=cpu",), SEVERAL]),
    st.builds(
        lambda count, kind, lag, more: (*GPUS, f"hardware.devices={count}x{kind}", f"max_lag={lag}", *more),
        st.integers(2, 8),
        st.sampled_from(["H100-80GB", "A100-40GB", "B200-180GB"]),
        st.sampled_from(["null", "0", "300", "4096"]),
        st.sampled_from([(), ("weights.transport=file",), ("finetune.lora.enabled=true",)]),
    ),
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(overrides=CASES)
def test_planning_twice_gives_equal_values_and_leaves_the_configuration_as_it_was(
    configured: Any, overrides: tuple[str, ...]
) -> None:
    composition = configured(*overrides)
    before = deepcopy(composition)
    first = planned(composition)
    assert composition == before and leaves(composition.tree) == leaves(before.tree)
    assert OmegaConf.is_missing(composition.tree, "jobs") or not composition.tree.jobs
    second = planned(composition)
    assert first == second and first.children == second.children
    assert planned(configured(*overrides)) == first


def test_a_plan_is_frozen_and_so_is_its_configuration(configured: Any) -> None:
    made = planned(configured("hardware=cpu"))
    for field in fields(made):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, None)
    with pytest.raises(ReadonlyConfigError):
        made.tree.max_lag = 3
    with pytest.raises(ReadonlyConfigError):
        made.tree.derived.texts_per_step = 3


def differing(made: RunPlan) -> set[str]:
    """Keys whose values in the resolved configuration are not those of files and command line."""
    composed, resolved = leaves(made.configuration.tree), leaves(made.tree)
    return {key for key in resolved if key not in composed or composed[key] != resolved[key]}


def covers(chosen: str, key: str) -> bool:
    return key == chosen or key.startswith((f"{chosen}.", f"{chosen}["))


@pytest.mark.parametrize(
    "overrides",
    [("hardware=cpu",), SEVERAL, (*GPUS, "hardware.devices=4xH100-80GB"), (*GPUS, "hardware.devices=8")],
)
def test_whatever_was_not_said_by_anyone_is_a_choice_with_a_reason(
    configured: Any, overrides: tuple[str, ...]
) -> None:
    made = planned(
        configured(*overrides),
        Facts(dry_run=True, prepared={"dataset_loader_params.words": 7}, password="p" * 16),
    )
    for choice in made.choices:
        assert choice.key and choice.because.strip() == choice.because != ""
    unexplained = {
        key for key in differing(made) if not any(covers(choice.key, key) for choice in made.choices)
    }
    assert unexplained == set()
    assert (made.tree.dataset_loader_params.words, made.reasons["dataset_loader_params.words"]) == (
        7,
        "prepared by guessing",
    )
    assert made.reasons["dataset_loader_params.search_url"] == "no address is configured"
    assert made.tree.seed == made.configuration.tree.seed != -1


def test_a_plan_has_what_every_process_has_to_agree_on(configured: Any) -> None:
    overrides = ("hardware=cpu", "max_lag=700", "finetune.gradient_accumulation_passes=256")
    made = planned(configured(*overrides, "actor.llm_max_rollouts=5"))
    assert (made.cfg.derived.texts_per_step, made.cfg.derived.texts_per_update) == (256, 256)
    assert made.cfg.staleness.admitted == 2 * 256 + 256 and made.cfg.actor.llm_max_rollouts == 5
    executed = [child.name.removeprefix("services/") for child in made.children]
    assert [job.name for job in made.cfg.jobs] == executed[: len(made.cfg.jobs)]
    unbounded = planned(configured("hardware=cpu", "max_lag=null")).cfg.staleness
    assert made.memory is None and unbounded.admitted is None


def test_a_start_of_a_folder_has_its_number_and_its_checkpoint(configured: Any, tmp_path: Path) -> None:
    facts = Facts(dry_run=True, attempt=2, checkpoint=tmp_path / "run/finetune/current")
    made = planned(configured("hardware=cpu"), facts)
    assert made.cfg.attempt == 2
    (engine,) = [child for child in made.children if child.name == "actor_vllm_0"]
    assert str(facts.checkpoint) in engine.argv


def test_what_does_not_fit_is_refused_and_nothing_was_written(configured: Any) -> None:
    composition = configured(*GPUS, "hardware.devices=2xA10-24GB")
    before: Mapping[str, Any] = leaves(composition.tree)
    with pytest.raises(ConfigError, match="does not fit"):
        planned(composition)
    assert leaves(composition.tree) == before


def test_the_plan_says_what_sampling_reads(configured: Any) -> None:
    """1.7B without a tied head: 28 layers, a head of 151,936 x 2,048; 8 key heads of 128 in bfloat16."""
    reads = planned(configured(*GPUS, "hardware.devices=2xH100-80GB")).cfg.derived.engine_reads
    layer = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 6144
    assert reads is not None and reads.token == 28 * 2 * 8 * 128 * 2
    assert reads.weights == 2 * (28 * layer + 151_936 * 2048), "the embedding gives a few rows"
    assert (reads.card, reads.trainer_alike, reads.copies) == ("H100-80GB", True, 1)
    assert planned(configured("hardware=cpu")).cfg.derived.engine_reads is None
