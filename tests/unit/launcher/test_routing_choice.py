"""Whose experts a mixture is trained with: asked of engines that can say them, refused where nobody can."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import MixtralConfig, Qwen3Config

from pipelinerl.base.errors import ConfigError
from pipelinerl.config import typed
from pipelinerl.config.compose import compose
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import EngineStart, engine_kind
from pipelinerl.engines.vllm.options import RUNNER
from pipelinerl.launcher.routing_choice import choose_routing
from tests.support.one_host import one_host

FLAG = "--enable-return-routed-experts"
Placed = Callable[..., Config]


@pytest.fixture
def placed(tmp_path: Path) -> Placed:
    """A configuration with an engine, of a dense model or a mixture."""

    def run(*overrides: str, config: Any = MixtralConfig, hardware: str = "cpu") -> Config:
        (tmp_path / "config.json").write_text(json.dumps(config().to_dict()))
        words = ["+domain=guessing", f"hardware={hardware}", f"model_path={tmp_path}", *overrides]
        engine = Job(kind="actor_llm", idx=0, name="actor_vllm_0", port=8080, gpus=[])
        return typed(compose(words).tree).model_copy(update={"jobs": [engine]})

    return run


def started(cfg: Config, routes: bool) -> tuple[list[str], dict[str, str]]:
    start = EngineStart(
        cfg=cfg, job=cfg.jobs[0], model="m", host=one_host()[0], gpus=["0"], ahead=False, routes=routes
    )
    return engine_kind(cfg).command(start)


def test_a_mixture_replays_by_default_and_its_engine_is_asked(placed: Placed) -> None:
    cfg = placed()
    chosen = choose_routing(cfg, dry_run=True)
    assert chosen.mixture and chosen.returned and chosen.choice.key == "derived.returns_routes"
    assert FLAG in started(cfg, True)[0] and FLAG not in started(cfg, False)[0]


@pytest.mark.parametrize(
    ("overrides", "because"),
    [
        (["finetune.rl.routing=free"], "given"),
        (["finetune.rl.policy_loss=sft"], "policy_loss=sft compares with no engine"),
        (
            ["finetune.seq_parallel=2"],
            "finetune.seq_parallel=2 divides rows and not their experts; set it to 1",
        ),
    ],
)
def test_a_mixture_that_is_free_says_why(placed: Placed, overrides: list[str], because: str) -> None:
    chosen = choose_routing(placed(*overrides), dry_run=True)
    assert (chosen.mixture, chosen.returned, chosen.because) == (True, False, because)


def test_a_dense_model_has_nothing_to_choose(placed: Placed) -> None:
    chosen = choose_routing(placed(config=Qwen3Config), dry_run=True)
    assert not chosen.mixture and not chosen.returned


@pytest.mark.parametrize("key", ["routing=replay", "router_aux_loss_coef=0.01"])
def test_keys_of_experts_are_refused_of_a_dense_model(placed: Placed, key: str) -> None:
    said = rf"finetune\.rl\.{key}: the model at .* has no experts; leave it out"
    with pytest.raises(ConfigError, match=said):
        choose_routing(placed(f"finetune.rl.{key}", config=Qwen3Config), dry_run=True)


@pytest.mark.parametrize(
    ("version", "runner"),
    [("0.26.0", "0"), ("0.27.1", "0"), ("0.28.0", None), ("0.30.0", None), ("0.31.0", "1"), ("0.33.0", "1")],
)
def test_vllm_runs_the_model_runner_that_says_them(placed: Placed, version: str, runner: str | None) -> None:
    cfg = placed(f"vllm_config.version={version}", hardware="gpu")
    argv, env = started(cfg, True)
    assert FLAG in argv and env.get(RUNNER) == runner
    argv, env = started(cfg, False)
    assert FLAG not in argv and RUNNER not in env
    chosen = choose_routing(cfg, dry_run=True)
    assert chosen.returned == (runner == "1")
    assert chosen.returned or f"with vLLM {version[:4]} no card has replayed experts" in chosen.because
    asked = placed(f"vllm_config.version={version}", "finetune.rl.routing=replay", hardware="gpu")
    assert choose_routing(asked, dry_run=True).returned


@pytest.mark.parametrize(
    ("version", "given", "said"),
    [
        ("0.33.0", "KWARGS.pipeline-parallel-size=2", "pipeline-parallel-size=2: such an engine"),
        ("0.33.0", "KWARGS.enable-prefix-caching=false", "with its prefix cache alone; set true"),
        ("0.26.0", "+KWARGS.kv-transfer-config={a: b}", "goes with no record of experts"),
    ],
)
def test_what_vllm_cannot_do_is_said_and_refused_where_it_is_wanted(
    placed: Placed, version: str, given: str, said: str
) -> None:
    words = [f"vllm_config.version={version}", given.replace("KWARGS", "vllm_config.vllm_kwargs")]
    chosen = choose_routing(placed(*words, hardware="gpu"), dry_run=True)
    assert not chosen.returned and said in chosen.because
    refused = placed(*words, "finetune.rl.routing=replay", hardware="gpu")
    with pytest.raises(ConfigError, match=r"^finetune\.rl\.routing=replay: .*, or set .*routing=free"):
        choose_routing(refused, dry_run=True)


@pytest.mark.parametrize("jobs", ["with an engine", "of recorded samples"])
def test_rows_over_several_ranks_replay_nothing_and_are_refused_where_they_should(
    placed: Placed, jobs: str
) -> None:
    cfg = placed("finetune.rl.routing=replay", "finetune.seq_parallel=2")
    if jobs == "of recorded samples":
        cfg = cfg.model_copy(update={"jobs": []})
    said = r"^finetune\.rl\.routing=replay: finetune\.seq_parallel=2 divides rows and not their experts"
    with pytest.raises(ConfigError, match=said):
        choose_routing(cfg, dry_run=True)


def test_a_cpu_build_says_them_until_vllm_leaves_its_first_runner(placed: Placed) -> None:
    kind = "engine.kind=vllm"
    asked = placed(kind, "vllm_config.version=0.30.0", "finetune.rl.routing=replay")
    assert choose_routing(asked, dry_run=True).returned
    chosen = choose_routing(placed(kind, "vllm_config.version=0.32.0"), dry_run=True)
    assert "vLLM 0.32 says experts of tokens on GPUs alone" in chosen.because


def test_the_launcher_decides_the_flag(placed: Placed) -> None:
    cfg = placed("+vllm_config.vllm_kwargs.enable-return-routed-experts=true", "engine.kind=vllm")
    problems = list(engine_kind(cfg).problems(cfg, True))
    assert any("enable-return-routed-experts: decided by the launcher; remove it" in one for one in problems)
