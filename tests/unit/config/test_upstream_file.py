"""The resolved tree of an upstream run is taken as it is, with a line for each key that is left out."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from pipelinerl.config import ConfigError, typed
from pipelinerl.config.compose import Composition
from pipelinerl.config.legacy import REMOVED, settle
from pipelinerl.launch import main
from tests.unit.config.conftest import DEFAULTS

Compose = Callable[..., Composition]

UPSTREAM = OmegaConf.merge(
    DEFAULTS,
    OmegaConf.create("""
seed: 7
model_path: owner/model
max_lag: 1024
use_deepspeed: true
output_dir: null
dataset_loader: pipelinerl.domains.guessing.load_problems
train_dataset_names: [train]
test_dataset_names: [test]
sandbox_endpoint: http://127.0.0.1:9
hydra: {run: {dir: results}}
jobs: [{kind: actor, idx: 0}]
me: {job_idx: 0}
debug: {streams_from: null}
world: {replicas: 1}
actor: {log_each_n_secs: 0, shared_memory_entry_size: 10000000, system_prompt: '', task_template: '',
  rollout_policy: pipelinerl.domains.guessing.generate_guessing_rollout, agent_max_loops: 3}
preprocess: {shared_memory_entry_size: 100000000}
vllm_config: {use_v1: null, quantization: null}
rewards: {buffer_tokens: 0}
finetune:
  config_name: owner/model
  train_batch_size: 4
  gradient_accumulation_passes: 256
  max_train_steps: 500
  data: null
  objective: rl
  queue_size: 32
  resume_dataloader: true
  auto_device_map: false
  lora: {enabled: false, base_model_8bit: false, base_model_4bit: false, r: 16, alpha: 16, dropout: 0.05,
    bias: none}
  rl: {policy_loss: ppo, epsilon_high: 4, aggregate_loss: sum, reward_minus_kl_coef: 0.0,
    use_policy_gae: false, policy_gae_lambda: 0.95, adaptive_policy_gae: true, positive_example_sft_coef: 0}
wandb: {use_wandb: false, wandb_name: mine, wandb_use_basename: true}
"""),
)
"""Upstream's keys: the defaults that are shared, what such a run changes, and what exists there only."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    OmegaConf.save(UPSTREAM, tmp_path / "exp_config.yaml")
    return tmp_path


def test_an_upstream_file_is_taken_and_what_is_left_out_is_said(composed: Compose, folder: Path) -> None:
    made = composed("hardware=gpu", "seed=8", config_dir=folder, config_name="exp_config")
    cfg = typed(made.tree)
    assert (cfg.seed, cfg.max_lag, cfg.finetune.rl.policy_loss) == (8, 1024, "ppo")
    assert cfg.finetune.rl.epsilon_high == 4 and cfg.jobs == [] and cfg.me is None
    assert set(cfg.domain_keys) == {"sandbox_endpoint", "actor.agent_max_loops"}
    said = {notice.partition("=")[0] for notice in made.notices}
    assert said == {
        "finetune.gradient_clipping_threshold",
        "actor.log_each_n_secs",
        "actor.shared_memory_entry_size",
        "preprocess.shared_memory_entry_size",
        "finetune.queue_size",
        "finetune.resume_dataloader",
        "finetune.auto_device_map",
        "finetune.rl.policy_gae_lambda",
        "finetune.rl.adaptive_policy_gae",
        "wandb.wandb_name",
        "wandb.wandb_use_basename",
    }
    assert all("\n" not in notice for notice in made.notices)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("finetune.rl.aggregate_loss", "mean", "finetune.rl.aggregate_loss=mean: no longer exists"),
        (
            "finetune.fp32_lm_head",
            True,
            "finetune.fp32_lm_head=True: no longer exists; use fp32_layer_prefix",
        ),
        (
            "curriculum",
            {"enabled": True, "category_fields": ["domain"]},
            "curriculum.enabled=True: there is no curriculum of categories; use actor.sampling=difficulty",
        ),
        (
            "finetune.rl.algo",
            "reinforce",
            "finetune.rl.algo=reinforce: no longer exists; use finetune.rl.policy_loss=reinforce",
        ),
        (
            "finetune.rl.epsilon",
            3,
            "finetune.rl.epsilon=3: no longer exists; ppo and gspo also have finetune.rl.epsilon_low; "
            "use finetune.rl.epsilon_high=3",
        ),
        (
            "finetune.objective",
            "nll",
            "finetune.objective=nll: no longer exists; use finetune.rl.policy_loss=sft",
        ),
        (
            "finetune.rl.reward_minus_kl_coef",
            0.1,
            "reward_minus_kl_coef=0.1: no longer exists; finetune.rl.kl_coef weighs",
        ),
        (
            "finetune.rl.use_policy_gae",
            True,
            "use_policy_gae=True: is not available; an advantage is the return less the value",
        ),
        (
            "finetune.rl.positive_example_sft_coef",
            0.1,
            "positive_example_sft_coef=0.1: is not available; no loss adds a term of supervised learning",
        ),
        (
            "actor.task_prompt",
            "In a box.",
            "task_prompt=In a box.: no longer exists; write it into actor.task_template",
        ),
        (
            "actor.ensure_boxed_answers",
            True,
            "ensure_boxed_answers=True: no longer exists; say it in actor.system_prompt",
        ),
        ("weight_broadcast", False, "weight_broadcast=False: .*; use finetune.send_weight_updates=false"),
        ("finetune.max_lag", 512, "finetune.max_lag=512: stands at the top level; use max_lag"),
        (
            "actor.rollout_polcy",
            "a.b",
            r"actor\.rollout_polcy: unknown key; did you mean actor\.rollout_policy",
        ),
    ],
)
def test_a_value_that_changes_results_is_refused(
    composed: Compose, folder: Path, key: str, value: object, message: str
) -> None:
    tree = copy.deepcopy(UPSTREAM)
    tree.fp32_layer_prefix = None  # with it, fp32_lm_head=true says what happens anyway
    OmegaConf.update(tree, key, value, force_add=True)
    OmegaConf.save(tree, folder / "exp_config.yaml")
    with pytest.raises(ConfigError, match=message):
        composed("hardware=gpu", config_dir=folder, config_name="exp_config")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train_dataset_names: [1, null]", "train_dataset_names.1: missing"),
        ("environments: [abc]", "environments.0='abc': input should be a valid dictionary"),
        ("x: ${y", "a configuration file cannot be read: x: "),
        ("max_lag: " + "9" * 4_301, "a value cannot be read: "),
        ("null: 2", "a configuration file cannot be read: Incompatible key type"),
        (
            "defaults: [exp_config, _self_]",
            "a configuration file cannot be read: it is among its own defaults",
        ),
    ],
)
def test_what_omegaconf_refuses_is_one_line(composed: Compose, folder: Path, given: str, said: str) -> None:
    defaults = "" if given.startswith("defaults") else "defaults: [base, _self_]\n"
    file = "dataset_loader: a.b\nactor: {rollout_policy: a.c}\n"
    (folder / "exp_config.yaml").write_text(f"{defaults}{file}{given}\n")
    with pytest.raises(ConfigError) as refused:
        typed(composed("hardware=cpu", config_dir=folder, config_name="exp_config").tree)
    assert any(said in problem for problem in refused.value.problems)
    assert all("\n" not in problem for problem in refused.value.problems)


@pytest.mark.parametrize("key", sorted(REMOVED))
def test_a_key_that_is_gone_passes_at_its_default_with_a_line_or_not_at_all(key: str) -> None:
    given = list[str]()

    def tree(value: object) -> DictConfig:
        made = OmegaConf.create({})
        OmegaConf.update(made, key, value, force_add=True)
        return made

    if "lora" in key:  # while it is off nothing below it matters
        given = ["finetune.lora.enabled"]
    assert settle(tree(None), given) == []
    assert settle(tree(REMOVED[key].usual), given) == []
    if not REMOVED[key].matters:
        left = tree("x")
        (notice,) = settle(left, given)
        assert notice.startswith(f"{key}=x: left out, ") and OmegaConf.select(left, key) is None
    else:
        with pytest.raises(ConfigError, match=re.escape(f"{key}=x: ")):
            settle(tree("x"), given)


def test_the_launcher_places_an_upstream_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = [f"output_dir={folder / 'run'}", "hardware=gpu", "test_llm.parameters.max_tokens=64"]
    assert main(["--config-dir", str(folder), "--config-name", "exp_config", *given]) == 0
    out = capsys.readouterr().out
    assert "launcher: wandb.wandb_name=mine: left out" in out and "actor.agent_max_loops" in out
    assert (folder / "run/actor_vllm_3/start.sh").is_file()
