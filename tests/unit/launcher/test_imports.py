"""No role imports what it must not: each is imported in a process of its own."""

from __future__ import annotations

import pytest

from tests.unit.launcher.conftest import ROOT, python

TRAINER = [
    f"pipelinerl.finetune.{path.stem}"
    for path in (ROOT / "pipelinerl" / "finetune").glob("*.py")
    if path.stem != "__init__"
]
"""Everything of the trainer; `finetune/rl` lies below all roles."""
UPSTREAM = (
    "pipelinerl.rollouts pipelinerl.llm pipelinerl.async_llm pipelinerl.streams pipelinerl.state "
    "pipelinerl.world pipelinerl.domain_sampling pipelinerl.utils pipelinerl.finetune.data "
    "pipelinerl.finetune.types pipelinerl.finetune.rl pipelinerl.domains.dispatcher"
)
"""Where code written for upstream finds its names; none needs torch where no tensor is meant."""
ROLES = [
    ("pipelinerl.launch", ["torch", "vllm", "transformers", "ray"]),
    ("pipelinerl.launcher.validate", ["torch", "vllm", "transformers"]),
    ("pipelinerl.launcher.supervision", ["torch", "vllm", "transformers"]),
    ("pipelinerl.streams", ["torch", "transformers"]),
    ("pipelinerl.run_state.announcements", ["torch", "transformers"]),
    ("pipelinerl.run_state.accounting", ["torch", "transformers"]),
    ("pipelinerl.observe.metrics", ["torch", "transformers"]),
    ("pipelinerl.inference.vllm", ["torch", "vllm"]),
    ("pipelinerl.inference.client", ["torch", "vllm"]),
    ("pipelinerl.inference.embedded.__main__", ["pipelinerl.finetune", "domains", "vllm"]),
    ("pipelinerl.actor.__main__", ["torch", "vllm", "domains", *TRAINER]),
    ("pipelinerl.actor.worker", ["torch", "vllm", "domains", *TRAINER]),
    (UPSTREAM, ["torch", "vllm", "pandas"]),
    ("pipelinerl.rollouts", ["torch", "vllm", "domains"]),
    ("pipelinerl.async_llm", ["torch", "vllm", "domains"]),
    ("pipelinerl.preprocess.__main__", ["torch", "vllm", "domains", *TRAINER]),
    ("pipelinerl.finetune.__main__", ["domains", "vllm"]),
    ("domains.guessing", ["torch", "vllm"]),
    ("domains.reputation_hacking.domain", ["torch", "vllm", "stable_baselines3"]),
    ("domains.reputation_hacking.llm", ["torch", "vllm", "stable_baselines3"]),
    ("domains.privacy_hopqa.domain", ["torch", "vllm"]),
    ("domains.privacy_hopqa.rollouts", ["torch", "vllm"]),
    ("domains.privacy_hopqa.scorer.__main__", ["torch", "vllm", "transformers"]),
    ("domains.privacy_hopqa.leakage.__main__", ["torch", "vllm", "transformers"]),
    ("retrieval_server", ["pipelinerl", "domains", "torch", "vllm"]),
    ("retrieval_server.__main__", ["pipelinerl", "domains", "torch", "vllm"]),
]
CHECK = """
import importlib, sys
for name in sys.argv[1].split():
    importlib.import_module(name)
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


@pytest.mark.parametrize(("modules", "forbidden"), ROLES, ids=[modules for modules, _ in ROLES])
def test_a_role_does_not_import_what_it_must_not(modules: str, forbidden: list[str]) -> None:
    answer = python("-c", CHECK, modules, *forbidden)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == []
