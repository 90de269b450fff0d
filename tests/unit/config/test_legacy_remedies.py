"""What a refusal of a key that is gone says to do instead is taken, on the command line and in a file."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipelinerl.config import ConfigError
from pipelinerl.config.compose import Composition
from pipelinerl.config.files import as_yaml
from pipelinerl.config.legacy import REMOVED
from pipelinerl.domain import BaseDomain
from pipelinerl.launcher.validate import checked
from tests.support.one_host import one_host
from tests.unit.config.test_upstream_file import UPSTREAM

Compose = Callable[..., Composition]

VALUES = {
    "finetune.seed": 9,
    "finetune.force_restart": True,
    "finetune.fp32_layer_prefix": "lm_head",  # not that of the file below
    "finetune.max_lag": 512,
    "finetune.pop_old_data": False,
    "preprocess.pop_old_data": False,
    "finetune.fp32_lm_head": True,
    "fp32_lm_head": True,
    "vllm_config.quantization": "fp8",
    "llm.parameters.max_completion_tokens": 128,
    "test_llm.parameters.max_completion_tokens": 128,
    "llm.parameters.chat_template_kwargs": {"enable_thinking": False},
    "test_llm.parameters.chat_template_kwargs": {"enable_thinking": False},
    "finetune.rl.algo": "reinforce",
    "finetune.rl.epsilon": 3,  # not that of the file below
    "curriculum.enabled": True,
    "weight_broadcast": False,
    "finetune.objective": "nll",
    "finetune.rl.rollout_level_loo": False,
}
"""Another value than upstream's default, of the key's own type; any other key gets a word."""
MEANT = {
    "finetune.use_flash_attention": "false",
    "eval_every_n_versions": "1000",
}
"""What a user writes where a remedy says `VALUE`."""


def remedy(refusal: ConfigError) -> str | None:
    """The override that a refusal asks for; None where it says to remove the key."""
    (line,) = refusal.problems
    assert line.endswith("; remove it") or "; use " in line, line
    wanted = line.partition("; use ")[2]
    return wanted.replace("VALUE", MEANT.get(wanted.partition("=")[0], "VALUE")) or None


@pytest.mark.parametrize("key", sorted(REMOVED))
def test_the_remedy_of_a_key_is_never_refused_next(composed: Compose, tmp_path: Path, key: str) -> None:
    file, value = copy.deepcopy(UPSTREAM), VALUES.get(key, "word")
    file.test_llm.parameters.max_tokens = 64
    file.fp32_layer_prefix = None
    if key == "weight_broadcast":  # without updates every sample grows old
        file.max_lag = None

    def passes(*overrides: str) -> None:
        (tmp_path / "exp_config.yaml").write_text(as_yaml(OmegaConf.to_container(file)))
        made = composed("hardware=gpu", *overrides, config_dir=tmp_path, config_name="exp_config")
        given = [override.partition("=")[0].removeprefix("+") for override in overrides]
        checked(made.tree, BaseDomain(), one_host(2), dry_run=True, given=given)

    with pytest.raises(ConfigError) as on_the_command_line:
        passes(f"{key}={str(value).lower()}".replace("'", ""))
    if (wanted := remedy(on_the_command_line.value)) is not None:
        passes(wanted)

    OmegaConf.update(file, key, value, force_add=True)
    if ".lora." in key:
        file.finetune.lora.enabled = True
    try:
        passes()
        assert not REMOVED[key].matters
    except ConfigError as refusal:
        wanted = remedy(refusal)
    if REMOVED[key].matters and wanted is not None:
        passes(wanted)
        name, _, meant = wanted.removeprefix("+").partition("=")
        OmegaConf.update(file, name, value if "{value}" in REMOVED[key].instead else meant, force_add=True)
        passes()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("finetune.objective=rl", "finetune.objective: no longer exists; remove it"),
        ("finetune.rl.algo=grpo", "finetune.rl.algo: no longer exists; use finetune.rl.policy_loss=ppo"),
        ("curriculum.enabled=false", "curriculum.enabled: there is no curriculum of categories; remove it"),
        (
            "+llm.parameters.chat_template_kwargs.enable_thinking=false",
            "llm.parameters.chat_template_kwargs.enable_thinking: stands beside parameters, so that trained "
            "prompts are rendered with it too; use +llm.chat_template_kwargs.enable_thinking=false",
        ),
        (
            "vllm_config.quantization=bf16_last_layer_fp32",  # upstream's own, which vLLM does not know
            "vllm_config.quantization: no longer exists; use fp32_layer_prefix=lm_head",
        ),
    ],
)
def test_a_value_that_asks_for_nothing_else_has_its_own_remedy(
    composed: Compose, override: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        composed("hardware=cpu", override)
    assert refusal.value.problems == [said]
