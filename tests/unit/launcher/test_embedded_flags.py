"""What an embedded engine is started with."""

from pathlib import Path

import pytest

from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.placement import place
from tests.support.one_host import one_host


@pytest.mark.parametrize(
    ("overrides", "cached"),
    [
        ([], True),
        (["max_lag=0"], True),
        (["actor.llm_max_rollouts=1"], True),
        (["max_lag=0", "actor.llm_max_rollouts=1"], False),
        (["max_lag=0", "actor.llm_max_rollouts=1", "engine.prefix_cache=true"], True),
        (["engine.prefix_cache=false"], False),
    ],
)
def test_there_is_a_prefix_cache_unless_a_resume_is_to_be_bit_for_bit(
    tmp_path: Path, overrides: list[str], cached: bool
) -> None:
    cfg = typed(compose(["+domain=guessing", "hardware=cpu", *overrides]).tree)
    cfg = cfg.model_copy(update={"jobs": place(cfg, one_host(), [], lambda host, port: True)})
    (engine,) = [one for one in commands(cfg, tmp_path, [], one_host(), None) if one.name == "actor_vllm_0"]
    assert f"--{'' if cached else 'no-'}enable-prefix-caching" in engine.argv
    assert "--return-tokens-as-token-ids" in engine.argv  # as vLLM's, by `vllm_config.vllm_kwargs`
