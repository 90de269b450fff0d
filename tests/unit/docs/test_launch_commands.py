"""Every launch and bootstrap command of every page, and every preset, is what the launcher accepts.

A command that names no `hardware` must do on both kinds. Nothing is started and no card is needed.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from pipelinerl.extras.bootstrap.__main__ import main as bootstrap
from pipelinerl.launch import main as launch
from pipelinerl.new_domain import write_domain
from tests.support.one_line import check_one_line
from tests.support.sandbox_needed import need_a_sandbox
from tests.unit.docs.test_pages_for_others import commands as commands_of

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "domains/privacy_hopqa/examples"
PAGES = sorted(
    page
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "domains/**/README.md", "*/README.md")
    for page in ROOT.glob(pattern)
)
COMMAND = re.compile(r"python -m pipelinerl\.(launch|bootstrap)((?:\\\n|[^`\n])*)")
KINDS = ("cpu", "gpu")
PRESETS = {
    "privacy_hopqa_adversary": "privacy_hopqa",
    "privacy_hopqa_from_scratch": "privacy_hopqa",
    "privacy_hopqa_pretrained": "privacy_hopqa",
    "privacy_hopqa_situational": "privacy_hopqa",
    "privacy_hopqa_situational_padded": "privacy_hopqa",
    "raro_pretrained": "raro",
    "reasoning_gym_small": "reasoning_gym",
    "reputation_hacking_pretrained": "reputation_hacking",
}
NEEDED = {"logic": "reasoning_gym"} | {name: name for name in ("reasoning_gym", "textarena", "verifiers")}
"""The package that a domain is about, an extra."""
PRETRAINED = (
    "results/smollm2",
    "results/bootstrap/privacy_hopqa_pretrained",
    "results/bootstrap/raro_pretrained",
    "results/bootstrap/reputation_hacking_pretrained",
)
OF_OTHER_TESTS = ("--config-dir",)
"""The README's own domain is executed by `tests/pipeline/test_readme.py`."""


def commands() -> list[tuple[str, str, list[str]]]:
    """Program, kind of hardware and overrides of each command that a page shows; of equal ones the first."""
    found = {}
    for page in dict.fromkeys(PAGES):
        for program, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
            words = shlex.split(rest.replace("\\\n", " "), comments=True)
            if not words or any(word in words for word in OF_OTHER_TESTS):
                continue
            told = [word.partition("=")[2] for word in words if word.startswith("hardware=")]
            found |= {(program, kind, *sorted(words)): (program, kind, words) for kind in told or KINDS}
    return [*found.values()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder with the files that the commands name; nothing in it is a whole model."""
    for model in ("MODEL", "DIR", "results/small_model", "results/bootstrap/privacy_hopqa", *PRETRAINED):
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").write_text(json.dumps({"max_position_embeddings": 16384}))
        (tmp_path / model / "tokenizer.json").write_text("{}")
        (tmp_path / model / "recipe.json").write_text("{}")  # else bootstrap would not overwrite it
    (tmp_path / "domains").symlink_to(ROOT / "domains")
    (tmp_path / "tasks").symlink_to(EXAMPLES / "tasks")
    (tmp_path / "web.jsonl").symlink_to(EXAMPLES / "web.jsonl")
    (tmp_path / "data").mkdir()
    for split, chains in (("train", "train"), ("val", "val"), ("test", "val")):
        # A row holds what each domain asks of one: a file of the reader's own may be for any of them.
        rows = (EXAMPLES / f"chains_{chains}.jsonl").read_text(encoding="utf-8").splitlines()
        own = {"question": f"{split}?", "expert_answer": "7", "answer": "#### 7"}
        text = "\n".join(json.dumps(json.loads(row) | own) for row in rows)
        for name in (split, f"chains_{split}", f"data/gsm8k_{split}"):
            (tmp_path / f"{name}.jsonl").write_text(text)
    row = {"question": "1+1?", "answer": "2", "input_output": {"inputs": ["1"], "outputs": ["2"]}}
    for name in ("taco", "apps", "livecodebench_v5", "open_reasoner_zero_57k", "aime_2024"):
        (tmp_path / f"data/{name}.jsonl").write_text(json.dumps(row))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples/verifiers"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("DRY_RUN", "1")
    return tmp_path


@pytest.mark.parametrize(("program", "kind", "words"), commands())
def test_a_command_of_a_page_is_accepted(
    program: str, kind: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if any(".parquet" in word for word in words):
        table = pytest.importorskip("pyarrow").table({"question": ["1+1?"], "final_answer": ["2"]})
        for split in ("train", "test"):
            pytest.importorskip("pyarrow.parquet").write_table(table, folder / f"{split}.parquet")
    for domain, package in NEEDED.items():
        if f"+domain={domain}" in words:
            pytest.importorskip(package)
    main = launch if program == "launch" else bootstrap
    if main is launch and {"+domain=coding", "+domain=tir"} & {*words}:
        need_a_sandbox()
    options = [f"hardware={kind}", *(word for word in words if not word.startswith("hardware="))]
    if "world.share_device=true" in words:  # a command for the only card of its machine
        options.append("hardware.devices=1")
    shows = "--cfg" in words or "validate=true" in words
    status = main([*options, *([] if shows else ["validate=true"])])
    assert status == 0, capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_a_domain_of_one_s_own_are_accepted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/adding_a_domain.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = re.findall(rf"^python -m pipelinerl\.launch (.* hardware={kind} .*)$", page, re.MULTILINE)
    write_domain("higher_lower", tmp_path / "own")
    words = dict(word.partition("=")[::2] for word in shlex.split(command) if "=" in word)
    shutil.copytree(ROOT / "domains/guessing/checkpoint", tmp_path / "own" / words["model_path"])
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("DRY_RUN", "1")
    assert launch(shlex.split(command)) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", dict.fromkeys(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_was_wrapped_into_the_comment_of_another(page: Path) -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for line in [line for kind, block in fences if kind in ("", "sh", "bash") for line in block.splitlines()]:
        assert "python -m" not in line.partition(" # ")[2], line
        assert not re.match(r"(pipelinerl|domains|benchmarks|retrieval_server)\.", line), line


def test_keys_that_a_page_adds_to_its_command_are_accepted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *more = [words[3:] for words in commands_of("from_pr146") if "--config-name" in words]
    situational, penalty = (words[len(first) :] for words in more)
    for added in (situational, [*situational, *penalty]):
        assert launch([*first, *added, "validate=true"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_accepted_on_both_kinds_of_hardware(
    preset: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if PRESETS[preset] in NEEDED:
        pytest.importorskip(NEEDED[PRESETS[preset]])
    words = [f"+domain={PRESETS[preset]}", f"+preset={preset}", f"hardware={kind}", "model_path=MODEL"]
    assert launch([*words, "validate=true"]) == 0, capsys.readouterr().err


def test_every_preset_is_tried() -> None:
    there = {path.stem for path in (ROOT / "conf/preset").glob("*.yaml")}
    assert there == {*PRESETS, "vllm_cpu"}


@pytest.mark.parametrize("domain", ["privacy_hopqa", "raro", "reputation_hacking"])
def test_a_launch_on_gpus_without_a_model_says_what_to_add(
    domain: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch([f"+domain={domain}", "hardware=gpu", "validate=true"]) == 2
    said = capsys.readouterr().err
    check_one_line(said, "launcher: model_path: missing on hardware=gpu", domain)
    assert "a folder or a hub name (OWNER/MODEL)" in said and "hardware=cpu" in said
    makes_one = re.search(r"python -m pipelinerl\.bootstrap (.+), then launch with this preset", said)
    assert (makes_one is not None) is (domain == "privacy_hopqa")
    if makes_one is not None:
        assert bootstrap([*makes_one[1].split(), "hardware=gpu", "validate=true"]) == 0


@pytest.mark.parametrize("empty", ["model_path=null", "model_path=''"])
def test_what_a_launch_on_a_cpu_says_without_a_model_helps(
    empty: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(["+domain=guessing", "hardware=cpu", empty, "validate=true"]) == 2
    check_one_line(capsys.readouterr().err, "bundled small model: leave model_path out", empty)
    assert launch(["+domain=guessing", "hardware=cpu", "validate=true"]) == 0, "as the line says"
    capsys.readouterr()
    own = ["dataset_loader=domains.guessing.stepwise.load_problems", "hardware=cpu", empty]
    policy = "actor.rollout_policy=domains.guessing.stepwise.generate_guessing_rollout"
    assert launch([*own, policy, "validate=true"]) == 2
    said = capsys.readouterr().err
    assert ": missing on hardware=cpu; set model_path to a folder" in said, said
    assert "bundled" not in said, "there is none without a domain"


def test_a_recipe_on_gpus_is_that_of_the_cpu_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap(["+domain=raro", "hardware=gpu", "validate=true"]) == 2
    assert "the recipes of bundled models belong to hardware=cpu" in capsys.readouterr().err


def test_a_preset_for_cpus_says_so_on_gpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+domain=guessing", "+preset=vllm_cpu", "model_path=MODEL", "validate=true"]
    python = ["vllm_config.python=/opt/vllm/bin/python", "vllm_config.version=0.26.0"]
    assert launch([*words, *python, "hardware=cpu"]) == 0, capsys.readouterr().err
    assert launch([*words, *python, "hardware=gpu"]) == 2
    assert capsys.readouterr().err == (
        "launcher: +preset=vllm_cpu: made for hardware=cpu, this is hardware=gpu; "
        "set hardware=cpu or leave +preset=vllm_cpu out\n"
    )


def test_the_plan_of_eight_gpus_is_the_page_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`python -m pipelinerl\.launch (.*Qwen/Qwen3-8B output_dir=results/math)`", page)
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    }
    more = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False}
    kind = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960}
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "domains/guessing/checkpoint" / name, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({**kind, **sizes, **more}))
    monkeypatch.setenv("DRY_RUN", "1")
    given = {"model_path": str(tmp_path), "output_dir": str(tmp_path / "run")}
    words = [word for word in command.split() if word.partition("=")[0] not in given]
    words += [f"{key}={value}" for key, value in given.items()]
    assert launch([*words, "hardware.devices=8xH100-80GB", "vllm_config.version=0.33.0"]) == 0
    cells = [line.split("\u2502") for line in capsys.readouterr().out.splitlines()]
    chosen = " ".join(row[2].strip() for row in cells if len(row) == 6)  # the second column, line by line
    table = page.partition("a dry run shows these choices:")[2].partition("No run on eight")[0]
    rows = [row.split(" | ")[-1].removesuffix(" |") for row in table.strip().splitlines()[2:]]
    assert len(rows) == 3
    assert not [said for said in rows if said not in chosen]
