"""Command lines that cannot run, given to the launcher: one line each, with the key or value in it."""

import shutil
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import compose
from pipelinerl.config.keys import apply, leaves
from pipelinerl.launcher.checks import inert
from pipelinerl.launcher.checks.inert import CONDITIONAL, UNREAD
from tests.support.one_line import check_one_line
from tests.unit.launcher.conftest import Validate

DOMAINS = Path(__file__).resolve().parents[3] / "domains"
GUESSING = "+domain=guessing"
UNCLIPPED = ("finetune.rl.epsilon_low=0.02", "finetune.rl.epsilon_high=0.02")
SFT_FILTERED = ("finetune.rl.policy_loss=sft", "finetune.rl.filter_zero_advantage_groups=true")

MY_OWN_TEACHER = ("teacher.model_path=domains/guessing/checkpoint",)

# Arguments besides the domain, and what the line must hold.
INERT: list[tuple[list[str], str]] = [
    (
        ["debug.mode=evaluate", "eval_every_n_versions=9"],
        "eval_every_n_versions=9: has no effect here: debug",
    ),
    (["actor.problem_queue_size=3"], "actor.problem_queue_size=3: has no effect here"),
    (["preprocess.n_workers=4"], "preprocess.n_workers=4"),
    (["preprocess.raw_queue_size=9"], "preprocess.raw_queue_size=9"),
    (["preprocess.input_queue_size=9"], "preprocess.input_queue_size=9"),
    (["preprocess.output_queue_size=9"], "preprocess.output_queue_size=9"),
    (["finetune.use_flash_attention=false"], "finetune.use_flash_attention=false"),
    (["finetune.use_safetensors=false"], "finetune.use_safetensors=false"),
    (["finetune.cuda_empty_cache=true"], "finetune.cuda_empty_cache=true"),
    (
        ["finetune.lr_scheduler_type=constant", "finetune.num_warmup_steps=5"],
        "finetune.num_warmup_steps=5: has no effect here: a constant rate has no warm-up; set finetune.lr_s",
    ),
    (
        ["finetune.rl.policy_loss=sft", "finetune.rl.divide_advantage_by_std=true"],
        "finetune.rl.divide_advantage_by_std=true: has no effect here: finetune.rl.policy_loss=sft reads no",
    ),
    (
        ["finetune.rl.correction.high=3"],
        "finetune.rl.correction.high=3.0: has no effect here: nothing is corrected; set finetune.rl.corr",
    ),
    (["finetune.rl.correction.level=sequence"], "finetune.rl.correction.level=sequence: has no effect here"),
    (["finetune.rl.correction.proximal=true"], "finetune.rl.correction.proximal=true: has no effect here"),
    (
        ["finetune.rl.correction.mode=truncate", "finetune.rl.correction.low=0.1"],
        "finetune.rl.correction.low=0.1: has no effect here: truncate has an upper bound only; set fine",
    ),
    *(
        (
            ["finetune=grpo", "finetune.rl.correction={mode: mask, proximal: true}", key],
            f"{key}: has no effect here: with finetune.rl.correction.proximal=true the loss's own ratio is 1",
        )
        for key in ("finetune.rl.epsilon_low=0.1", "finetune.rl.epsilon_high=0.1")
    ),
    (
        ["finetune.seq_packing=false", "finetune.share_prefixes=true"],
        "finetune.share_prefixes=true: has no effect here: with one sample in a row there is nothing",
    ),
    (["finetune.optim=lion", "finetune.adam_beta1=0.8"], "finetune.adam_beta1=0.8: has no effect here: this"),
    (["finetune.optim=lion", "finetune.adam_beta2=0.9"], "finetune.adam_beta2=0.9: has no effect here: this"),
    (["finetune.optim=adafactor", "finetune.adam_epsilon=1e-6"], "set finetune.optim=adamw_torch"),
    *(
        ([f"teacher.{key}"], f"teacher.{shown}: has no effect here: {why}")
        for key, shown, why in (
            ("weight=2", "weight=2.0", "there is no teacher; set teacher.model_path or teacher.url"),
            ("with_rewards=true", "with_rewards=true", "there is no teacher"),
            ("deadline_s=5", "deadline_s=5.0", "preprocess scores by itself; set teacher.url"),
        )
    ),
    (
        [*MY_OWN_TEACHER, "debug.mode=evaluate"],
        "has no effect here: debug.mode=evaluate computes no advantages",
    ),
    (
        [*MY_OWN_TEACHER, "finetune.rl.divide_advantage_by_std=true"],
        "finetune.rl.divide_advantage_by_std=true: has no effect here: rewards have no part in the advan",
    ),
    (["finetune.memory_debug.every_n_steps=2"], "finetune.memory_debug.every_n_steps=2"),
    (["vllm_config.version=0.32.0"], "vllm_config.version=0.32.0: has no effect here: the embedded engine"),
    (["vllm_config.vllm_kwargs.dtype=float16"], "vllm_config.vllm_kwargs.dtype=float16"),
    (["world.actor_fraction=2"], "world.actor_fraction=2: has no effect here: a CPU has no devices"),
    (["world.finetune_fraction=2"], "world.finetune_fraction=2"),
    (["world.share_device=true"], "world.share_device=true"),
    (["world.actor_group_port=9100"], "world.actor_group_port=9100"),
    (
        ["weights.ahead=false"],
        "weights.ahead=false: has no effect here: the embedded engine always reads versions ahead",
    ),
    (["hardware.devices=2"], "hardware.devices=2"),
    (["engine.per_card=2"], "engine.per_card=2: has no effect here: a CPU has no cards; use engine.count"),
    (["world.hosts=2"], "world.hosts=2: has no effect here: one host; set world.backend=ray"),
    (["world.ray_address=x"], "world.ray_address=x"),
    (["world.actor_hosts=1"], "world.actor_hosts=1"),
    (["world.interface=eth0"], "world.interface=eth0"),
    (
        ["eval_at_end=false", "eval_every_n_versions=0", "test_llm.parameters.max_tokens=8"],
        "test_llm.parameters.max_tokens=8: has no effect here: nothing is evaluated; set eval_at_end=true",
    ),
    (["debug.use_existing_llms=true", "engine.min_alive=2"], "engine.min_alive=2: has no effect here: no"),
    (["fsdp.reduce_dtype=bf16"], "fsdp.reduce_dtype=bf16: has no effect here: nothing is sharded"),
    (["deepspeed_config=deepspeed_stage2_bf16"], "deepspeed_config=deepspeed_stage2_bf16"),
    (["wandb.use_wandb=false", "wandb.wandb_project_name=mine"], "wandb.wandb_project_name=mine"),
    (["wandb.use_wandb=false", "wandb.tags=[a]"], "wandb.tags"),
    (["actor.difficulty.low=0.2"], "actor.difficulty.low=0.2: has no effect here: set actor.sampling=diff"),
    (["actor.difficulty_aware_penalty.gamma=2"], "actor.difficulty_aware_penalty.gamma=2.0"),
    (["finetune.lora.r=8"], "finetune.lora.r=8: has no effect here: all weights are trained"),
    (["weights.lora=merged"], "weights.lora=merged: has no effect here: all weights are trained"),
    (["test_dataset_names=[]", "eval_every_n_versions=0", "eval_at_end=false"], "eval_at_end=false"),
    (
        ["test_dataset_names=[]", "eval_every_n_versions=0", "test_llm.parameters.top_p=0.5"],
        "test_llm.parameters.top_p=0.5",
    ),
    (["bootstrap.budget=0.1"], "bootstrap.budget=0.1"),
    (["rewards=success"], "the rollout policy of guessing does not read it"),
    (["rewards.wrong_answer_finished=-1"], "rewards.wrong_answer_finished=-1.0"),
    (["actor.discount_factor=0.9"], "actor.discount_factor=0.9"),
    (["actor.system_prompt=think"], "actor.system_prompt=think"),
    (["actor.task_template={task}"], "actor.task_template"),
]

IMPOSSIBLE: list[tuple[list[str], str]] = [
    (["finetune.train_batch_size=0"], "finetune.train_batch_size=0"),
    (["finetune.gradient_accumulation_passes=-4"], "finetune.gradient_accumulation_passes=-4"),
    (["finetune.learning_rate=-1"], "finetune.learning_rate=-1"),
    (["finetune.learning_rate=fast"], "'fast'"),
    (["finetune.learning_rate=inf"], "finetune.learning_rate=inf"),
    (["finetune.rl.temperature=nan"], "finetune.rl.temperature=nan"),
    (["finetune.lr_scheduler_type=spiral"], "'spiral'"),
    (["finetune.max_train_steps=0"], "finetune.max_train_steps=0"),
    (["finetune.seq_length=0"], "finetune.seq_length=0"),
    (["finetune.attempts=0"], "finetune.attempts=0"),
    (["finetune.seq_parallel=0"], "finetune.seq_parallel=0"),
    (
        ["finetune.lora.enabled=true", "weights.lora=adapter", "debug.use_existing_llms=true"],
        "weights.lora=adapter: engines that run already may have other weights than those of model_path; set",
    ),
    (
        [
            *("finetune.lora.enabled=true", "weights.lora=adapter"),
            *("finetune.send_weight_updates=false", "max_lag=null"),
        ],
        "weights.lora=adapter: this run sends its engines nothing; set weights.lora=merged",
    ),
    (["finetune.lora.enabled=true", "weights.lora=none"], "weights.lora='none'"),
    (["finetune.seq_parallel=2"], "finetune.seq_parallel=2: does not divide the 1 trainer ranks; set "),
    (["finetune.gradient_checkpointing=offload"], "=offload: a CPU run is in host memory anyway; set true"),
    (["finetune.rl.epsilon_high=-1"], "finetune.rl.epsilon_high=-1"),
    (["finetune.rl.policy_loss=[ppo]"], "['ppo']"),
    (
        ["teacher.model_path=/no/such/model"],
        "/no/such/model: no such folder; give a model",
    ),
    (["teacher.model_path=domains/guessing"], "teacher.model_path="),
    (["teacher.model_path=domains/raro/checkpoint"], "ids stand for other text there, such as"),
    (["teacher.by_role={critic: /no/such}"], "teacher.by_role.critic=/no/such: no such folder"),
    (
        ["teacher.by_domain={math: 'http://127.0.0.1:9'}"],
        "by_domain.math=http://127.0.0.1:9: does not",
    ),
    (["teacher.url=localhost:8000"], "teacher.url=localhost:8000: no address; write http://HOST:PORT"),
    (["teacher.url=http://127.0.0.1:9"], "teacher.url=http://127.0.0.1:9: does not answer"),
    ([*MY_OWN_TEACHER, "teacher.url=http://127.0.0.1:9"], "names one as well; set one"),
    (["teacher.weight=0", *MY_OWN_TEACHER], "teacher.weight=0"),
    (["teacher.deadline_s=0"], "teacher.deadline_s=0"),
    (
        [*MY_OWN_TEACHER, "finetune.rl.policy_loss=sft", *UNCLIPPED],
        "policy_loss=sft: a teacher has no effect",
    ),
    ([*MY_OWN_TEACHER, "finetune.rl.use_advantages=false"], "use_advantages=false: a teacher has no effect"),
    (
        [*MY_OWN_TEACHER, "finetune.rl.filter_zero_advantage_groups=true"],
        "which a teacher can still score; set false",
    ),
    (
        [*MY_OWN_TEACHER, "finetune=actor_critic"],
        "the advantage is reward minus value, so a teacher has no effect",
    ),
    (
        ["teacher.url=http://127.0.0.1:9", "llm.parameters.temperature=0.7"],
        "scores at temperature 1, the policy samples at 0.7",
    ),
    (
        ["finetune.rl.policy_loss=sft", "finetune.rl.correction.mode=clip"],
        "correction.mode=clip: policy_loss=sft uses no ratio; set finetune.rl.correction.prox",
    ),
    (["actor.llm_max_rollouts=0"], "actor.llm_max_rollouts=0"),
    (["actor.rollout_workers=0"], "actor.rollout_workers=0"),
    (["actor.rollout_deadline_s=0"], "actor.rollout_deadline_s=0"),
    (["actor.max_failed_fraction=2"], "actor.max_failed_fraction=2"),
    (["actor.max_rollout_retries=-2"], "actor.max_rollout_retries=-2"),
    (["actor.domain_mix={guessing: heavy}"], "'heavy'"),
    (["engine.count=0"], "engine.count=0"),
    (["engine.max_restarts=-1"], "engine.max_restarts=-1"),
    (["engine.min_alive=0"], "engine.min_alive=0"),
    (["engine.min_alive=2"], "engine.min_alive=2: this run has 1 in all; set 1 or fewer"),
    (["engine.count=3", "engine.min_alive=4"], "engine.min_alive=4: this run has 3 in all"),
    (["llm.parameters.max_tokens=0"], "llm.parameters.max_tokens=0"),
    (["llm.parameters.temperature=-0.5"], "llm.parameters.temperature=-0.5"),
    (["test_llm.parameters.top_p=0"], "test_llm.parameters.top_p=0"),
    (["preprocess.ring_buffer_size=0"], "preprocess.ring_buffer_size=0"),
    (["preprocess.chunk_n_groups=0"], "preprocess.chunk_n_groups=0"),
    (["world.env_replicas=-1"], "world.env_replicas=-1"),
    (["eval_every_n_versions=-5"], "eval_every_n_versions=-5"),
    (["hardware.threads_per_process=0"], "hardware.threads_per_process=0"),
    (["seed=[1]"], "[1]"),
    (["model_path="], "model_path="),
    (["domain_hooks=domains.guessing.nothing"], "domains.guessing.nothing"),
    (["domain_hooks=json.loads"], "json.loads"),
    (["output_dir=setup.py"], "setup.py: a file; choose another folder"),
    (["train_subset={begin: -1}"], "-1"),
    (["attempts=none"], "'none'"),
    (["max_lag=1.5"], "1.5"),
    (["finetune={attempts: 4, spam: 1}"], "spam"),
    (["actor={rollout_polcy: a.b}"], "rollout_polcy"),
    (["llm.parameters=5"], "5"),
    (["wandb=offline"], "offline"),
    (["+domain=raro"], "+domain=raro: a domain was already chosen"),
    (["hardware=gpu"], "hardware=gpu: hardware=cpu was already chosen"),
    (["=3"], "=3"),
    (["seed=${nothing}"], "seed: Interpolation key 'nothing' not found"),
    (["model_path=${nothing}"], "model_path: Interpolation key 'nothing' not found"),
    (["model_path=${oc.env:NO_SUCH_VARIABLE}"], "model_path: "),
    (["model_path=${no_resolver:x}"], "model_path: Unsupported interpolation type no_resolver"),
    (["train_dataset_names=${nothing}"], "train_dataset_names: "),
    (["seed=${seed}"], "seed: Recursive interpolation"),
    (["finetune=${nothing}"], "finetune"),
    (["domain_hooks=${nothing}", "sed=1"], "sed: unknown key; did you mean seed?"),
    (["domain_hooks=${seed}", "sed=1"], "domain_hooks=42: not a dotted path"),
]

OPTIONS: list[tuple[list[str], str]] = [
    (["--confg-name=x"], "--confg-name=x: unknown option; did you mean --config-name?"),
    (["--config-dir=/no/such/folder"], "/no/such/folder"),
    (["--config-name=nothing_here"], "nothing_here"),
    (["--cfg=hydra"], "--cfg hydra"),
    (["--multirun"], "--multirun"),
    (["--config-name"], "needs a value"),
    (["--config-name=raro"], "name the domain once"),
]


@pytest.mark.parametrize(("arguments", "value"), INERT + IMPOSSIBLE + OPTIONS, ids=lambda v: str(v)[:60])
def test_the_launcher_refuses_it_in_one_line(validate: Validate, arguments: list[str], value: str) -> None:
    status, said = validate(GUESSING, "hardware=cpu", *arguments)
    assert status == 2
    check_one_line(said, value, str(arguments))


def test_every_inert_key_of_the_tables_is_tried() -> None:
    tried = {argument.partition("=")[0] for arguments, _ in INERT for argument in arguments}
    names = ("threads", "dtype", "max_prefill_tokens", "max_waiting", "prefix_cache")
    engines = {f"engine.{name}" for name in names}
    parents = {*UNREAD, *(inert.key for inert in CONDITIONAL)} - engines - {"accelerate_config"}
    untried = {key for key in parents if not any(k == key or k.startswith(f"{key}.") for k in tried)}
    assert not untried


@pytest.mark.parametrize(
    "key", ["threads=2", "dtype=bfloat16", "max_prefill_tokens=64", "max_waiting=9", "prefix_cache=true"]
)
def test_keys_of_the_embedded_engine_are_inert_on_a_gpu(
    validate: Validate, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    lengths = ["llm.parameters.max_tokens=64", "test_llm.parameters.max_tokens=64"]
    status, said = validate(GUESSING, "hardware=gpu", "model_path=owner/model", *lengths, f"engine.{key}")
    assert status == 2
    check_one_line(said, f"engine.{key}: has no effect here: vLLM has its own")


@pytest.mark.parametrize(
    "given", ["hardware.devices=[0,1]", "hardware.devices=two", "world.actor_fraction=most"]
)
def test_devices_that_are_no_number_are_refused(validate: Validate, given: str) -> None:
    status, said = validate(GUESSING, "hardware=gpu", "model_path=owner/model", given)
    assert status == 2 and given.partition("=")[0] in said
    check_one_line(said, "launcher: ", given)


def test_keys_that_the_run_reads_are_not_called_inert(validate: Validate) -> None:
    read = ["wandb.use_wandb=false", "finetune.lora.enabled=false", "test_llm.parameters.top_p=0.5"]
    read += ["finetune.memory_debug.enabled=true", "finetune.memory_debug.every_n_steps=2"]
    read += ["world.preprocessor_fraction=1", "finetune.rl.kl_coef=0.1", "preprocess.n_workers=4"]
    assert validate(GUESSING, "hardware=cpu", *read) == (0, "")
    assert validate("+domain=math", "hardware=cpu", "rewards=base", "actor.discount_factor=0.9") == (0, "")


@pytest.mark.parametrize(
    ("domain", "given"),
    [
        # What the domain or the defaults say beside it is nobody's mistake.
        ("raro_tiny", ["finetune.lr_scheduler_type=constant"]),
        ("reputation_hacking", ["finetune.rl.policy_loss=sft", *UNCLIPPED]),
        ("guessing", ["finetune.seq_packing=false"]),
        # What the run does anyway may be said.
        ("guessing", ["finetune.lr_scheduler_type=constant", "finetune.num_warmup_steps=0"]),
        ("guessing", ["finetune.rl.policy_loss=sft", "finetune.rl.divide_advantage_by_std=false"]),
        ("guessing", ["finetune.seq_packing=false", "finetune.share_prefixes=false"]),
        # What has an effect.
        ("guessing", ["finetune.lr_scheduler_type=constant_with_warmup", "finetune.num_warmup_steps=5"]),
        ("guessing", ["finetune.rl.divide_advantage_by_std=true", "finetune.share_prefixes=true"]),
        ("guessing", [*SFT_FILTERED, "finetune.rl.divide_advantage_by_std=true"]),
        ("guessing", ["finetune.adam_beta1=0.8", "finetune.adam_beta2=0.95", "finetune.adam_epsilon=1e-6"]),
        # What only training samples with is nothing to an evaluation.
        ("guessing", ["debug.mode=evaluate", "llm.parameters.max_tokens=9999", "llm.parameters.top_p=0.5"]),
    ],
)
def test_only_a_key_that_was_given_and_idles_is_refused(
    validate: Validate, domain: str, given: list[str]
) -> None:
    assert validate(f"+domain={domain}", "hardware=cpu", *given) == (0, "")


@pytest.mark.parametrize(
    "profile", [("hardware=cpu",), ("hardware=gpu", "+preset=privacy_hopqa_from_scratch")], ids="_".join
)
def test_a_model_that_cannot_play_the_compact_prompts_is_refused(
    validate: Validate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: tuple[str, ...]
) -> None:
    """Another model's tokenizer; the bundled model's is one that can, wherever it was saved."""
    monkeypatch.setenv("DRY_RUN", "1")
    given = ("+domain=privacy_hopqa", *profile, f"model_path={tmp_path}")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096}')
    shutil.copy2(DOMAINS / "raro/checkpoint/tokenizer.json", tmp_path)
    status, said = validate(*given)
    assert status == 2
    check_one_line(
        said, f"launcher: model_path={tmp_path}: does not know the codewords of privacy_hopqa.prompt"
    )
    preset = "+preset=privacy_hopqa_pretrained"
    assert f"play complete prompts (privacy_hopqa.prompt_set=full) with {preset}, after `python" in said
    assert f"+domain=privacy_hopqa {preset} bootstrap.start={tmp_path}` where the model is small" in said
    shutil.copy2(DOMAINS / "privacy_hopqa/checkpoint/tokenizer.json", tmp_path)
    assert validate(*given) == (0, "")


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (["privacy_hopqa", "+preset=privacy_hopqa_pretrained"], " bootstrap.start=MODEL makes it"),
        (["reputation_hacking", "+preset=reputation_hacking_pretrained"], " bootstrap.start=MODEL makes it"),
        (["privacy_hopqa", "+preset=privacy_hopqa_from_scratch"], " makes it"),
        (
            ["guessing", "bootstrap.out=/mine", "model_path=/mine"],
            " with the keys and presets of this command",
        ),
    ],
    ids=lambda given: str(given[-1])[:40],
)
def test_a_model_that_a_recipe_has_yet_to_make_is_named_with_its_command(
    validate: Validate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where no results are
    monkeypatch.setattr(inert, "check", lambda *_: [])  # a launch reads no key of the recipe
    domain, *more = given
    status, said = validate(f"+domain={domain}", "hardware=cpu", *more)
    assert status == 2
    preset = f" {more[0]}" if more[0].startswith("+preset") else ""
    made = f"no such folder; python -m pipelinerl.bootstrap +domain={domain}{preset}{command}"
    check_one_line(said, made)
    _, said = validate(f"+domain={domain}", "hardware=cpu", *more, "model_path=/elsewhere")
    assert "model_path=/elsewhere: no such folder; give a model folder or a hub name" in said


def test_complete_prompts_do_not_start_in_the_context_of_the_compact_ones(
    validate: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU profile's sizes, with its own model; nothing else is said beside it."""
    status, said = validate("+domain=privacy_hopqa", "hardware=cpu", "privacy_hopqa.prompt_set=full")
    assert status == 2
    check_one_line(said, "launcher: privacy_hopqa.generation_context_limit_tokens=1024 leaves 1,008 tokens")
    assert "raise it; +preset=privacy_hopqa_pretrained has the sizes for complete prompts" in said


def test_every_key_with_one_letter_changed_is_refused_with_a_hint(tmp_path: Path) -> None:
    """Each of some three hundred keys, as composed for a domain, loses the last letter of its name."""
    tree = compose(["+domain=privacy_hopqa", "hardware=cpu"]).tree
    known, parser = leaves(tree), OverridesParser.create()
    tried = 0
    for key in known:
        misspelt = key[:-1] + ("x" if key[-1] != "x" else "y")
        if misspelt in known or key.startswith("jobs"):
            continue
        with pytest.raises(ConfigError) as caught:
            apply(tree, [parser.parse_override(f"{misspelt}=1")], [])
        assert len(caught.value.problems) == 1 and misspelt in caught.value.problems[0]
        tried += 1
    assert tried > 250
