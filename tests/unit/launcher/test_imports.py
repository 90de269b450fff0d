"""No role imports what it must not: each is imported in a process of its own.

Those that may import torch are imported afresh in a fork of the tests' process, which has it.
"""

import json

import pytest

from tests.support.forked import AFRESH
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
    ("pipelinerl.launcher.environment_server", ["torch", "vllm", "transformers", "domains"]),
    ("pipelinerl.streams", ["torch", "transformers"]),
    ("pipelinerl.run_state.announcements", ["torch", "transformers"]),
    ("pipelinerl.run_state.accounting", ["torch", "transformers"]),
    ("pipelinerl.observe.metrics", ["torch", "transformers"]),
    ("pipelinerl.engines.vllm.options", ["torch", "vllm"]),
    ("pipelinerl.engines.cpu.kind pipelinerl.engines.vllm.kind", ["torch", "transformers", "vllm"]),
    ("pipelinerl.weights.transports.file pipelinerl.weights.transports.nccl", ["torch", "vllm"]),
    ("pipelinerl.engines.fleet", ["torch", "transformers", "vllm"]),
    ("pipelinerl.engines.wire", ["torch", "transformers", "vllm"]),
    ("pipelinerl.actor.__main__", ["torch", "vllm", "domains", "transformers", *TRAINER]),
    ("pipelinerl.actor.worker", ["torch", "vllm", "domains", *TRAINER]),
    (UPSTREAM, ["torch", "vllm", "pandas"]),
    ("pipelinerl.rollouts", ["torch", "vllm", "domains", "transformers"]),
    ("pipelinerl.async_llm", ["torch", "vllm", "domains", "transformers"]),
    ("pipelinerl.preprocess.__main__", ["torch", "vllm", "domains", *TRAINER]),
    ("domains.guessing domains.raro.domain domains.tir.domain", ["torch", "vllm", "transformers"]),
    ("domains.reputation_hacking.domain", ["torch", "vllm", "transformers", "stable_baselines3"]),
    ("domains.reputation_hacking.llm", ["torch", "vllm", "stable_baselines3"]),
    ("domains.privacy_hopqa.domain", ["torch", "vllm", "transformers"]),
    ("domains.privacy_hopqa.rollouts", ["torch", "vllm"]),
    ("domains.privacy_hopqa.scorer.__main__", ["torch", "vllm", "transformers"]),
    ("domains.privacy_hopqa.leakage.__main__", ["torch", "vllm", "transformers"]),
    ("retrieval_server", ["pipelinerl", "domains", "torch", "vllm"]),
    ("retrieval_server.__main__", ["pipelinerl", "domains", "torch", "vllm", "bm25s"]),
]
WITH_TORCH = [
    ("pipelinerl.engines.cpu.__main__", ["pipelinerl.finetune", "domains", "vllm"]),
    ("pipelinerl.finetune.__main__", ["domains", "vllm"]),
]
SHARED = (
    "numpy aiohttp",
    "jinja2 tokenizers hydra.utils pipelinerl.config.compose pipelinerl.streams",
    "transformers",
)
"""What a process imports before it forks for each role: nothing that one of its roles must avoid.

What these import themselves is found in every role.
"""
CHECK = """
import gc, importlib, json, multiprocessing, sys

gc.disable()

def import_all(names):
    for name in names.split():
        importlib.import_module(name)

def found(role):
    modules, forbidden = role
    import_all(modules)
    return modules, [name for name in forbidden if name in sys.modules]

said = []
for names, roles in json.loads(sys.argv[1]):
    import_all(names)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # a fork for each role
        said += pool.map(found, roles, chunksize=1)
print(json.dumps(said))
"""


def layers_of(forbidden: list[str]) -> int:
    """How many layers of `SHARED` a role may import that must not import these."""
    if "pipelinerl" in forbidden:
        return 1
    return 2 if "transformers" in forbidden else 3


@pytest.mark.timeout(3000)
def test_no_role_imports_what_it_must_not() -> None:
    layers = [
        (names, [role for role in ROLES if layers_of(role[1]) == layer])
        for layer, names in enumerate(SHARED, start=1)
    ]
    deadline_s = 100.0 * len(ROLES)  # what each alone would have
    answer = python("-c", CHECK, json.dumps(layers), timeout_s=deadline_s)
    assert answer.returncode == 0, answer.stderr
    assert dict(json.loads(answer.stdout)) == {modules: [] for modules, _ in ROLES}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("role", "forbidden"), WITH_TORCH)
def test_no_role_with_torch_imports_what_it_must_not(role: str, forbidden: list[str]) -> None:
    code = f"{AFRESH}import importlib\nimportlib.import_module({role!r})\n"
    answer = python("-c", f"{code}print(*(name for name in {forbidden} if name in sys.modules))")
    assert (answer.returncode, answer.stdout.split()) == (0, []), answer.stderr
