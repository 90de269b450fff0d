"""Bad configurations are refused before anything starts, in one line that says what to do."""

from collections.abc import Callable

import pytest

from pipelinerl.config import typed
from pipelinerl.config.compose import Composition
from pipelinerl.finetune.rl.advantages import ESTIMATORS
from pipelinerl.finetune.rl.advantages.situation import situation
from pipelinerl.finetune.rl.losses import LOSSES
from pipelinerl.launcher.checks import training

MISSPELT = [
    ("actor.llm_max_rollout=3", "did you mean actor.llm_max_rollouts?"),
    ("+actor.foo=1", "actor.foo: unknown key; allowed here:"),
    # Arguments of a loader may be called like keys of other sections, and take the plus sign all the same.
    (
        "dataset_loader_params.kind=1",
        "a new key is written +dataset_loader_params.kind=VALUE",
    ),
    ("llm.chat_template_kwargs.seed=1", "a new key is written +llm.chat_template_kwargs.seed=VALUE"),
    ("+sede=1", "did you mean seed?"),
    ("sed=1", "did you mean seed?"),
    ("kl_coef=0.1", "did you mean finetune.rl.kl_coef?"),
    ("finetune.rl.kl=0.1", "did you mean finetune.rl.kl_coef?"),
    ("finetune.rl.polcy_loss=ppo", "did you mean finetune.rl.policy_loss?"),
    ("learning_rate=1", "did you mean finetune.learning_rate?"),
    ("finetune.lr=1", "did you mean finetune.learning_rate?"),
    ("lr=1", "did you mean finetune.learning_rate?"),
    ("num_generations=4", "did you mean finetune.attempts?"),
    ("test_llm.temperature=0", "did you mean test_llm.parameters.temperature?"),
    ("mode=evaluate", "did you mean debug.mode?"),
    ("nothing_like_it=1", "nothing_like_it: unknown key; --cfg job prints every key"),
    ("hydra.job.chdir=False", "settings of hydra's own launcher have no effect here; remove it"),
    ("hydra/job_logging=disabled", "settings of hydra's own launcher have no effect here; remove it"),
    ("llm.parameters.max_token=3", "did you mean llm.parameters.max_tokens?"),
    ("+llm.parameters.logit_bias=1", "llm.parameters.logit_bias: unknown key"),
    ("model_path.x=1", "model_path holds a value and no keys"),
    ("train_subset.begin=5", "set the whole of it, train_subset={begin: VALUE, end: VALUE}"),
    ("finetune=grop", "finetune=grop: no such choice; did you mean grpo?"),
    ("hardware=tpu", "hardware=tpu: no such profile"),
    ("streams=kafka", "streams=kafka: no such choice"),
    ("+domain_hardware=guessing_cpu", "chosen by +domain and hardware"),
    ("finetune.lora.base_model_4bit=true", "is not available"),
    ("finetune.rl.aggregate_loss=mean", "no longer exists"),
    ("finetune.fp32_lm_head=true", "use fp32_layer_prefix=lm_head"),
    (
        "vllm_config.vllm_kwargs.quantization=fp8",
        "a new key is written +vllm_config.vllm_kwargs.quantization",
    ),
    ("seed", "not an override; write key=value"),
    ("reputation_hacking.mitigation=monitor:lam=5", "quote values with spaces or ="),
    ("+judge.api_key=a(b", "+judge.api_key=(masked): not an override; write key=value"),
    ("world=null", "world=null: a section of keys; leave it out, or set world.KEY=VALUE"),
    ("debug=null", "debug=null: a section of keys"),
    ("actor=null", "actor=null: a section of keys"),
    ("watchdog=3", "watchdog=3: holds keys, such as watchdog.silent_deadline_s; set one of those"),
    ("~seed", "keys cannot be deleted; set seed=VALUE"),
    ("seed=1,2", "sweeps are not supported"),
    ("hardware.kind=gpu", "choose the profile, hardware=gpu"),
]

WRONG_VALUES = [
    ("seed=abc", "seed='abc': input should be a valid integer"),
    ("fp32_layer_prefix=model.norm", "'lm_head'"),
    ("finetune.model_class=vision2seq-language-modeling", "'causal-language-modeling'"),
    ("finetune.seq_parallel=0", "greater than or equal to 1"),
    ("finetune.optim=cpuadam", "'adamw_torch'"),
    ("seed=18446744073709551616", "input should be less than 18446744073709551616"),
    ("world.replicas=2", "input should be 1"),
    ("finetune.rl.role_weights={policy: 1/0}", "must be a number >= 0 or a fraction such as 1/9"),
    ("finetune.rl.role_weights={policy: -1}", "must be >= 0"),
    ("finetune.adam_beta1=1", "finetune.adam_beta1=1: input should be less than 1"),
    ("finetune.adam_beta2=-0.1", "finetune.adam_beta2=-0.1: input should be greater than or equal to 0"),
    ("finetune.adam_epsilon=0", "finetune.adam_epsilon=0: input should be greater than 0"),
    ("finetune.rl.routing=replays", "input should be 'auto', 'replay' or 'free'"),
    ("finetune.rl.correction.mode=tis", "input should be 'off', 'clip', 'mask' or 'truncate'"),
    ("finetune.rl.correction.level=rollout", "input should be 'token', 'sequence' or 'geometric'"),
    ("finetune.rl.correction.low=1.2", "finetune.rl.correction.low=1.2: input should be less than or equal"),
    ("finetune.rl.correction.high=0.9", "high=0.9: input should be greater than or equal to 1"),
    ("finetune.rl.router_aux_loss_coef=-1", "input should be greater than or equal to 0"),
    ("engine.port=70000", "less than or equal to 65535"),
    ("actor.on_rollout_error=ignore", "'drop_rollout'"),
    ("debug.mode=everything", "'open_loop'"),
    ("max_lag=-1", "greater than or equal to 0"),
    ("finetune.learning_rate=null", "finetune.learning_rate: missing; set finetune.learning_rate=VALUE"),
    ("train_dataset_names=train", "input should be a valid list"),
    ("test_llm.parameters.stop=END", "input should be a valid list"),
    ("test_llm.parameters.stop=['']", "at least 1 character"),
    ("test_llm.parameters.stop_token_ids=[-1]", "greater than or equal to 0"),
    ("finetune.also_save_steps=[2,0]", "finetune.also_save_steps.1=0: input should be greater than or equal"),
]

CONTRADICTIONS = [
    ("model_path=/nowhere/at/all", "no such folder; give a model folder or a hub name"),
    ("model_path=conf/nothing", "no such folder"),
    ("model_path=setup.py", "a file; give the folder that holds config.json"),
    ("finetune.config_name=other/model", "differs from model_path"),
    ("dataset_loader=domains.guessing.load_problem", "has no load_problem; did you mean load_problems?"),
    ("actor.rollout_policy=domains.nothing.f", "no module domains.nothing"),
    ("actor.rollout_policy=f", "not a dotted path"),
    ("actor.rollout_policy=null", "actor.rollout_policy: missing"),
    ("train_dataset_names=[]", "nothing to train on"),
    ("test_dataset_names=[other,more,other]", "test_dataset_names: other is named twice"),
    ("test_dataset_names=[other,train]", "train is trained on too, so its evaluation would not be held out"),
    ("test_dataset_names=[]", "set eval_every_n_versions=0"),
    ("train_subset={begin: 5, end: 5}", "it would be empty"),
    ("accelerate_config=/no/such.yaml", "no such path"),
    ("weights.directory=/no/such", "not a writable folder"),
    ("llm.parameters.temperature=0", "llm.parameters.temperature=0"),
    ("llm.parameters.top_p=0.9", "llm.parameters.top_p=0.9: the trainer cannot recompute"),
    ("llm.parameters.top_k=50", "llm.parameters.top_k=50"),
    ("llm.parameters.seed=7", "llm.parameters.seed=7: every attempt at a problem would be the same sample"),
    ("llm.parameters.min_p=0.1", "llm.parameters.min_p=0.1"),
    ("llm.parameters.min_tokens=4", "llm.parameters.min_tokens=4"),
    ("llm.parameters.repetition_penalty=1.1", "llm.parameters.repetition_penalty=1.1: the trainer cannot"),
    ("llm.parameters.presence_penalty=0.5", "llm.parameters.presence_penalty=0.5"),
    ("llm.parameters.frequency_penalty=-1", "llm.parameters.frequency_penalty=-1"),
    ("test_llm.parameters.repetition_penalty=0", "test_llm.parameters.repetition_penalty"),
    ("finetune.rl.temperature=0.7", "set llm.parameters.temperature only"),
    ("llm.parameters.max_tokens=1024", "leaves no room for a prompt"),
    ("test_llm.parameters.max_tokens=2000", "test_llm.parameters.max_tokens=2000"),
    ("finetune.seq_length=64", "shorter than engine.max_model_len="),
    ("engine.max_prefill_tokens=100000", "more than the slots hold"),
    ("finetune.rl.pad_step_rewards_for_advantage=true", "set finetune.rl.step_reward_advantages=true"),
    (
        "finetune.rl.policy_loss=grpo",
        f"finetune.rl.policy_loss=grpo: no such loss; use {', '.join(LOSSES)} or the dotted path",
    ),
    ("finetune.rl.policy_loss=no.where.loss", "finetune.rl.policy_loss=no.where.loss: no module no.where"),
    ("finetune.rl.policy_loss=domains.guessing.los", "domains.guessing has no los; "),
    (
        "finetune.rl.advantage_estimator=grpo",
        f"no such estimator; use {', '.join(ESTIMATORS)} or the dotted path",
    ),
    ("finetune.rl.advantage_estimator=json.nothing", "json has no nothing"),
    ("finetune.rl.value_loss_coef=0.1", "there is no value head"),
    ("finetune.attempts=1", "a lone rollout has advantage 0"),
    ("attempts=4", "set finetune.attempts only"),
    ("world.preprocessor_fraction=1", "no KL term, so nothing is scored"),
    ("finetune.rl.epsilon_low=0.1", "has no effect with policy_loss=reinforce; leave it at 0.02"),
    ("finetune.rl.zero_advantage_epsilon=0.1", "has no effect with filter_zero_advantage_groups=false"),
    ("finetune.rl.loss_scale_scope=chunk", "has no effect with batch_size_normalization=training_texts"),
    (
        "finetune.model_class=causal-language-modeling-with-value-head",
        "nothing trains the head; set finetune.rl.value_loss_coef",
    ),
    ("finetune.interrupt_train_steps=21", "beyond finetune.max_train_steps=20"),
    ("use_fsdp=true", "sharding needs several GPUs"),
    ("fsdp.cpu_offload=true", "a CPU run is in host memory anyway; set fsdp.cpu_offload=false"),
    ("fsdp.param_dtype=bf16", "set finetune.load_as_bf16=true"),
    ("fsdp.buffer_dtype=bf16", "buffers keep their type"),
    ("finetune.lora.r=0", "finetune.lora.r"),
    ("finetune.compile=true", "layers are compiled for GPUs only"),
    ("finetune.gradient_checkpointing=some", "finetune.gradient_checkpointing"),
    ("preprocess.dataset_buffer_size=100", "must be 0 or equal to preprocess.ring_buffer_size"),
    ("preprocess.input=other", "no other role uses this topic"),
    ("finetune.input=other", "preprocess writes training_data"),
    ("actor.rollout_retry_initial_delay_s=60", "above actor.rollout_retry_max_delay_s"),
    ("actor.domain_mix={a: -1, b: 2}", "weights are at least 0"),
    ("actor.domain_mix={a: 0}", "every weight is 0"),
    ("actor.difficulty_aware_penalty.enabled=true", "set rewards.buffer_tokens"),
    ("actor.sampling=hard", "actor.sampling"),
    ("actor.difficulty.uniform_share=0", "actor.difficulty.uniform_share"),
    ("rewards.correct_answer_finished=-1", "rewards.wrong_answer_finished=0: more than a right answer gets"),
    ("rewards.no_answer_finished=2", "rewards.no_answer_finished=2: more than a right answer gets"),
    ("rewards.wrong_answer_finished=nan", "input should be a finite number"),
    ("engine.kind=vllm", "needs a GPU"),
    ("weights.transport=nccl", "the embedded engine reads files"),
    ("debug.mode=finetune", "set debug.streams_from=RUN_FOLDER"),
    ("debug.streams_from=/no/such", "no such path"),
    ("streams.host=a", "streams.host: files have no server"),
    ("streams.port=1", "streams.port: files have no server"),
    ("environment={key: a}", "has no _target_"),
    (
        "environment={_target_: nothing.Env}",
        "nothing.Env: no module nothing; check the spelling or install it; or remove the entry",
    ),
    (
        "environments=[{_target_: logging.Logger, key: a}, {_target_: logging.Logger, key: a}]",
        "2 have the key a",
    ),
    (
        "environments={a: {_target_: logging.Logger, replicas_per_actor: -1}}",
        "environments.a.replicas_per_actor=-1: must be a whole number",
    ),
    ("world.env_replicas=3", "world.env_replicas=3: there is no environment"),
    ("world.env_replicas_per_actor=1", "there is no environment; set environments or leave it at null"),
    ("world.environment_mode=embedded", "world.environment_mode=embedded: there is no environment"),
    ("hardware=gpu", "no GPU is visible"),
]


@pytest.mark.parametrize(("override", "expected"), MISSPELT + WRONG_VALUES + CONTRADICTIONS)
def test_a_bad_override_is_refused_with_its_remedy(
    refusal: Callable[..., str], override: str, expected: str
) -> None:
    assert expected in refusal(override)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["environments={maze: {_target_: logging.Logger}}", "environment_key=mase"],
            "environment_key=mase: no such environment; did you mean maze?",
        ),
        (
            ["environments={maze: {_target_: logging.Logger}}", "environment={_target_: logging.Logger}"],
            "both are set; use environments for several",
        ),
        (
            ["preprocess.ring_buffer_size=100", "preprocess.dataset_buffer_size=100"],
            "not a multiple of the 64",
        ),
        (
            ["preprocess.ring_buffer_size=6400", "preprocess.dataset_buffer_size=6400"],
            "max_lag=512 admits at most 576 samples",
        ),
        (
            ["preprocess.ring_buffer_size=64", "preprocess.dataset_buffer_size=64", "max_lag=null"],
            "set pop_old_data=false",
        ),
        (
            ["finetune.rl.role_weights={a: 1}", "finetune.rl.loss_scale_scope=chunk"],
            "set loss_scale_scope=batch",
        ),
        (
            ["finetune.rl.advantage_estimator=rollout", "finetune.rl.step_reward_advantages=true"],
            "step_reward_advantages=true says situation; set one",
        ),
        (["streams=redis", "streams.host=10.0.0.1"], "set streams.password"),
        (["streams=redis", "streams.password=''"], "leave it null, and one is made"),
        *(
            (["streams=redis", f"streams.save={save}"], "redis takes pairs of seconds and changes")
            for save in ("hourly", "'0 1'", "'3600 1 60'")
        ),
        (
            ["actor.sampling=difficulty", "actor.difficulty.low=0.95"],
            "actor.difficulty.low=0.95: above actor.difficulty.high=0.9; lower the first",
        ),
        (
            ["actor.sampling=difficulty", "actor.difficulty.high=5"],
            "actor.difficulty.high=5: success lies between 0 and 1",
        ),
        (["use_fsdp=true", "use_deepspeed=true"], "two ways of sharding; choose one"),
        *(
            (["use_deepspeed=true", f"deepspeed_config={name}"], f"deepspeed_config={name}: {said}")
            for name, said in (
                ("mine", "names no stage"),
                (
                    "deepspeed_stage2_fp16",
                    "only the stage is imitated here; set deepspeed_config=deepspeed_stage2_bf16",
                ),
                (
                    "deepspeed_stage3_bf16_offload",
                    "only the stage is imitated here; set deepspeed_config=deepspeed_stage3_bf16, "
                    "or use_deepspeed=false use_fsdp=true fsdp.cpu_offload=true",
                ),
            )
        ),
        (["fsdp.cpu_offload=true", "use_deepspeed=true"], "DeepSpeed's shards stay on the GPUs; choose one"),
        (["streams=redis", "debug.streams_from=conf"], "recordings are files; set streams=files"),
        (["engine.max_model_len=5000", "finetune.seq_length=5000"], "the model has 4096 positions"),
        (
            ["world.preprocessor_fraction=1", "finetune.rl.kl_coef=0.1", "llm.parameters.temperature=0.7"],
            "the policy samples at 0.7; set world.preprocessor_fraction=0 to score inside preprocess",
        ),
        *(
            (
                [f"finetune.rl.policy_loss={loss}", f"finetune.rl.{setting}", *more],
                f"policy_loss={loss}; leave",
            )
            for loss, setting, *more in (
                ("gspo", "kl_coef=0.1", "finetune.rl.final_kl_coef=0"),
                ("gspo", "final_entropy_bonus=0.1"),
                ("gspo", "relu_log_p_weights=true"),
                ("gspo", "use_advantages=false"),
                ("sft", "epsilon_high=4"),
                ("sft", "epsilon_low=0.1"),
                ("sft", "use_advantages=false"),
                ("sft", "relu_log_p_weights=true"),
            )
        ),
        (
            ["finetune.rl.router_aux_loss_coef=0.01", "finetune.reentrant_checkpointing=true"],
            "set finetune.reentrant_checkpointing=false",
        ),
        (["finetune.rl.router_aux_loss_coef=0.01", "finetune.seq_parallel=2"], "set finetune.seq_parallel=1"),
        *(
            (["finetune=actor_critic", f"finetune.rl.{setting}"], "the advantage is reward minus value; set")
            for setting in (
                "use_advantages=false",
                "divide_advantage_by_std=true",
                "filter_zero_advantage_groups=true",
            )
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    refusal: Callable[..., str], overrides: list[str], expected: str
) -> None:
    assert expected in refusal(*overrides)


def test_a_key_that_the_estimator_does_not_read_is_refused(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(situation), "ignores", ("divide_advantage_by_std",))
    said = refusal("finetune.rl.advantage_estimator=situation", "finetune.rl.divide_advantage_by_std=true")
    assert said == (
        "finetune.rl.divide_advantage_by_std=true: has no effect with advantage_estimator=situation; "
        "leave it at false"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["finetune=ppo"],
        ["finetune=actor_critic"],
        ["finetune=grpo", "finetune.rl.epsilon_low=0.2"],
        ["finetune.rl.policy_loss=cispo", "finetune.rl.epsilon_low=0.2", "finetune.rl.kl_coef=0.1"],
        ["finetune.rl.policy_loss=gspo", "finetune.rl.epsilon_low=0.2"],
        ["finetune.rl.policy_loss=sft", "finetune.attempts=1"],
        ["finetune.rl.policy_loss=domains.guessing.load_problems"],
        ["finetune.rl.advantage_estimator=situation", "finetune.rl.pad_step_rewards_for_advantage=true"],
        ["finetune.rl.advantage_estimator=domains.guessing.load_problems"],
        ["finetune.optim=lion"],
        ["finetune.optim=adafactor"],
        ["finetune.optim=adamw_8bit", "finetune.adam_beta1=0.8"],
        ["finetune.adam_beta1=0", "finetune.adam_beta2=0.95", "finetune.adam_epsilon=1e-6"],
        ["world.preprocessor_fraction=1", "finetune.rl.kl_coef=0.1"],
        ["test_llm.parameters.top_p=0.5", "test_llm.parameters.temperature=0", "max_lag=0"],
        [f"test_llm.parameters.{kind}_penalty=1.2" for kind in ("repetition", "presence", "frequency")],
        ["test_llm.parameters.stop=[END]"],
        ["max_lag=0", "actor.llm_max_rollouts=1"],  # one slot, which holds less than max_prefill_tokens
    ],
)
def test_a_sound_configuration_passes(
    validated: Callable[..., object], monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    monkeypatch.setattr(training, "find_spec", lambda name: name)  # every extra is installed
    validated(*overrides)


def test_an_optimizer_of_a_missing_package_is_refused(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    said = refusal("finetune.optim=adamw_8bit")
    assert "finetune.optim=adamw_8bit: the package torchao is not installed; install the extra" in said
    assert "or set finetune.optim=adamw_torch" in said


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("finetune.load_as_bf16=false", "set finetune.load_as_bf16=true"),
        ("finetune.use_flash_attention=false", "set finetune.use_flash_attention=true"),
    ],
)
def test_compiled_layers_need_the_attention_of_a_whole_row(
    composed: Callable[..., Composition], override: str, expected: str
) -> None:
    cfg = typed(composed("hardware=gpu", "finetune.compile=true", override).tree)
    (problem,) = (line for line in training.check(cfg, None) if line.startswith("finetune.compile"))
    assert expected in problem
    with_kernel = typed(composed("hardware=gpu", "finetune.compile=true").tree)
    assert not [line for line in training.check(with_kernel, None) if line.startswith("finetune.compile")]
