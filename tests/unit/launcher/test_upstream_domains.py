"""Files with the imports and signatures of upstream's domains, from a folder of the user's, without a change.

Each either plays, or the launcher says in one line which package it needs. The files are written here.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipelinerl.config.compose import compose
from pipelinerl.domain import resolve_dotted
from pipelinerl.launcher.checks.dotted import POLICY
from pipelinerl.launcher.checks.imports import problem
from pipelinerl.rollouts import RolloutResult
from tests.support.fake_engine import FakeEngine, rolled_out, said
from tests.support.tiny_model import save_model
from tests.unit.launcher.conftest import ROOT, Validate

COMMON = """
import logging
import random
import re
import time
import aiohttp
from omegaconf import DictConfig
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import get_environment_jobs, resolve_environment_key
"""
COUNTING = (
    COMMON
    + """
import json, os

async def generate_counting_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict, session: aiohttp.ClientSession
) -> RolloutResult:
    messages = [{"role": "user", "content": f"letters of {problem['word']}?"}]
    call = await llm_async_generate(llm, Prompt(messages=messages), session)
    found = re.search("(\\\\d+)", call.output.content)
    reward = int(bool(found) and int(found.group(1)) == problem["count"])
    text = make_training_text(llm, call)
    text.reward = reward
    metrics = BaseMetrics(reward=reward, success=reward, no_error=True, no_answer=not found)
    return RolloutResult(training_texts=[text], metrics=metrics, latency=0.0, dataset_name=problem["dataset"],
        domain="counting")

def load_problems(dataset_names: list[str]):
    folder = os.path.dirname(os.path.realpath(__file__))
    problems = []
    for name in dataset_names:
        with open(os.path.join(folder, f"{name}.json")) as file:
            problems += [{**row, "dataset": name} for row in json.load(file)]
    return problems
"""
)
REWARDED = (
    COMMON
    + """
from pipelinerl.domains.math.rollouts import RewardTable, length_penalty
from pipelinerl.domains.calling.verifier_api import verify_fn_calling_answer_rpc

class FnCallingMetrics(BaseMetrics):
    penalty: float
    partial_score: float = 1.0

async def generate_fn_calling_rollout(cfg, llm, problem, session) -> RolloutResult:
    asked = cfg.actor.task_template.format(task=problem["task"])
    prompt = Prompt(messages=[{"role": "user", "content": asked}], tools=None)
    call = await llm_async_generate(llm, prompt, session)
    jobs = get_environment_jobs(cfg, resolve_environment_key(cfg, default="fn_calling"))
    status = await verify_fn_calling_answer_rpc(session=session, jobs=jobs, generation=call.output.content)
    rewards = RewardTable(**dict(cfg.rewards))
    rewards.log_config("fn_calling")
    text = make_training_text(llm, call)
    text.reward = rewards.correct_answer_finished if status == "correct" else rewards.wrong_answer_finished
    text.reward *= cfg.actor.discount_factor ** call.output_length_tokens
    text.metadata.setdefault("fn_calling", {}).update({"answer_status": status})
    penalty = length_penalty(llm.parameters["max_tokens"], call.output_length_tokens, 4)
    right = status == "correct"
    metrics = FnCallingMetrics(
        reward=text.reward, success=right, no_error=True, no_answer=False, penalty=penalty
    )
    return RolloutResult(training_texts=[text], metrics=metrics, latency=0.0, dataset_name="bfcl",
        domain="fn_calling")
"""
)
JUDGE = """
async def verify_fn_calling_answer_rpc(*, session, jobs, generation):
    return "correct" if generation == "f" else "wrong"
"""
TIR = (
    COMMON
    + """
from pipelinerl.async_llm import make_training_text_with_tools
from pipelinerl.domains.math import RewardTable, get_reward, length_penalty, verify_answer_rpc

TOOLS = [{"type": "function", "function": {"name": "run_python_code", "parameters": {"type": "object"}}}]

async def generate_tir_rollout(cfg, llm, problem, session) -> RolloutResult:
    prompt = Prompt(messages=[{"role": "user", "content": "1+1"}], tools=TOOLS)
    call = await llm_async_generate(llm, prompt, session)
    table = RewardTable(**dict(cfg.rewards))
    text = make_training_text_with_tools(llm, call)
    text.reward = get_reward("correct" if call.output.tool_calls else "wrong", True, table)
    text.finished = True
    metrics = BaseMetrics(reward=text.reward, success=True, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics, latency=0.0, domain="tir")
"""
)
CHARTQA = (
    COMMON
    + """
from PIL import Image

async def generate_chartqa_rollout(cfg, llm, problem, session) -> RolloutResult:
    image = {"type": "image_url", "image_url": {"url": "data:image;base64,AAAA"}}
    content = [image, {"type": "text", "text": problem["question"]}]
    call = await llm_async_generate(llm, Prompt(messages=[{"role": "user", "content": content}]), session)
    raise AssertionError(call)
"""
)
PROBLEM = {"task": "call f", "question": "which bar?", "word": "aa", "count": 2, "dataset": "train"}
Plays = Callable[[str], Any]


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the Python path with a package for each domain, like upstream's `pipelinerl/domains`.

    Their names are not those of bundled domains, to which the dotted paths would lead.
    """
    folder = tmp_path / "theirs"
    files = {
        "tally/counting.py": COUNTING,
        "tally/train.json": json.dumps([{"word": "aa", "count": 2}]),
        "calling/__init__.py": "from .rollouts import generate_fn_calling_rollout\n",
        "calling/rollouts.py": REWARDED,
        "calling/verifier_api.py": JUDGE,
        "tooled/rollouts.py": TIR,
        "chartqa/chartqa.py": CHARTQA,
    }
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    yield folder
    tops = {name.partition("/")[0] for name in files}
    for name in list(sys.modules):
        if name.removeprefix("pipelinerl.domains.").partition(".")[0] in tops:
            del sys.modules[name]


@pytest.fixture
def plays(theirs: Path, tmp_path: Path) -> Plays:
    """The rollout of a policy that is named as upstream's configurations name it."""

    async def play(path: str, answer: str = "2") -> RolloutResult:
        cfg = compose(["+domain=math", "hardware=cpu"]).tree
        policy = resolve_dotted(f"pipelinerl.domains.{path}", "actor.rollout_policy")
        with FakeEngine(said(answer), max_model_len=4096) as engine:
            fields = {"parameters": {"max_tokens": 16}, "context_size": 4096}
            model = save_model(tmp_path / "model")
            return await rolled_out(policy, OmegaConf.merge(cfg, {}), PROBLEM, engine, model, **fields)

    return play


async def test_counting_loads_its_own_file_and_plays(plays: Plays) -> None:
    loader = resolve_dotted("pipelinerl.domains.tally.counting.load_problems", "dataset_loader")
    assert loader(["train"]) == [{"word": "aa", "count": 2, "dataset": "train"}]
    result = await plays("tally.counting.generate_counting_rollout")
    assert result.training_texts[0].reward == 1.0 and result.domain == "counting"


async def test_modules_of_a_package_find_each_other_under_upstreams_names(plays: Plays) -> None:
    result = await plays("calling.generate_fn_calling_rollout", "f")
    assert result.training_texts[0].metadata["fn_calling"] == {"answer_status": "correct"}
    assert sys.modules["pipelinerl.domains.calling.verifier_api"] is sys.modules["calling.verifier_api"]


async def test_tool_calls_are_read_by_the_engine_and_learnt(plays: Plays) -> None:
    result = await plays("tooled.rollouts.generate_tir_rollout")
    assert result.training_texts[0].reward == 1.0 and len(result.training_texts[0].logprobs)


async def test_images_are_refused_in_one_line(plays: Plays) -> None:
    with pytest.raises(
        ValueError, match="a message holds a picture; models that also see are run on text alone"
    ):
        await plays("chartqa.chartqa.generate_chartqa_rollout")


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("domain", "first_lines", "missing"),
    [
        ("logic", "from i3_logic.task2verifier import verifier_classes", "i3_logic"),
        ("coding", "from datasets_of_a_hub import Dataset, load_dataset", "datasets_of_a_hub"),
        ("ifeval", "from fastapi_server import FastAPI", "fastapi_server"),
        ("tir", "from sandbox_fusion import RunCodeRequest, run_code_async", "sandbox_fusion"),
        ("miniwob", "from tapeagents.core import Observation, LLMCall", "tapeagents"),
        ("deep_research", "from tapeagents.llms.trainable import TrainableLLM", "tapeagents"),
    ],
)
def test_a_package_that_is_missing_is_named(
    domain: str,
    first_lines: str,
    missing: str,
    theirs: Path,
    validate: Validate,
    dry_run: Callable[..., tuple[int, str, str]],
    model: Path,
) -> None:
    package = theirs / f"{domain}_theirs"
    package.mkdir()
    functions = (
        "def load_problems(dataset_names): return []\nasync def play(cfg, llm, problem, session): ...\n"
    )
    (package / "__init__.py").write_text("from .rollouts import load_problems, play\n")
    (package / "rollouts.py").write_text(f"{first_lines}\n{functions}")
    name = f"pipelinerl.domains.{domain}_theirs"
    given = ["hardware=cpu", f"dataset_loader={name}.load_problems", f"actor.rollout_policy={name}.play"]
    status, err = validate(*given, f"model_path={model}")
    assert status == 2 and missing in err and all(line.startswith("launcher: ") for line in err.splitlines())
    assert ("in pipelinerl.llm" in err) == (missing == "tapeagents")
    # Where the path goes through the package, a plain start has to import it, and says the same.
    status, _, err = dry_run(*[word.replace("theirs.", "theirs.rollouts.") for word in given])
    assert status == 2 and f"needs {missing}, which is not installed" in err, err


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("from tapeagents.core import Prompt", "tapeagents"),
        ("import json, sandbox_fusion.models as models", "sandbox_fusion"),
        ("from pipelinerl.domains.math.rollouts import RewardTable", None),
        (
            "from pipelinerl.domains.math.verifier_api import MathEnvironment, verify_math",
            None,
        ),
        ("try:\n        import sandbox_fusion\n    except ImportError:\n        sandbox_fusion = None", None),
    ],
)
def test_a_package_that_only_a_call_imports_is_named_by_a_validation(
    body: str, missing: str | None, theirs: Path
) -> None:
    package = theirs / "lazy_theirs"
    package.mkdir()
    (package / "__init__.py").write_text("from .rollouts import play\n")
    (package / "rollouts.py").write_text(f"async def play(cfg, llm, problem, session):\n    {body}\n")
    said = problem("actor.rollout_policy", "pipelinerl.domains.lazy_theirs.play", POLICY, [])
    for name in [name for name in sys.modules if "lazy_theirs" in name]:
        del sys.modules[name]
    assert (said is None) if missing is None else f"no module named {missing}; " in str(said)
