"""Configuration files of earlier versions and of upstream: what is taken, and what is said about the rest.

`compose` asks about the files, `keys.apply` about the command line. A remedy that is named here is a key that
the same composition takes.
"""

import importlib.util
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipelinerl.base.errors import ConfigError, first_line
from pipelinerl.config.base import Section
from pipelinerl.config.environments import OF_SERVERS, located_specs
from pipelinerl.config.files import with_secrets
from pipelinerl.config.finetune import FinetuneConfig, LoraConfig, MemoryDebugConfig, RLConfig
from pipelinerl.config.machine import WorldConfig
from pipelinerl.config.roles import DifficultyPenaltyConfig
from pipelinerl.config.serving import VllmConfig
from pipelinerl.domain import resolve_dotted

# Without `_self_` in its list of defaults a file lies over them, in every hydra that is supported here.
warnings.filterwarnings("ignore", r"In '.*': Defaults list is missing `_self_`", UserWarning)

WRITTEN_BY_LAUNCHERS = ("jobs", "derived", "me", "attempt", "hydra")
"""What a launcher puts into the tree of a run; a new run gets its own."""


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A key that has no counterpart of the same name here."""

    why: str = "no longer exists and nothing replaces it"
    """What became of it."""
    instead: str = ""
    """What to set instead, as an override; `{value}` is the key's value, `VALUE` one of another meaning."""
    usual: Any = None
    """The value that says what happens here anyway. Null is one for every key."""
    matters: bool = False
    """Any other value would change results: a file that has one is refused. Otherwise it is left out."""
    other: tuple[Any, str] | None = None
    """A value with another meaning than the rest, and what to set instead of it."""
    off_here: str = ""
    """What a run does if false is left out: the default of upstream's files, but not of this project."""

    def remedy(self, value: object, below: str = "") -> str:
        """What to do, for one value of the key or of the one `below` it, such as `.enable_thinking`."""
        instead = "" if self.is_usual(value) else self._override(value, below)
        return f"{self.why}; {f'use {instead}' if instead else 'remove it'}"

    def _override(self, value: object, below: str = "") -> str:
        if self.other is not None and value == self.other[0]:
            return self.other[1]
        key, _, means = self.instead.partition("=")
        instead = f"+{key}{below}={means}" if below and means == "{value}" else self.instead
        return instead.format(value=_written(value))

    def instead_of_it(self, value: object) -> str:
        """The key that is set instead, empty without one."""
        return self._override(value).partition("=")[0].removeprefix("+")

    def is_usual(self, value: object) -> bool:
        """Whether the value says what happens here anyway."""
        return value is None or value == self.usual

    def is_said_already(self, tree: DictConfig, value: object) -> bool:
        """Whether the tree says the same without the key: its usual value, or what is set instead of it."""
        if self.is_usual(value):
            return True
        wanted = self._override(value).partition("=")[2]
        if not wanted:
            return False
        set_instead = OmegaConf.select(
            tree, self.instead_of_it(value), default="", throw_on_resolution_failure=False
        )
        return _written(set_instead) == wanted


_GONE, _NO_EFFECT = "no longer exists", Gone()
_COPY = "stands at the top level"
_BASE_TYPE = "is not available; the base stays in finetune.load_as_bf16's type"
_FP32_HEAD = Gone(
    why=_GONE,
    instead="fp32_layer_prefix=lm_head",
    matters=True,
    other=(False, "fp32_layer_prefix=null"),
    off_here="the output layer computes in float32 here",
)
_OF_GAE = Gone(why="is read beside use_policy_gae alone, which is not available")
_LENGTH = "is called max_tokens here"
_TEMPLATE = "stands beside parameters, so that trained prompts are rendered with it too"
REMOVED: dict[str, Gone] = {
    "actor.log_each_n_secs": _NO_EFFECT,
    "actor.task_prompt": Gone(
        why="no longer exists; write it into actor.task_template", usual="", matters=True
    ),
    "actor.ensure_boxed_answers": Gone(
        why="no longer exists; say it in actor.system_prompt", usual=False, matters=True
    ),
    "actor.shared_memory_entry_size": _NO_EFFECT,
    "actor.max_stream_size": Gone(why="no longer exists; unread records are never dropped"),
    "preprocess.pop_old_data": Gone(why=_COPY, instead="pop_old_data={value}"),
    "preprocess.shared_memory_entry_size": _NO_EFFECT,
    "preprocess.max_stream_size": Gone(why="no longer exists; unread records are never dropped"),
    "preprocess.queue_size": _NO_EFFECT,
    "preprocess.submit_delay": _NO_EFFECT,
    "preprocess.buffer_size": Gone(
        why="is called preprocess.dataset_buffer_size here and equals preprocess.ring_buffer_size",
        usual=0,
        matters=True,
    ),
    "llm.use_cache": Gone(why="no longer exists; every rollout is sampled", usual=False),
    "test_llm.use_cache": Gone(why="no longer exists; every rollout is sampled", usual=False),
    "llm.parameters.max_completion_tokens": Gone(
        why=_LENGTH, instead="llm.parameters.max_tokens={value}", matters=True
    ),
    "test_llm.parameters.max_completion_tokens": Gone(
        why=_LENGTH, instead="test_llm.parameters.max_tokens={value}", matters=True
    ),
    "llm.parameters.chat_template_kwargs": Gone(
        why=_TEMPLATE, instead="llm.chat_template_kwargs={value}", matters=True
    ),
    "test_llm.parameters.chat_template_kwargs": Gone(
        why=_TEMPLATE, instead="test_llm.chat_template_kwargs={value}", matters=True
    ),
    "curriculum.enabled": Gone(
        why="there is no curriculum of categories",
        instead="actor.sampling=difficulty",
        usual=False,
        matters=True,
    ),
    "finetune.data": _NO_EFFECT,
    "finetune.attn_implementation": Gone(why=_GONE, instead="finetune.use_flash_attention=VALUE"),
    "finetune.resume_dataloader": _NO_EFFECT,
    "finetune.valid_batch_size": _NO_EFFECT,
    "finetune.max_eval_steps": _NO_EFFECT,
    "finetune.sft_config_name": _NO_EFFECT,
    "finetune.n_examples": _NO_EFFECT,
    "finetune.objective": Gone(why=_GONE, instead="finetune.rl.policy_loss=sft", usual="rl", matters=True),
    "finetune.queue_size": _NO_EFFECT,
    "finetune.output_dir": Gone(why="no longer exists; the trainer writes below output_dir"),
    "finetune.pop_old_data": Gone(why=_COPY, instead="pop_old_data={value}"),
    "finetune.eval_callback": Gone(why=_GONE, instead="eval_every_n_versions=VALUE"),
    "finetune.auto_device_map": _NO_EFFECT,
    "finetune.rl.advantage": Gone(
        why="is called finetune.rl.advantage_estimator here; null compares the rewards of whole rollouts, as "
        "grpo_loo does without step rewards",
        matters=True,
    ),
    "finetune.rl.rollout_level_loo": Gone(
        why="is not here; whole rollouts are compared, or samples of the same step",
        instead="finetune.rl.step_reward_advantages=true",
        usual=True,
        matters=True,
    ),
    "finetune.rl.reward_minus_kl_coef": Gone(
        why="no longer exists; finetune.rl.kl_coef weighs the penalty that is here", usual=0, matters=True
    ),
    "finetune.rl.use_policy_gae": Gone(
        why="is not available; an advantage is the return less the value, GAE with lambda=1",
        usual=False,
        matters=True,
    ),
    "finetune.rl.policy_gae_lambda": _OF_GAE,
    "finetune.rl.adaptive_policy_gae": _OF_GAE,
    "finetune.rl.adaptive_policy_gae_coef": _OF_GAE,
    "finetune.rl.positive_example_sft_coef": Gone(
        why="is not available; no loss adds a term of supervised learning", usual=0, matters=True
    ),
    "wandb.wandb_name": Gone(why="is not read; runs are named by their folders below wandb_workspace_root"),
    "wandb.wandb_use_basename": _NO_EFFECT,
    "vllm_config.use_v1": Gone(
        why="no longer exists; the stock server of vllm_config.version is used", usual=False
    ),
    "finetune.seed": Gone(why=_COPY, instead="seed={value}", matters=True),
    "finetune.force_restart": Gone(why=_COPY, instead="force_restart={value}", matters=True),
    "finetune.fp32_layer_prefix": Gone(why=_COPY, instead="fp32_layer_prefix={value}", matters=True),
    "finetune.max_lag": Gone(why=_COPY, instead="max_lag={value}", matters=True),
    "finetune.lora.base_model_8bit": Gone(why=_BASE_TYPE, usual=False, matters=True),
    "finetune.lora.base_model_4bit": Gone(why=_BASE_TYPE, usual=False, matters=True),
    "finetune.lora.bias": Gone(why="is not available; biases stay as they are", usual="none", matters=True),
    "finetune.lora.task_type": Gone(why="no longer exists; policies are causal language models"),
    "finetune.rl.algo": Gone(
        why=_GONE,
        instead="finetune.rl.policy_loss={value}",
        other=("grpo", "finetune.rl.policy_loss=ppo"),
        matters=True,
    ),
    "finetune.rl.epsilon": Gone(
        why="no longer exists; ppo and gspo also have finetune.rl.epsilon_low",
        instead="finetune.rl.epsilon_high={value}",
        matters=True,
    ),
    "finetune.rl.aggregate_loss": Gone(
        why="no longer exists; losses are sums weighted by 1/batch size", usual="sum", matters=True
    ),
    "finetune.fp32_lm_head": _FP32_HEAD,
    "fp32_lm_head": _FP32_HEAD,
    "vllm_config.vllm_kwargs.num-scheduler-steps": Gone(why="is no flag of vLLM 0.26 or newer"),
    "vllm_config.vllm_kwargs.disable-log-requests": Gone(why="is no flag of vLLM 0.26 or newer"),
    "use_fast_llm": Gone(why="Fast-LLM is not here; finetune.* says how this trainer trains", usual=False),
    "fast_llm": Gone(why="only Fast-LLM reads it"),
    "fast_llm_finetune": Gone(why="only Fast-LLM reads it"),
    "debug.log_data_pipeline": Gone(why="only Fast-LLM reads it", usual=False),
    "world.run_id": Gone(why="only a launcher on each host reads it; here one starts everything"),
    "weight_broadcast": Gone(
        why=_GONE, instead="finetune.send_weight_updates={value}", usual=True, matters=True
    ),
    "vllm_config.quantization": Gone(
        why=_GONE,
        instead="+vllm_config.vllm_kwargs.quantization={value}",
        other=("bf16_last_layer_fp32", "fp32_layer_prefix=lm_head"),
        matters=True,
    ),
}
"""Keys of upstream and of earlier versions, with what to do instead."""

SWITCHED: dict[str, type[Section]] = {
    "finetune.lora": LoraConfig,
    "finetune.memory_debug": MemoryDebugConfig,
    "actor.difficulty_aware_penalty": DifficultyPenaltyConfig,
}
"""Sections with a switch `enabled`: while it is off, a file may have keys in them that do not exist here."""


OF_FAST_LLM = {
    "optimizer.learning_rate.base": "learning_rate",
    "optimizer.learning_rate.warmup_iterations": "num_warmup_steps",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.beta_1": "adam_beta1",
    "optimizer.beta_2": "adam_beta2",
    "optimizer.epsilon": "adam_epsilon",
    "optimizer.gradient_norm_clipping": "gradient_clipping_threshold",
    "training.train_iters": "max_train_steps",
    "training.checkpoint.interval": "save_checkpoint_steps",
}
"""What keys of `fast_llm` are called in `finetune`; both divide losses by a step's samples."""
_LOSSES_OF_FAST_LLM = {"grpo": "ppo", "gspo": "gspo"}

OF_DOMAINS = (
    "actor.domain_rollouts",
    "dataset_loader_params.per_domain_params",
    "dataset_loader_params.domain_loaders",
)
"""Sections with an entry for each domain, of which a file may name more than its datasets are of."""
EVALUATIONS = {"livecodebench": "coding", "google_ifeval": "ifeval"}
"""Names before `::` under which upstream loads evaluations, and the domain that plays them."""


def _written(value: object) -> str:
    """A value as an override writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_written(part)}" for name, part in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def remedy_for(key: str, value: object) -> str | None:
    """What to do about a removed key or a key below it; None for any other."""
    gone = ((old, entry) for old, entry in REMOVED.items() if key == old or key.startswith(old + "."))
    return next((entry.remedy(value, key[len(old) :]) for old, entry in gone), None)


def whole_tree(path: Path) -> DictConfig | None:
    """A file that is a whole resolved tree, such as the `exp_config.yaml` of a run; None for any other.

    Files that are composed of others begin with a list of defaults.
    """
    try:
        content = OmegaConf.load(path)
    except YAMLError as error:
        raise ConfigError(not_yaml(error)) from None
    if not isinstance(content, DictConfig) or "defaults" in content:
        return None
    content = with_secrets(content, path)
    for key in WRITTEN_BY_LAUNCHERS:
        content.pop(key, None)
    return content


def not_yaml(error: YAMLError) -> str:
    """Where a file is no YAML, and why; PyYAML says it in five lines."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = "a configuration file" if mark is None else f"{mark.name}, line {mark.line + 1}"
    return f"{where}: no YAML ({problem or first_line(error)}); mend the line"


def settle(tree: DictConfig, given: Collection[str] = ()) -> list[str]:
    """Take keys that do not exist here out of a tree made of files; one line for each that said something.

    `given` are the keys of the command line. Raises ConfigError for values that would change results and that
    no key of the command line stands in for: they cannot be left out in silence.
    """
    notices, problems = [*_of_features_that_are_off(tree, given), *_of_fast_llm(tree, given)], []
    for key, gone in REMOVED.items():
        parent, _, name = key.rpartition(".")
        node = _value(tree, parent) if parent else tree
        if not isinstance(node, DictConfig) or name not in list(node):
            continue
        value = _taken_out(node, name)
        if gone.is_said_already(tree, value):
            continue
        if parent and REMOVED.get(name) is gone and OmegaConf.select(tree, name) == value:
            continue  # the line about the key at the top level says it
        instead = gone.instead_of_it(value)
        if value is False and gone.off_here and instead not in given:
            notices.append(f"{key}={value}: left out, {gone.off_here}; {gone.remedy(value)}")
        elif not gone.matters:
            shown = "{...}" if isinstance(value, DictConfig) else value
            notices.append(f"{key}={shown}: left out, no run depends on it; {gone.remedy(value)}")
        elif instead in given:
            notices.append(f"{key}={value}: left out, {instead} was given")
        else:
            problems.append(f"{key}={value}: {gone.remedy(value)}")
    if problems:
        raise ConfigError(problems)
    return notices


def _of_fast_llm(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    """Take out how Fast-LLM trained, of files of its runs; a line says it in keys of `finetune`."""
    if _value(tree, "use_fast_llm") is not True:
        return
    _taken_out(tree, "use_fast_llm")
    yield f"use_fast_llm=true: left out, {REMOVED['use_fast_llm'].why}"
    if not isinstance(_value(tree, "fast_llm"), DictConfig):
        return
    wanted = {name: _value(tree, f"fast_llm.{key}") for key, name in OF_FAST_LLM.items()}
    documents, rows = (
        _value(tree, key) for key in ("fast_llm.schedule.docs_per_step", "finetune.train_batch_size")
    )
    if isinstance(documents, int) and isinstance(rows, int) and rows > 0 and documents % rows == 0:
        wanted["gradient_accumulation_passes"] = documents // rows
    decay = _value(tree, "fast_llm.optimizer.learning_rate.decay_style")
    if decay in ("constant", "cosine", "linear"):
        warms_up = decay == "constant" and wanted["num_warmup_steps"]
        wanted["lr_scheduler_type"] = "constant_with_warmup" if warms_up else decay
    losses = "fast_llm.model.base_model.head.losses"
    for name in _value(tree, losses) or ():
        kind = _value(tree, f"{losses}.{name}.type") or name
        if kind in _LOSSES_OF_FAST_LLM:
            wanted["rl.policy_loss"] = _LOSSES_OF_FAST_LLM[kind]
            for bound in ("epsilon_low", "epsilon_high"):
                wanted[f"rl.{bound}"] = _value(tree, f"{losses}.{name}.{bound}")
    different = " ".join(
        f"finetune.{name}={value}"
        for name, value in wanted.items()
        if value is not None and f"finetune.{name}" not in given and value != _value(tree, f"finetune.{name}")
    )
    _taken_out(tree, "fast_llm")
    remedy = f"; use {different} for its values" if different else ""
    yield f"fast_llm: left out, {REMOVED['fast_llm'].why}{remedy}"


def as_upstream_reads(tree: DictConfig, given: Mapping[str, Any]) -> list[str]:
    """Write into a whole tree of upstream's what its programs make of values that mean another thing here.

    Its trainer lets the entropy bonus fall to 0 if no final one is given. Its launcher passes a flag of vLLM
    without a value if that is null, starts the redis server whatever host a file names, and makes the folder
    of a run its group in wandb. Its actor does not evaluate if the interval is null, takes rollouts of
    domains as a list too, leaves out an environment that is null, and knows one by its name. What stays
    different has its line, unless a key of the command line (`given`) decides it. A tree of this project has
    `domain_keys` and stays as it is, without lines.
    """
    if "domain_keys" in tree:
        return []
    if "eval_every_n_versions" in tree and _value(tree, "eval_every_n_versions") is None:
        tree.eval_every_n_versions = 0
    _map_rollouts(tree)
    _settle_environments(tree)
    rl = _value(tree, "finetune.rl")
    if isinstance(rl, DictConfig) and "entropy_bonus" in rl and "final_entropy_bonus" not in rl:
        OmegaConf.update(rl, "final_entropy_bonus", 0.0, force_add=True)
    flags = _value(tree, "vllm_config.vllm_kwargs")
    if isinstance(flags, DictConfig):
        chosen_here = {name for name, value in VllmConfig().vllm_kwargs.items() if value is None}
        null = [name for name, value in flags.items_ex(resolve=False) if value is None]
        for name in null:
            if str(name).replace("_", "-") not in chosen_here:
                flags[name] = ""
    notices = [*_own_server(tree, given), *_own_group(tree, given), *_other_texts(tree)]
    if _value(tree, "use_fast_llm") is True:  # whose settings have a line of their own
        return notices
    objective = [*_left_to_the_trainer(tree, given), *_other_reference(tree, given)]
    return [*_other_updates(tree, given), *_other_coefficients(tree, given), *objective, *notices]


def _value(tree: DictConfig, key: str) -> Any:
    """What a key or section holds; None where it is not there, or is `${...}` and leads nowhere."""
    return OmegaConf.select(tree, key, throw_on_resolution_failure=False)


def _map_rollouts(tree: DictConfig) -> None:
    """Write `actor.domain_rollouts` as a mapping: upstream's may be a list of mappings or `domain:path`."""
    entries = _value(tree, "actor.domain_rollouts")
    if not isinstance(entries, ListConfig):
        return
    rollouts: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, DictConfig):
            domain, colon, path = str(entry).partition(":")
            if not colon:
                raise ConfigError(f"actor.domain_rollouts: {entry} names no domain; write DOMAIN: {entry}")
            rollouts[domain.strip()] = path.strip()
        elif "domain" in entry and "rollout" in entry:
            rollouts[str(entry.domain)] = str(entry.rollout)
        else:
            rollouts |= {str(domain): str(path) for domain, path in entry.items()}
    tree.actor.domain_rollouts = rollouts


def _settle_environments(tree: DictConfig) -> None:
    """Leave out environments that are null, and give one of a list that has only a name that name as key."""
    found = _value(tree, "environments")
    if isinstance(found, DictConfig):
        for name in [name for name, spec in found.items_ex(resolve=False) if spec is None]:
            _taken_out(found, str(name))
    elif isinstance(found, ListConfig):
        for index in reversed(range(len(found))):
            spec = found[index]
            if spec is None:
                del found[index]
            elif isinstance(spec, DictConfig) and spec.get("key") is None and spec.get("name") is not None:
                OmegaConf.update(spec, "key", str(spec.name), force_add=True)


def _own_server(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    """The host of redis, over which upstream's launcher writes that of the server that it starts."""
    host = _value(tree, "streams.host")
    if _value(tree, "streams.backend") == "redis" and host is not None and "streams.host" not in given:
        tree.streams.host = None
        yield (
            f"streams.host={host}: left out, the launcher starts redis-server, as upstream's does; "
            "give it on the command line for a server that is already running"
        )


def _own_group(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    """The group in wandb, over which upstream's launcher writes the run's folder below its root."""
    group = _value(tree, "wandb.wandb_group")
    if group is None or not _value(tree, "wandb.wandb_workspace_root") or "wandb.wandb_group" in given:
        return
    tree.wandb.wandb_group = None
    if _value(tree, "wandb.use_wandb") is not False:
        yield (
            f"wandb.wandb_group={group}: left out, upstream's launcher puts the run's folder in its place, "
            "which is the run's name here; give it on the command line to group runs"
        )


def _other_coefficients(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    """Weights of KL and entropy that move over the steps, in a run that stops before its schedule ends."""
    stop, steps = _value(tree, "finetune.interrupt_train_steps"), _value(tree, "finetune.max_train_steps")
    interrupted = isinstance(stop, int) and stop >= 0 and stop != steps
    if not interrupted and "finetune.interrupt_train_steps" not in given:
        return
    for name in ("kl_coef", "entropy_bonus"):
        start, end = (_value(tree, f"finetune.rl.{key}") for key in (name, f"final_{name}"))
        if None not in (start, end) and start != end:
            yield (
                f"finetune.rl.{name}={start}: moves to {end} over max_train_steps here, and upstream over "
                "interrupt_train_steps; use finetune.max_train_steps=STEPS, which shortens the schedule of "
                "the learning rate too"
            )


_OF_RL = {
    "policy_loss": "ppo",
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "divide_advantage_by_std": True,
    "kl_coef": 0.1,
    "final_kl_coef": 0.1,
    "clamp_log_ratio_ref_new_value": 10.0,
}
"""What upstream's trainer takes for a key of `finetune.rl` that no file has, where this one takes another."""


def _left_to_the_trainer(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    """Keys of the objective that a whole tree leaves to the trainer."""
    rl = _value(tree, "finetune.rl")
    if not isinstance(rl, DictConfig) or _value(tree, "finetune.max_train_steps") is None:
        return
    samples_at = _value(tree, "llm.parameters.temperature")
    if "temperature" not in rl and samples_at not in (None, 1):
        yield (
            "finetune.rl.temperature: not in the file; the trainer computes log-probabilities at "
            f"llm.parameters.temperature={samples_at}, and upstream's at 1"
        )
    left = {f"finetune.rl.{name}": value for name, value in _OF_RL.items() if name not in rl}
    wanted = " ".join(f"{key}={_written(value)}" for key, value in left.items() if key not in given)
    if wanted:
        names = ", ".join(key for key in left if key not in given)
        yield (
            f"{names}: not in the file, so that this project's defaults hold; use {wanted} for those of "
            "upstream's trainer"
        )


def _other_reference(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    """The KL term of a file, whose reference was another model in earlier versions of upstream."""
    for name in ("kl_coef", "final_kl_coef"):
        key, value = f"finetune.rl.{name}", _value(tree, f"finetune.rl.{name}")
        if isinstance(value, int | float) and value > 0 and key not in given:
            yield (
                f"{key}={value}: weighs the distance from model_path, as upstream does since its pull "
                "request 131; before, its reference engines got no sample, and the distance was that from "
                "the policy that sampled"
            )
            return


_OF_CHATS = {
    "chat-template": "other prompts have the tokenizer's own, chat_template.jinja in the model's folder",
    "default-chat-template-kwargs": "llm.chat_template_kwargs is for all prompts",
    "reasoning-parser": "other answers have their thoughts in output.content",
}
"""vLLM's flags for requests with messages, which upstream sends always, and what holds without."""


def _other_texts(tree: DictConfig) -> Iterator[str]:
    """Templates and parsers of chats, and stop texts, which upstream's answers hold."""
    for name, value in (_value(tree, "vllm_config.vllm_kwargs") or {}).items():
        if value is not None and (rest := _OF_CHATS.get(str(name).replace("_", "-"))):
            yield (
                f"vllm_config.vllm_kwargs.{name}={value}: is for prompts with tools or a response format "
                f"alone; {rest}"
            )
    for section in ("llm", "test_llm"):
        key = f"{section}.parameters.stop"
        if stop := _value(tree, key):
            shown = OmegaConf.to_container(stop) if isinstance(stop, ListConfig) else stop
            yield (
                f"{key}={shown}: an answer's output.content ends before the stop text here, and upstream "
                'behind it; a policy finds the text in llm_info["stop_reason"]'
            )


def _other_updates(tree: DictConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """Keys of the optimizer that mean another thing under upstream's trainer; their values are kept."""
    plain = FinetuneConfig()
    optim = given.get("finetune.optim") or _value(tree, "finetune.optim") or plain.optim
    if optim == "adafactor" and "finetune.optim" not in given:
        yield (
            "finetune.optim=adafactor: moves a weight by learning_rate times its matrix's root mean square, "
            "and upstream's by learning_rate; raise finetune.learning_rate, or use finetune.optim=adamw_torch"
        )
    # DeepSpeed's engine divides each loss by the accumulation steps and averages over ranks, although the
    # loss is divided by the step's samples already. Adam's update differs by what is compared with a size.
    passes, slices = (
        given.get(key, _value(tree, key))
        for key in ("finetune.gradient_accumulation_passes", "finetune.seq_parallel")
    )
    if _value(tree, "use_deepspeed") is not True or not isinstance(passes, int):
        return
    divisor = passes * (slices if isinstance(slices, int) else 1)
    clip, epsilon = "finetune.gradient_clipping_threshold", "finetune.adam_epsilon"
    limits = {clip: _value(tree, clip)}
    if optim == "adamw_torch":
        limits[epsilon] = _value(tree, epsilon) or plain.adam_epsilon
    limits = {key: size for key, size in limits.items() if isinstance(size, int | float) and key not in given}
    if divisor > 1 and limits:
        said, same = ([f"{key}={size * factor:g}" for key, size in limits.items()] for factor in (1, divisor))
        yield (
            f"{', '.join(said)}: compared with the step's gradient here, and upstream with a gradient that "
            f"DeepSpeed has divided by gradient_accumulation_passes ({divisor}) once more; "
            f"use {' '.join(same)} for upstream's updates"
        )


def of_hydras_launcher(section: DictConfig) -> Iterator[str]:
    """Settings of hydra's own launcher in files, as far as upstream's processes depend on them.

    Raises ConfigError for a file that asks for several runs.
    """
    if section.get("mode") == RunMode.MULTIRUN:
        raise ConfigError("hydra.mode=MULTIRUN: sweeps are not supported; start one run per value")
    job = section.job
    if job.env_set:
        names = ", ".join(map(str, job.env_set))
        yield (f"hydra.job.env_set: left out, no process gets {names}; write NAME=VALUE before the command")
    if job.chdir:
        yield "hydra.job.chdir=true: left out, relative paths begin in the folder of the command"
    if section.get("callbacks"):
        yield f"hydra.callbacks: left out, none is called ({', '.join(map(str, section.callbacks))})"


def as_policies_read(tree: DictConfig) -> DictConfig:
    """Write upstream's keys that say nothing new into the tree that rollout code gets, which may read them.

    Those are copies of other keys, and keys with one value that is taken here.
    """
    for key, gone in REMOVED.items():
        section, _, name = key.rpartition(".")
        node = OmegaConf.select(tree, section) if section else tree
        value = OmegaConf.select(tree, gone.instead_of_it("")) if gone.why is _COPY else gone.usual
        if key == "finetune.output_dir":
            value = str(Path(str(tree.output_dir)) / "finetune")
        if isinstance(node, DictConfig) and name not in node and (value is not None or gone.why is _COPY):
            OmegaConf.update(node, name, value, force_add=True)
    return tree


def domains_of(entries: Iterable[str]) -> set[str]:
    """What stands before `::` in names of datasets, and the domains that play it."""
    named = {entry.partition("::")[0] for entry in entries if "::" in entry}
    return named | {EVALUATIONS[name] for name in named & EVALUATIONS.keys()}


def _is_there(path: Any) -> bool:
    """Whether the package of a dotted path exists, if its name is this project's; others are taken to."""
    if not isinstance(path, str) or not path.startswith("pipelinerl."):
        return path is not None
    try:
        return importlib.util.find_spec(".".join(path.split(".")[:3])) is not None
    except ModuleNotFoundError:
        return False


def leave_out_unread(tree: DictConfig, given: Collection[str]) -> list[str]:
    """Take out what upstream's files set for every loss and every domain, and this run does not read.

    One line each. What the command line gives stays, and is refused.
    """
    notices = []
    loss = str(OmegaConf.select(tree, "finetune.rl.policy_loss"))
    declared, plain = resolve_dotted("pipelinerl.finetune.rl.losses.declared", "legacy"), RLConfig()
    for name in declared(loss).ignores:
        key, usual = f"finetune.rl.{name}", getattr(plain, name)
        value = OmegaConf.select(tree, key)
        if key in given or value in (None, usual):
            continue
        OmegaConf.update(tree, key, usual)
        if value != getattr(plain, name.removeprefix("final_")):  # null repeats the first coefficient
            notices.append(f"{key}={_written(value)}: left out, policy_loss={loss} does not read it")
    entries = [*(tree.train_dataset_names or ()), *(tree.test_dataset_names or ())]
    used = domains_of(map(str, entries))
    own_loader = any(str(name) in used for name in _value(tree, "dataset_loader_params.domain_loaders") or ())
    for section in OF_DOMAINS if used else ():
        of_domain = _value(tree, section)
        for name in [str(name) for name in of_domain or () if str(name) not in used]:
            if own_loader and section == OF_DOMAINS[0] and _is_there(_value(tree, f"{section}.{name}")):
                continue  # problems of a loader that the file names may be of any domain
            if not any(key == section or f"{key}.".startswith(f"{section}.{name}.") for key in given):
                _taken_out(of_domain, name)
                notices.append(f"{section}.{name}: left out, no dataset is of that domain")
    if not any(located_specs(tree)):
        world = WorldConfig()
        for name in OF_SERVERS:
            key, usual = f"world.{name}", getattr(world, name)
            value = OmegaConf.select(tree, key)
            if key not in given and value != usual:
                OmegaConf.update(tree, key, usual)
                notices.append(f"{key}={_written(value)}: left out, there is no environment")
    return notices


def _of_features_that_are_off(tree: DictConfig, given: Collection[str]) -> Iterator[str]:
    for section, model in SWITCHED.items():
        node = _value(tree, section)
        switch = f"{section}.enabled"
        if not isinstance(node, DictConfig) or switch in given:
            continue
        if _value(tree, switch):
            continue
        known = model.keys()
        for name in [str(name) for name in node if name not in known]:
            gone, value = REMOVED.get(f"{section}.{name}", _NO_EFFECT), _taken_out(node, name)
            if not gone.is_said_already(tree, value):
                yield f"{section}.{name}={value}: left out, {switch} is false"


def _taken_out(node: DictConfig, name: str) -> Any:
    """The value of a key, which is gone afterwards; None where it is missing or repeats what is missing."""
    try:
        value = node[name]
    except OmegaConfBaseException:
        value = None
    with open_dict(node):
        del node[name]
    return value
