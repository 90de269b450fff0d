"""Upstream's folder of configurations, and the `exp_config.yaml` that its launcher writes, are taken.

The folder is made of keys and defaults that both sides share, and of the keys that exist there only.
"""

import copy
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from domains.coding.settings import settings_of
from domains.math.environment import MathEnvironment
from domains.math.rollouts import environment_key
from domains.tir.settings import settings_of as tir_settings
from pipelinerl.async_llm import ended_text
from pipelinerl.base.tokenizing import encode, load_tokenizer
from pipelinerl.config import ConfigError, typed
from pipelinerl.config.compose import Composition
from pipelinerl.config.environments import environment_specs
from pipelinerl.config.finetune import FinetuneConfig
from pipelinerl.config.legacy import REMOVED, as_policies_read
from pipelinerl.domain import BaseDomain, resolve_dotted
from pipelinerl.launcher.environment_server import make_environment
from pipelinerl.launcher.validate import checked
from tests.support.one_host import one_host
from tests.unit.config.conftest import DEFAULTS

Compose = Callable[..., Composition]

ONLY_IN_BASE = """
defaults: [finetune: base, rewards: pure_success, streams: files, _self_]
world: {run_id: null}
debug: {log_data_pipeline: false}
use_fast_llm: false
weight_broadcast: true
fp32_lm_head: false
mm_processor_kwargs: {}
output_dir: ???
use_deepspeed: true
jobs: []
me: {job_idx: null}
hydra: {run: {dir: "${output_dir}"}}
attempts: ${finetune.attempts}
finetune: {seed: "${..seed}"}
actor: {log_each_n_secs: 0, shared_memory_entry_size: 10000000, max_stream_size: 1000000}
preprocess: {pop_old_data: "${..pop_old_data}", shared_memory_entry_size: 100000000}
vllm_config: {use_v1: false, quantization: null, vllm_kwargs: {max-num-seqs: "${actor.llm_max_rollouts}",
  num-scheduler-steps: 1, disable-log-requests: ""}}
wandb: {wandb_name: null, wandb_use_basename: true}
"""
ONLY_IN_FINETUNE = """
data: null
config_name: ${..model_path}
fp32_lm_head: ${..fp32_lm_head}
fp32_layer_prefix: ${..fp32_layer_prefix}
attn_implementation: flash_attention_2
auto_device_map: false
lora: {enabled: false, task_type: CAUSAL_LM, base_model_8bit: true, base_model_4bit: false, r: 16, bias: none}
memory_debug: {enabled: false, every_n_steps: 1, snapshot_dir: results, top_n: 10}
force_restart: ${..force_restart}
valid_batch_size: 4
max_eval_steps: -1
output_dir: ${..output_dir}/finetune
seed: 42
objective: rl
queue_size: 32
max_lag: ${..max_lag}
pop_old_data: ${..pop_old_data}
eval_callback: {_target_: pipelinerl.finetune.utils.dummy_eval_callback, config_name: ""}
rl: {final_kl_coef: "${..rl.kl_coef}", temperature: "${...llm.parameters.temperature}", aggregate_loss: sum,
  reward_minus_kl_coef: 0.0}
"""
GUESSING = """
defaults: [base, _self_]
finetune: {seq_length: 4000, gradient_accumulation_passes: 1024}
llm: {parameters: {max_tokens: 500}}
test_llm: {parameters: {max_tokens: 500}}
vllm_config: {vllm_kwargs: {max_model_len: 4000}}
actor: {rollout_policy: pipelinerl.domains.guessing.generate_guessing_rollout}
dataset_loader: pipelinerl.domains.guessing.load_problems
train_dataset_names: [train]
test_dataset_names: [test]
world: {actor_fraction: 1, finetune_fraction: 1}
model_path: owner/model
"""
OWN_KEYS = """
defaults: [base, _self_]
dataset_loader: pipelinerl.domains.guessing.load_problems
actor: {rollout_policy: pipelinerl.domains.guessing.generate_guessing_rollout, ifeval_partial_credit: true,
  domain_system_prompts: {coding: Write Python.}}
sandbox_endpoint: http://127.0.0.1:8080
"""
CODING = """
defaults: [base, _self_]
actor: {rollout_policy: pipelinerl.domains.coding.generate_coding_rollout, system_prompt: "", task_prompt: "",
  task_template: "{task}\n\nAnswer with code.", ensure_boxed_answers: false}
sandbox_endpoint: ${oc.env:SANDBOX_ENDPOINT,http://127.0.0.1:8080}
sandbox_timeout: 10.0
max_tests_per_problem: 5
dataset_loader: pipelinerl.domains.coding.dataset.load_problems
dataset_loader_params: {taco_split: train, apps_split: train, subset: train, train_ratio: 0.9, seed: 42,
  taco_excluded_difficulties: [HARD, VERY_HARD], max_tests_per_problem: 5, max_examples: null,
  huggingface_token: "${oc.env:HF_TOKEN, null}"}
train_dataset_names: [taco, apps]
test_dataset_names: [livecodebench_v5]
environment_key: coding
model_path: owner/model
"""
TIR = """
defaults: [base, _self_]
save_tapes: true
llm: {parameters: {max_tokens: 1024, temperature: 0.2, stop: ["```output"]}}
test_llm: {parameters: {max_tokens: 1024, temperature: 0.2, stop: ["```output"]}}
actor: {rollout_policy: pipelinerl.domains.tir.rollouts.generate_tir_rollout, max_reasoning_steps: 6,
  system_prompt: "", llm_max_rollouts: 1}
world: {env_replicas: 1}
max_loops: 25
environment: {_target_: pipelinerl.domains.tir.environment.MCPPythonEnvironment}
agent: {_target_: pipelinerl.domains.tir.agent.TIRMathAgent, system_prompt: "${actor.system_prompt}"}
dataset_loader: pipelinerl.domains.tir.datasets.load_datasets
train_dataset_names: [open_reasoner_zero_57k, open_reasoner_zero_extended_72k]
test_dataset_names: [aime_2024, amc_2023, math_500]
model_path: owner/model
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder with upstream's layout."""
    folder, base = tmp_path / "conf", copy.deepcopy(DEFAULTS)
    for group, name, more in (
        ("finetune", "base", ONLY_IN_FINETUNE),
        ("rewards", "pure_success", "{}"),
        ("streams", "files", "{}"),
    ):
        (folder / group).mkdir(parents=True)
        OmegaConf.save(
            OmegaConf.merge(base.pop(group), OmegaConf.create(more)), folder / group / f"{name}.yaml"
        )
    OmegaConf.save(OmegaConf.merge(base, OmegaConf.create(ONLY_IN_BASE)), folder / "base.yaml")
    (folder / "guessing.yaml").write_text(GUESSING)
    (folder / "own_keys.yaml").write_text(OWN_KEYS)
    (folder / "coding.yaml").write_text(CODING)
    (folder / "tir.yaml").write_text(TIR)
    return folder


def check(made: Composition, *given: str) -> None:
    checked(made.tree, BaseDomain(), one_host(2), dry_run=True, given=given)


def said(made: Composition) -> set[str]:
    assert all("\n" not in notice for notice in made.notices)
    return {notice.partition("=")[0] for notice in made.notices}


OTHER_UNIT = {"finetune.gradient_clipping_threshold"}
LEFT_OUT = {
    "fp32_lm_head",
    "actor.log_each_n_secs",
    "actor.max_stream_size",
    "actor.shared_memory_entry_size",
    "preprocess.shared_memory_entry_size",
    "vllm_config.vllm_kwargs.num-scheduler-steps",
    "vllm_config.vllm_kwargs.disable-log-requests",
    "finetune.attn_implementation",
    "finetune.auto_device_map",
    "finetune.lora.task_type",
    "finetune.lora.base_model_8bit",
    "finetune.memory_debug.snapshot_dir",
    "finetune.memory_debug.top_n",
    "finetune.valid_batch_size",
    "finetune.max_eval_steps",
    "finetune.queue_size",
    "finetune.eval_callback",
    "wandb.wandb_use_basename",
}


@pytest.mark.parametrize("hardware", ["gpu", "cpu"])
def test_a_configuration_of_upstreams_folder_composes(composed: Compose, conf: Path, hardware: str) -> None:
    sharding = [] if hardware == "gpu" else ["use_deepspeed=false"]
    made = composed(f"hardware={hardware}", *sharding, "seed=7", config_dir=conf, config_name="guessing")
    check(made, "seed")
    cfg = typed(made.tree)
    assert (cfg.hardware.kind, cfg.seed, cfg.finetune.seq_length) == (hardware, 7, 4000)
    assert (cfg.output_dir, cfg.llm.parameters.max_tokens, cfg.jobs) == (None, 500, [])
    assert cfg.dataset_loader == "pipelinerl.domains.guessing.load_problems"
    assert said(made) == LEFT_OUT | OTHER_UNIT and cfg.domain_keys == ["mm_processor_kwargs"]


def test_upstreams_file_of_coding_composes_and_its_loader_is_here(composed: Compose, conf: Path) -> None:
    made = composed("hardware=gpu", config_dir=conf, config_name="coding")
    check(made)
    keys = {"sandbox_endpoint", "sandbox_timeout", "max_tests_per_problem"}
    assert keys < set(typed(made.tree).domain_keys)
    loader = resolve_dotted(made.tree.dataset_loader, "dataset_loader")
    with pytest.raises(ValueError, match=r"dataset 'taco': no file taco\.jsonl"):
        loader(list(made.tree.train_dataset_names), **made.tree.dataset_loader_params)
    assert settings_of(made.tree).timeout_s == 10.0


def test_upstreams_file_of_tir_composes_and_its_names_are_here(composed: Compose, conf: Path) -> None:
    made = composed("hardware=gpu", config_dir=conf, config_name="tir")
    check(made)
    keys = {"save_tapes", "max_loops", "agent", "actor.max_reasoning_steps"}
    assert keys <= set(typed(made.tree).domain_keys)
    assert callable(resolve_dotted(made.tree.actor.rollout_policy, "actor.rollout_policy"))
    loader = resolve_dotted(made.tree.dataset_loader, "dataset_loader")
    with pytest.raises(ValueError, match="dataset 'open_reasoner_zero_57k': no file"):
        loader(list(made.tree.train_dataset_names))
    assert tir_settings(made.tree).max_turns == 6
    environment = make_environment(made.tree, environment_key(made.tree))
    assert isinstance(environment, MathEnvironment)


def test_a_policy_asks_the_question_where_no_file_has_a_template(composed: Compose, conf: Path) -> None:
    """Some of upstream's policies take `{task}` if the key is not there; an empty template asks nothing."""
    actor = composed("hardware=gpu", config_dir=conf, config_name="guessing").tree.actor
    for template in (actor.get("task_template", "{task}"), actor.task_template):
        assert template.format(task="What is 2+2?") == "What is 2+2?"


def test_what_hardware_upstreams_base_does_not_fit_is_said(composed: Compose, conf: Path) -> None:
    made = composed("hardware=cpu", config_dir=conf, config_name="guessing")
    with pytest.raises(ConfigError, match="set use_deepspeed=false on a CPU"):
        check(made)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), "the output layer computes in float32 here; no longer exists; use fp32_layer_prefix=null"),
        (("fp32_layer_prefix=null",), "fp32_layer_prefix was given"),
    ],
)
def test_upstreams_output_layer_in_bfloat16_is_not_left_out_in_silence(
    composed: Compose, conf: Path, overrides: tuple[str, ...], said: str
) -> None:
    """Its base says `fp32_lm_head: false`, and the default here is float32."""
    made = composed("hardware=gpu", *overrides, config_dir=conf, config_name="guessing")
    about = [notice for notice in made.notices if "fp32" in notice]
    assert len(about) == 1 and about[0].endswith(said), about
    assert made.tree.fp32_layer_prefix == (None if overrides else "lm_head")


def test_what_upstreams_files_leave_open_or_null_means_what_it_means_there(
    composed: Compose, conf: Path, tmp_path: Path
) -> None:
    """Its trainer ends at an entropy bonus of 0, and its launcher passes a null flag without a value."""
    mine = """
defaults: [guessing, _self_]
finetune: {rl: {entropy_bonus: 0.01}}
vllm_config: {vllm_kwargs: {enforce-eager: , disable_log_stats: null, tensor-parallel-size: null}}
"""
    base = conf / "finetune" / "base.yaml"
    settings = OmegaConf.load(base)
    del settings.rl.final_entropy_bonus  # upstream's file has none
    OmegaConf.save(settings, base)
    (conf / "mine.yaml").write_text(mine)
    options = {"config_dir": conf, "config_name": "mine"}
    made = composed("hardware=gpu", **options)
    rl, flags = typed(made.tree).finetune.rl, made.tree.vllm_config.vllm_kwargs
    assert [rl.entropy_coefficient(step, 10) for step in (0, 5, 10)] == [0.01, 0.005, 0]
    assert (flags["enforce-eager"], flags["disable_log_stats"]) == ("", "")
    assert flags["tensor-parallel-size"] is None, "which the launcher chooses"
    given = ("finetune.rl.final_entropy_bonus=0.01", "vllm_config.vllm_kwargs.enforce-eager=null")
    changed = composed("hardware=gpu", *given, **options).tree
    assert changed.finetune.rl.final_entropy_bonus == 0.01
    assert changed.vllm_config.vllm_kwargs["enforce-eager"] is None

    written = tmp_path / "written"  # what this launcher wrote says what it did
    written.mkdir()
    OmegaConf.save(changed, written / "exp_config.yaml")
    again = composed("hardware=gpu", config_dir=written, config_name="exp_config").tree
    assert again.finetune.rl.final_entropy_bonus == 0.01
    assert again.vllm_config.vllm_kwargs["enforce-eager"] is None


def test_environments_rollouts_and_an_interval_in_upstreams_other_forms_mean_the_same(
    composed: Compose, conf: Path
) -> None:
    """Its actor skips what is null, finds an environment by its name, and maps domains from a list too."""
    target = "_target_: pipelinerl.domains.math.MathEnvironment"
    policy = "pipelinerl.domains.guessing.generate_guessing_rollout"

    def tree(text: str) -> DictConfig:
        (conf / "mine.yaml").write_text(f"defaults: [guessing, _self_]\n{text}\n")
        return composed("hardware=gpu", config_dir=conf, config_name="mine").tree

    for environments in (
        f"[null, {{name: math, {target}}}, null]",
        f"[{{key: math, name: other, {target}}}]",
        f"{{math: {{{target}}}, tir: null}}",
    ):
        assert list(environment_specs(tree(f"environments: {environments}"))) == ["math"], environments
    assert list(environment_specs(tree(f"environment: {{key: math, {target}}}"))) == ["math"]
    for rollouts in (f"['a: {policy}']", f"[{{domain: a, rollout: {policy}}}]", f"[{{a: {policy}}}]"):
        assert tree(f"actor: {{domain_rollouts: {rollouts}}}").actor.domain_rollouts == {"a": policy}, (
            rollouts
        )
    with pytest.raises(ConfigError, match=r"actor\.domain_rollouts: a names no domain"):
        tree("actor: {domain_rollouts: [a]}")
    assert typed(tree("eval_every_n_versions: null")).eval_every_n_versions == 0


def test_keys_of_the_objective_that_no_file_has_are_said_with_what_upstreams_trainer_takes(
    composed: Compose, conf: Path
) -> None:
    base = conf / "finetune" / "base.yaml"
    settings = OmegaConf.load(base)
    for name in ("epsilon_low", "kl_coef", "final_kl_coef", "divide_advantage_by_std", "temperature"):
        del settings.rl[name]
    OmegaConf.save(settings, base)
    options = {"config_dir": conf, "config_name": "guessing"}

    def lines(*overrides: str) -> list[str]:
        notices = composed("hardware=gpu", *overrides, **options).notices
        return [notice for notice in notices if "not in the file" in notice]

    (line,) = lines()
    use = line.partition("; use ")[2].partition(" for ")[0].split()
    assert use == [
        "finetune.rl.epsilon_low=0.2",
        "finetune.rl.divide_advantage_by_std=true",
        "finetune.rl.kl_coef=0.1",
        "finetune.rl.final_kl_coef=0.1",
    ]
    assert lines(*use) == []
    assert "epsilon_low" not in lines(use[0])[0]
    (conf / "warm.yaml").write_text("defaults: [guessing, _self_]\nllm: {parameters: {temperature: 0.7}}\n")
    options["config_name"] = "warm"
    (line,) = lines(*use)
    assert line.startswith("finetune.rl.temperature: not in the file") and line.endswith("upstream's at 1")


def test_a_kl_term_of_upstreams_files_may_have_had_another_reference(composed: Compose, conf: Path) -> None:
    """The workers of its preprocessor get a reference engine since its pull request 131.

    Before, they took the sampler's log-probabilities.
    """

    def lines(rl: str, *overrides: str) -> list[str]:
        (conf / "mine.yaml").write_text(f"defaults: [guessing, _self_]\nfinetune: {{rl: {{{rl}}}}}\n")
        made = composed("hardware=gpu", *overrides, config_dir=conf, config_name="mine")
        return [notice for notice in made.notices if "the policy that sampled" in notice]

    (line,) = lines("kl_coef: 0.01")
    assert line.startswith("finetune.rl.kl_coef=0.01: weighs the distance from model_path")
    assert "upstream does since its pull request 131" in line
    assert lines("kl_coef: 0, final_kl_coef: 0.1")[0].startswith("finetune.rl.final_kl_coef=0.1:")
    assert lines("kl_coef: 0") == []
    assert lines("kl_coef: 0.01, final_kl_coef: 0", "finetune.rl.kl_coef=0.02") == []


def test_rollout_code_finds_the_keys_of_upstream_that_say_nothing_new(composed: Compose, conf: Path) -> None:
    (conf / "mine.yaml").write_text(
        "defaults: [guessing, _self_]\nseed: 7\nmax_lag: 512\noutput_dir: results/mine\n"
        "actor: {task_prompt: ''}\n"
    )
    tree = composed("hardware=gpu", config_dir=conf, config_name="mine").tree
    read = as_policies_read(OmegaConf.create(OmegaConf.to_container(tree)))
    assert (read.finetune.seed, read.finetune.max_lag, read.finetune.pop_old_data) == (7, 512, True)
    assert (read.finetune.output_dir, read.actor.task_prompt) == ("results/mine/finetune", "")
    assert read.finetune.rl.reward_minus_kl_coef == 0 and read.preprocess.pop_old_data is True
    assert "data" not in read.finetune and "curriculum" not in read


def one_update(gradient: torch.Tensor, largest: float, epsilon: float) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.zeros_like(gradient))
    optimiser = torch.optim.AdamW([weight], lr=1.0, eps=epsilon)
    for scale in (1.0, 3.0):  # the second is clipped and changes Adam's means
        weight.grad = gradient * scale
        torch.nn.utils.clip_grad_norm_([weight], largest)
        optimiser.step()
    return weight.detach()


def test_limits_that_deepspeed_applies_to_a_smaller_gradient_are_said_with_what_gives_its_updates(
    composed: Compose, conf: Path
) -> None:
    """Its engine divides the loss by the accumulation steps of a rank, and averages over the ranks."""
    sizes = "finetune: {gradient_clipping_threshold: 0.3, gradient_accumulation_passes: 64}\n"
    (conf / "mine.yaml").write_text("defaults: [guessing, _self_]\n" + sizes)
    options = {"config_dir": conf, "config_name": "mine"}

    def lines(*overrides: str) -> list[str]:
        notices = composed("hardware=gpu", *overrides, **options).notices
        return [notice for notice in notices if "DeepSpeed" in notice]

    (line,) = lines()
    use = dict(re.findall(r"([a-z_.]+)=(\S+)", line.partition("; use ")[2]))
    assert set(use) == {"finetune.gradient_clipping_threshold", "finetune.adam_epsilon"}
    ranks, steps = 4, 64 // 4
    gradient = torch.tensor([10.0, -3.0, 4e-7])  # the last is smaller than Adam's epsilon once it is divided
    theirs = one_update(gradient / steps / ranks, 0.3, 1e-8)
    here = one_update(gradient, *map(float, use.values()))
    torch.testing.assert_close(here, theirs)
    assert not torch.allclose(one_update(gradient, 0.3, 1e-8), theirs, rtol=0.1)
    assert lines(*(f"{key}={value}" for key, value in use.items())) == [], "decided by the command line"
    (about_one,) = lines("finetune.gradient_clipping_threshold=null")
    assert about_one.startswith("finetune.adam_epsilon=1e-08:")
    (fewer,) = lines("finetune.gradient_accumulation_passes=8", "finetune.seq_parallel=2")
    assert "finetune.gradient_clipping_threshold=4.8 " in fewer, "0.3 times the 16 that DeepSpeed divides by"
    (without_epsilon,) = lines("finetune.optim=lion")
    assert "adam_epsilon" not in without_epsilon
    for more in ("use_deepspeed: false\n", "use_fast_llm: true\n"):
        (conf / "mine.yaml").write_text("defaults: [guessing, _self_]\n" + sizes + more)
        assert lines() == [], more


def test_what_fast_llm_was_told_is_said_in_the_words_of_this_trainer(composed: Compose, conf: Path) -> None:
    """One recipe, written for Fast-LLM and for DeepSpeed, is one configuration if the lines are followed."""
    (conf / "common.yaml").write_text(
        "defaults: [guessing, _self_]\n"
        "finetune: {max_train_steps: 100, rl: {epsilon_low: 0.003, epsilon_high: 0.004}}\n"
    )
    (conf / "fast.yaml").write_text("""
defaults: [common, _self_]
use_fast_llm: true
finetune: {rl: {policy_loss: reinforce}}
fast_llm:
  training: {train_iters: 2000, checkpoint: {interval: 100}}
  schedule: {depth_first_micro_batches: 48, docs_per_step: 256}
  optimizer:
    learning_rate: {base: 5.0e-7, warmup_iterations: 0, decay_style: constant, decay_iterations: 400}
    beta_1: 0.974004
    beta_2: 0.999750
    gradient_norm_clipping: 76.8
  model: {base_model: {head: {losses: {grpo: {type: gspo, epsilon_low: "${finetune.rl.epsilon_low}"}}}}}
""")
    (conf / "deep.yaml").write_text("""
defaults: [common, _self_]
use_deepspeed: true
finetune:
  learning_rate: 5.0e-7
  num_warmup_steps: 0
  lr_scheduler_type: constant
  gradient_accumulation_passes: 256
  gradient_clipping_threshold: 0.3
  max_train_steps: 2000
  save_checkpoint_steps: 100
  adam_beta1: 0.974004
  adam_beta2: 0.999750
  rl: {policy_loss: gspo}
""")

    def followed(name: str, start: str) -> tuple[list[str], FinetuneConfig]:
        notices = composed("hardware=gpu", config_dir=conf, config_name=name).notices
        (line,) = [notice for notice in notices if notice.startswith(start)]
        said = re.findall(r"finetune\.(?!adam_epsilon)[a-z_0-9.]+=[^ ;]+", line.partition("; use ")[2])
        made = composed("hardware=gpu", *said, config_dir=conf, config_name=name)
        return said, typed(made.tree).finetune

    said, here = followed("fast", "fast_llm: left out")
    assert followed("deep", "finetune.gradient_clipping")[1] == here
    again = composed("hardware=gpu", *said, config_dir=conf, config_name="fast").notices
    assert "fast_llm: left out, only Fast-LLM reads it" in again, "nothing is different any more"
    assert not any("no run depends" in notice for notice in again if "fast_llm" in notice)


def test_the_rate_of_adafactor_is_not_upstreams(composed: Compose, conf: Path) -> None:
    """transformers' moves a weight by the rate itself, as upstream asks it to."""
    (conf / "mine.yaml").write_text("defaults: [guessing, _self_]\nfinetune: {optim: adafactor}\n")
    options = {"config_dir": conf, "config_name": "mine"}
    said = [line for line in composed("hardware=gpu", **options).notices if "adafactor" in line]
    assert len(said) == 1 and "root mean square" in said[0]
    assert not any("root mean" in x for x in composed("finetune.optim=lion", **options).notices)


def test_what_moves_until_the_last_step_upstream_is_said_of_an_interrupted_run(
    composed: Compose, conf: Path
) -> None:
    """Its trainer moves the weights of KL and entropy over the steps that it takes."""

    def said_of(length: str, *overrides: str) -> set[str]:
        moving = "rl: {kl_coef: 0.1, final_kl_coef: 0.0, entropy_bonus: 0.01, final_entropy_bonus: 0.01}"
        (conf / "mine.yaml").write_text(f"defaults: [guessing, _self_]\nfinetune: {{{length} {moving}}}\n")
        made = composed("hardware=gpu", *overrides, config_dir=conf, config_name="mine")
        finetune = typed(made.tree).finetune
        here = finetune.rl.kl_coefficient(50, finetune.max_train_steps)
        theirs = 0.1 * (1 - 50 / finetune.last_step)
        lines = {notice.partition("=")[0] for notice in made.notices if "max_train_steps here" in notice}
        assert (here != pytest.approx(theirs)) == bool(lines)
        return lines

    assert said_of("max_train_steps: 1000, interrupt_train_steps: 100,") == {"finetune.rl.kl_coef"}
    assert said_of("max_train_steps: 1000,", "finetune.interrupt_train_steps=100") == {"finetune.rl.kl_coef"}
    assert said_of("max_train_steps: 1000, interrupt_train_steps: -1,") == set()
    assert said_of("max_train_steps: 100, interrupt_train_steps: 100,") == set()


def test_a_stop_text_that_upstreams_answers_end_with_is_said(composed: Compose, conf: Path) -> None:
    """Its requests ask for it (`include_stop_str_in_output`), and its policies may look for it."""
    (conf / "mine.yaml").write_text(
        'defaults: [guessing, _self_]\nllm: {parameters: {stop: ["</answer>"]}}\n'
        "test_llm: {parameters: {stop: []}}\n"
    )
    made = composed("hardware=gpu", config_dir=conf, config_name="mine")
    (line,) = [notice for notice in made.notices if "stop" in notice]
    assert line.startswith("llm.parameters.stop=['</answer>']:") and "output.content" in line
    tokenizer = load_tokenizer("domains/tir/checkpoint")
    ids = encode(tokenizer, "7*8```output")
    assert ended_text(tokenizer, ids, "```output") == "7*8", "which is what the line says"


def test_a_flag_that_shapes_chats_alone_is_said(composed: Compose, conf: Path) -> None:
    """Upstream asks by messages, and this project by ids unless a prompt has tools."""
    (conf / "mine.yaml").write_text(
        "defaults: [guessing, _self_]\nvllm_config: {vllm_kwargs: {chat-template: my.jinja, "
        "reasoning_parser: qwen3, tool-call-parser: hermes}}\n"
    )
    made = composed("hardware=gpu", config_dir=conf, config_name="mine")
    lines = [notice for notice in made.notices if "prompts with tools" in notice]
    assert [line.partition(":")[0] for line in lines] == [
        "vllm_config.vllm_kwargs.chat-template=my.jinja",
        "vllm_config.vllm_kwargs.reasoning_parser=qwen3",
    ]


def test_the_host_that_upstreams_launcher_writes_over_starts_a_server_here_too(
    composed: Compose, conf: Path
) -> None:
    """Its launcher starts redis-server with `streams=redis`, and a host in a file leads it to no other."""
    (conf / "streams" / "redis.yaml").write_text('{backend: redis, host: localhost, port: 11000, save: ""}')

    def made(*overrides: str) -> tuple[str | None, list[str]]:
        options = {"config_dir": conf, "config_name": "guessing"}
        composition = composed("hardware=gpu", "streams=redis", *overrides, **options)
        lines = [line for line in composition.notices if line.startswith("streams.")]
        return typed(composition.tree).streams.host, lines

    host, (line,) = made()
    assert host is None and line.startswith("streams.host=localhost: left out")
    (conf / "fast.yaml").write_text("defaults: [guessing, _self_]\nuse_fast_llm: true\n")
    fast = composed("hardware=gpu", "streams=redis", config_dir=conf, config_name="fast")
    assert typed(fast.tree).streams.host is None and line in fast.notices
    assert made("streams.host=10.0.0.1") == ("10.0.0.1", []), (
        "the command line means a server of this project"
    )


SEVERAL = """
defaults: [base, _self_]
use_fast_llm: true
fast_llm: {optimizer: {learning_rate: {base: 1.0e-05}},
  pretrained: {format: "${fast_llm_finetune.model_format}"}}
fast_llm_finetune: {model_type: gpt, model_format: qwen2, torchrun_port: 29500}
weight_broadcast: true
world: {run_id: job-7}
debug: {log_data_pipeline: true}
finetune: {rl: {policy_loss: reinforce, epsilon_low: 0.2, epsilon_high: 0.2}}
llm: {parameters: {max_tokens: 50}}
test_llm: {parameters: {max_tokens: 50}}
dataset_loader: pipelinerl.domains.multidomain.loader.load_datasets
train_dataset_names: ["guessing::train"]
test_dataset_names: ["counting::test"]
dataset_loader_params:
  per_domain_params: {coding: {dataset_id: owner/data}, counting: {}}
  domain_loaders: {logic: pipelinerl.domains.logic.load_problems}
actor:
  rollout_policy: pipelinerl.domains.dispatcher.generate_multidomain_rollout
  domain_rollouts: {guessing: pipelinerl.domains.guessing.generate_guessing_rollout,
    counting: pipelinerl.domains.counting.generate_counting_rollout,
    miniwob: pipelinerl.domains.miniwob.rollouts.generate_miniwob_rollout,
    chartqa: pipelinerl.domains.chartqa.generate_chartqa_rollout}
"""


def test_what_upstreams_folder_has_for_every_run_is_left_out_with_a_line(
    composed: Compose, conf: Path, model: Path
) -> None:
    """Its base has a clip for losses that clip, and its domains are those of every mixture."""
    (conf / "several.yaml").write_text(SEVERAL)
    small = ("use_deepspeed=false", "finetune.load_as_bf16=false", f"model_path={model}")
    options = {"config_dir": conf, "config_name": "several"}
    made = composed("hardware=cpu", *small, **options)
    check(made)
    left = {notice.partition(": left out")[0].partition("=")[0] for notice in made.notices}
    unread = {"use_fast_llm", "fast_llm", "fast_llm_finetune", "finetune.rl.epsilon_low"}
    unread |= {"world.run_id", "debug.log_data_pipeline"}
    unread |= {f"actor.domain_rollouts.{name}" for name in ("miniwob", "chartqa")}
    loader = "dataset_loader_params"
    unread |= {f"{loader}.per_domain_params.coding", f"{loader}.domain_loaders.logic"}
    assert made.tree.dataset_loader_params == {"per_domain_params": {"counting": {}}, "domain_loaders": {}}
    assert unread <= left and sorted(made.tree.actor.domain_rollouts) == ["counting", "guessing"]
    rl = made.tree.finetune.rl
    assert (rl.epsilon_low, rl.epsilon_high) == (0.02, 0.2), "reinforce has an upper bound only"

    made = composed("hardware=cpu", *small, "finetune.rl.policy_loss=ppo", **options)
    check(made)
    assert made.tree.finetune.rl.epsilon_low == 0.2, "a loss that clips reads it"
    gspo = composed("hardware=cpu", *small, "finetune.rl.policy_loss=gspo", **options)
    assert "does not read it" not in str(gspo.notices), "a final coefficient of 0 says nothing"
    check(gspo)
    given = "actor.domain_rollouts.miniwob=domains.guessing.stepwise.generate_guessing_rollout"
    for key, said_of_it in (
        ("finetune.rl.epsilon_low=0.3", "epsilon_low=0.3: has no effect with policy_loss=reinforce"),
        (given, "actor.domain_rollouts.miniwob: no dataset is of that domain"),
        (
            "+dataset_loader_params.per_domain_params.coding.seed=1",
            "dataset_loader_params.per_domain_params.coding: no dataset is of that domain",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(said_of_it)):
            check(composed("hardware=cpu", *small, key, **options), key.partition("=")[0])


def test_policies_stay_where_a_loader_of_the_file_may_give_problems_of_any_domain(
    composed: Compose, conf: Path, model: Path
) -> None:
    """Only those of domains that are not here are left out, as upstream's folder names them all."""
    file = SEVERAL.replace("{logic: pipelinerl.domains.logic.load_problems}", "{mixed: mine.load}")
    file = file.replace('["guessing::train"]', '["mixed::train"]')
    (conf / "several.yaml").write_text(file.replace("miniwob", "math: mine.play,\n    miniwob", 1))
    small = ("use_deepspeed=false", "finetune.load_as_bf16=false", f"model_path={model}")
    made = composed("hardware=cpu", *small, config_dir=conf, config_name="several")
    assert sorted(made.tree.actor.domain_rollouts) == ["counting", "guessing", "math"]
    left = "actor.domain_rollouts.{}: left out, no dataset is of that domain"
    assert {left.format(name) for name in ("miniwob", "chartqa")} <= set(made.notices)


def test_servers_of_environments_are_left_out_of_a_file_without_one(
    composed: Compose, conf: Path, model: Path
) -> None:
    """Upstream's mixtures of domains that judge by themselves say how their environments would be served."""
    (conf / "several.yaml").write_text(
        SEVERAL.replace("run_id: job-7", "env_replicas_per_actor: 0, environment_mode: embedded")
    )
    small = ("use_deepspeed=false", "finetune.load_as_bf16=false", f"model_path={model}")
    options = {"config_dir": conf, "config_name": "several"}
    made = composed("hardware=cpu", *small, **options)
    check(made)
    said = {
        f"world.{key}: left out, there is no environment"
        for key in ("environment_mode", "env_replicas_per_actor")
    }
    assert said <= {re.sub("=[^:]*", "", notice) for notice in made.notices}
    given = "world.environment_mode=embedded"
    with pytest.raises(ConfigError, match=f"{given}: there is no environment"):
        check(composed("hardware=cpu", *small, given, **options), "world.environment_mode")
    (conf / "several.yaml").write_text(
        SEVERAL.replace("run_id: job-7", "env_replicas_per_actor: 2")
        + "environment:\n  _target_: domains.logic.LogicEnvironment\n"
    )
    made = composed("hardware=cpu", *small, **options)
    assert made.tree.world.env_replicas_per_actor == 2, "a file with an environment keeps it"


def test_a_name_with_two_equally_near_ones_is_not_sent_to_its_opposite(composed: Compose, conf: Path) -> None:
    """OpenAI's name of the largest number is as near to that of the smallest."""
    tree = composed("hardware=cpu", config_dir=conf, config_name="guessing").tree
    OmegaConf.update(tree, "llm.parameters.max_completion_tokens", 5, force_add=True)
    with pytest.raises(ConfigError, match=r"did you mean llm.parameters.max_tokens\?"):
        typed(tree)


def test_a_group_of_upstreams_folder_and_one_of_ours_are_chosen(composed: Compose, conf: Path) -> None:
    (conf / "finetune/mine.yaml").write_text("defaults: [base]\nlearning_rate: 0.25\n")
    options = {"config_dir": conf, "config_name": "guessing"}
    tree = composed("hardware=gpu", "finetune=mine", "streams=redis", **options).tree
    assert (tree.finetune.learning_rate, tree.streams.backend) == (0.25, "redis")


def test_a_bundled_domain_is_played_with_upstreams_defaults(composed: Compose, conf: Path) -> None:
    made = composed("+domain=math", "hardware=gpu", "model_path=a/b", config_dir=conf)
    check(made)
    cfg = typed(made.tree)
    assert cfg.environment is not None and cfg.domain_name == "math" and cfg.use_deepspeed
    assert (cfg.finetune.seq_length, cfg.domain_keys) == (12000, ["mm_processor_kwargs"])
    assert not any("lies over" in line for line in made.notices)


def test_values_of_upstreams_file_that_the_domain_replaces_are_said(composed: Compose, conf: Path) -> None:
    made = composed("+domain=math", "hardware=gpu", config_dir=conf, config_name="guessing")
    (line,) = (one for one in made.notices if "lies over" in one)
    assert "+domain=math lies over guessing.yaml" in line and "actor.rollout_policy, dataset_loader" in line
    assert made.tree.dataset_loader == "domains.math.load_problems"


def test_a_broken_interpolation_is_one_line(composed: Compose, conf: Path) -> None:
    for key in ("finetune.lora.enabled", "finetune.seed", "dataset_loader"):
        file = OmegaConf.create(GUESSING)
        OmegaConf.update(file, key, "${nowhere}", force_add=True)
        OmegaConf.save(file, conf / "broken.yaml")
        if key == "finetune.seed":  # it is left out
            composed("hardware=gpu", config_dir=conf, config_name="broken")
            continue
        with pytest.raises(ConfigError, match="nowhere") as refused:
            composed("hardware=gpu", config_dir=conf, config_name="broken")
        assert len(refused.value.problems) == 1


@pytest.mark.parametrize("base", ["guessing", "base", None])
def test_what_a_file_asks_of_hydras_launcher_is_said_or_refused(
    composed: Compose, conf: Path, tmp_path: Path, base: str | None
) -> None:
    """hydra's own launcher sets variables that all processes inherit, moves, calls, and starts many runs."""
    folder = conf if base == "guessing" else tmp_path / "alone"  # alone: over this repository's base
    folder.mkdir(exist_ok=True)

    def lines(section: str) -> list[str]:
        whole = "" if base is None else f"defaults: [{base}, override hydra/job_logging: disabled, _self_]\n"
        (folder / "mine.yaml").write_text(f"{whole}hydra: {{{section}}}\n")
        notices = composed("hardware=gpu", config_dir=folder, config_name="mine").notices
        return [line for line in notices if line.startswith("hydra")]

    assert lines("run: {dir: elsewhere}, verbose: true, job: {chdir: false}") == []
    (line,) = lines("job: {env_set: {DATA_DIR: /data, DATA_TOKEN: tell-nobody}}")
    assert line.startswith("hydra.job.env_set: ") and "DATA_DIR, DATA_TOKEN" in line
    assert "tell-nobody" not in line
    moved, called = lines("job: {chdir: true}, callbacks: {mine: {_target_: a.B}}")
    assert moved.startswith("hydra.job.chdir=true: ") and called.startswith("hydra.callbacks: ")
    with pytest.raises(ConfigError, match=r"hydra\.mode=MULTIRUN: sweeps are not supported"):
        lines("mode: MULTIRUN, sweeper: {params: {seed: '1,2'}}")


def test_a_group_in_wandb_that_upstreams_launcher_writes_over_groups_no_run_here(
    composed: Compose, conf: Path, tmp_path: Path
) -> None:
    """Its launcher makes the folder of a run its group; an earlier run's file names that one's folder."""
    base = OmegaConf.load(conf / "base.yaml")
    base.wandb.wandb_group = "earlier"
    OmegaConf.save(base, conf / "base.yaml")
    OmegaConf.save(written_by_upstream(conf), tmp_path / "exp_config.yaml")

    def made(*overrides: str, folder: Path = conf, name: str = "guessing") -> tuple[str | None, list[str]]:
        composition = composed("hardware=gpu", *overrides, config_dir=folder, config_name=name)
        lines = [line for line in composition.notices if line.startswith("wandb.wandb_group")]
        return typed(composition.tree).wandb.wandb_group, lines

    group, (line,) = made()
    assert group is None and line.startswith("wandb.wandb_group=earlier: left out")
    assert made(folder=tmp_path, name="exp_config") == (None, [line])
    assert made("wandb.wandb_group=mine") == ("mine", [])
    base.wandb.use_wandb = False
    OmegaConf.save(base, conf / "base.yaml")
    assert made() == (None, [])
    base.wandb.wandb_workspace_root = ""  # with which its launcher keeps the group of the file
    OmegaConf.save(base, conf / "base.yaml")
    assert made() == ("earlier", [])


def written_by_upstream(conf: Path, *overrides: str) -> DictConfig:
    """The tree of a run there, which its launcher saves with or without its interpolations."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        return hydra_compose("guessing", overrides=["output_dir=results/theirs", *overrides])


@pytest.mark.parametrize("resolved", [True, False])
def test_the_file_that_upstreams_launcher_writes_is_taken(
    composed: Compose, conf: Path, tmp_path: Path, resolved: bool
) -> None:
    tree = written_by_upstream(conf, "max_lag=1024", "seed=3")
    if resolved:
        OmegaConf.resolve(tree)
    OmegaConf.save(tree, tmp_path / "exp_config.yaml")
    made = composed("hardware=gpu", "output_dir=there", config_dir=tmp_path, config_name="exp_config")
    check(made, "output_dir")
    cfg = typed(made.tree)
    assert (cfg.seed, cfg.max_lag, cfg.finetune.rl.final_kl_coef, cfg.output_dir) == (3, 1024, 0, "there")
    assert said(made) == LEFT_OUT | OTHER_UNIT | {"finetune.output_dir"}


def test_keys_of_a_domain_come_from_the_file_that_names_it(
    composed: Compose, conf: Path, tmp_path: Path
) -> None:
    for folder, others in ((conf, ["mm_processor_kwargs"]), (tmp_path, [])):
        (folder / "own_keys.yaml").write_text(OWN_KEYS)
        options = {"config_dir": folder, "config_name": "own_keys"}
        made = composed("hardware=gpu", "sandbox_endpoint=http://other:1", **options)
        assert made.tree.sandbox_endpoint == "http://other:1" and made.tree.actor.ifeval_partial_credit
        of_actor = {"actor.ifeval_partial_credit", "actor.domain_system_prompts"}
        keys = {"sandbox_endpoint", *of_actor, *others}
        assert set(typed(made.tree).domain_keys) == keys
        (folder / "own_keys.yaml").write_text(OWN_KEYS + "environment_kye: a\n")
        with pytest.raises(ConfigError, match="environment_kye: unknown key; did you mean environment_key"):
            composed("hardware=gpu", **options)
    (tmp_path / "nameless.yaml").write_text("defaults: [base, _self_]\nsandbox_endpoint: a\n")
    with pytest.raises(ConfigError, match="sandbox_endpoint: unknown key"):
        composed("hardware=gpu", config_dir=tmp_path, config_name="nameless")


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "from_upstream.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_compose(composed: Compose, conf: Path) -> None:
    OmegaConf.save(written_by_upstream(conf), conf / "exp_config.yaml")
    commands = re.findall(r"^python -m pipelinerl\.launch (.*)$", PAGE, re.MULTILINE)
    for command in commands:
        _, _, _, name, *overrides = shlex.split(command)
        made = composed("hardware=gpu", *overrides, config_dir=conf, config_name=name)
        check(made, "output_dir")
        assert made.tree.output_dir == "results/mine"
    assert len(commands) == 2


def test_every_key_of_the_page_is_there_or_has_its_line(composed: Compose) -> None:
    tree = composed("hardware=gpu").tree
    keys = re.findall(r"`((?:finetune|actor)\.[\w.]+?)(?:\.\*)?(?:=\w+)?`", PAGE)
    assert len(keys) > 10
    for key in keys:
        known = key in REMOVED or OmegaConf.select(tree, key) is not None
        assert known or key.removeprefix("actor.") in OWN_KEYS, key


def test_a_flag_of_vllm_in_its_other_spelling_is_the_same_flag(conf: Path, composed: Compose) -> None:
    # vLLM takes `_` for `-`, and of a flag that is given twice the later one.
    (conf / "own.yaml").write_text(
        "defaults: [guessing, _self_]\n"
        "vllm_config: {vllm_kwargs: {max-model-len: 4096, max_num_seqs: 16, gpu_memory_utilization: 0.7,\n"
        "  num_scheduler_steps: 8}}\n"
    )
    made = composed("hardware=gpu", config_name="own", config_dir=conf)
    flags = {name.replace("_", "-"): value for name, value in made.tree.vllm_config.vllm_kwargs.items()}
    assert len(flags) == len(made.tree.vllm_config.vllm_kwargs)
    assert (flags["max-model-len"], flags["max-num-seqs"], flags["gpu-memory-utilization"]) == (4096, 16, 0.7)
    assert (made.tree.engine.max_model_len, made.tree.engine.max_num_seqs) == (4096, 16)
    assert "num-scheduler-steps" not in flags
    given = composed(
        "hardware=gpu",
        "vllm_config.vllm_kwargs.gpu-memory-utilization=0.6",
        "+vllm_config.vllm_kwargs.tensor_parallel_size=2",
        config_name="own",
        config_dir=conf,
    )
    flags = given.tree.vllm_config.vllm_kwargs
    assert flags["gpu-memory-utilization"] == 0.6
    assert flags["tensor-parallel-size"] == 2
    assert typed(given.tree).vllm_config.parallel_size("tensor") == 2
