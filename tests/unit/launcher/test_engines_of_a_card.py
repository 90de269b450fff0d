"""Several engines on one card: where they are, what each gets, and how they run beside each other."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.base.waits import Wait
from pipelinerl.launcher import mps
from tests.unit.launcher.conftest import ON_GPUS, QWEN_1_7B, Placed, Refused

TWO = "engine.per_card=2"
CARDS = "hardware.devices=4xH100-80GB"
CACHE = "vllm_config.vllm_kwargs.kv-cache-memory-bytes"


@pytest.fixture(autouse=True)
def sized(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(QWEN_1_7B | {"max_position_embeddings": 16384}))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program that writes down what it is asked, and runs until it is asked to quit."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program, said = folder / mps.CONTROL, tmp_path / "said"
    lines = [
        "#!/bin/sh",
        f'[ "$1" = -f ] && echo "serves ${{CUDA_VISIBLE_DEVICES-all}} $CUDA_MPS_PIPE_DIRECTORY" >> {said}',
        f'if [ "$1" = -f ]; then while [ ! -e {said}.quit ]; do sleep 0.05; done; exit 0; fi',
        f"read word; echo $word >> {said}; touch {said}.quit",
    ]
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield said


def kwargs(command: str, flag: str) -> float:
    words = command.split()
    return float(words[words.index(flag) + 1])


def test_each_card_of_engines_has_two_with_half_of_it(placed: Placed, tmp_path: Path) -> None:
    placed(*ON_GPUS, CARDS)
    one = (tmp_path / "run/actor_vllm_0/start.sh").read_text()
    share = ("world.actor_fraction=2", "world.finetune_fraction=2")
    cfg, _ = placed(*ON_GPUS, CARDS, TWO, *share)
    engines = cfg.jobs_of("actor_llm")
    assert [job.gpus for job in engines] == [[0], [0], [1], [1]] and len({job.port for job in engines}) == 4
    assert [job.gpus for job in cfg.jobs_of("finetune")] == [[2, 3]]
    command = (tmp_path / "run/actor_vllm_1/start.sh").read_text()
    assert 0.3 < kwargs(command, "--gpu-memory-utilization") <= 0.5
    cache, whole = kwargs(command, "--kv-cache-memory-bytes"), kwargs(one, "--gpu-memory-utilization")
    assert cache < 0.5 * whole * 80e9, "two caches, two copies of the weights and of what a step needs"
    assert "kv-cache-memory-bytes" not in one
    assert cfg.weights.transport == "file"
    assert cfg.derived.engine_reads is not None and cfg.derived.engine_reads.sharing == 2


def test_bytes_of_both_stay_within_the_card(placed: Placed) -> None:
    cfg, _ = placed(*ON_GPUS, CARDS, TWO)
    share = float(cfg.vllm_config.vllm_kwargs["gpu-memory-utilization"])
    uncounted = 2.75 / 80
    assert 2 * (share + uncounted) <= 1.0
    engines, ranks = len(cfg.jobs_of("actor_llm")), len(cfg.jobs_of("finetune")[0].gpus)
    assert engines % 2 == 0 and engines // 2 + ranks == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((CARDS, "weights.transport=nccl"), "NCCL does not connect processes on one GPU; set file"),
        (
            (CARDS, "vllm_config.vllm_kwargs.tensor-parallel-size=2"),
            "engine.per_card=2: an engine of 2 GPUs (tensor x pipeline x data) shares none",
        ),
        (
            ("hardware.devices=1xH100-80GB", "world.share_device=true"),
            "engine.per_card=2: engine and trainer share the only GPU; set 1",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(
    refused: Refused, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(*ON_GPUS, TWO, *arguments)


def test_without_the_service_they_take_turns_and_the_table_says_so(
    placed: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps.shutil, "which", lambda name: None)
    _, out = placed(*ON_GPUS, CARDS, TWO)
    assert "engines of a card │ 2, in turns: no" in out
    assert not (tmp_path / "run/mps").exists()
    assert mps.PIPES not in (tmp_path / "run/actor_vllm_0/start.sh").read_text()


def test_engines_alone_use_the_service_of_their_run(placed: Placed, tmp_path: Path, service: Path) -> None:
    _, out = placed(*ON_GPUS, CARDS, TWO)
    assert "engines of a card │ 2, beside each other through" in out
    pipes = mps.environment(tmp_path / "run")[mps.PIPES]
    for name, uses in (("mps", True), ("actor_vllm_0", True), ("actor_vllm_1", True), ("finetune", False)):
        assert (f"export {mps.PIPES}={pipes}" in (tmp_path / f"run/{name}/start.sh").read_text()) is uses


def test_one_engine_on_a_card_needs_no_service(placed: Placed, tmp_path: Path, service: Path) -> None:
    _, out = placed(*ON_GPUS, CARDS)
    assert "engines of a card" not in out and not (tmp_path / "run/mps").exists()


def test_the_service_is_asked_to_quit_when_the_run_ends(tmp_path: Path, service: Path) -> None:
    env = {**os.environ, **mps.environment(tmp_path / "run"), "CUDA_VISIBLE_DEVICES": "1"}
    with subprocess.Popen([sys.executable, "-m", mps.__name__], env=env) as child:
        with Wait("the service to start", 60.0) as wait:
            while not (service.exists() and service.read_text()) and not wait.expired:
                child.poll()
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    pipes = env[mps.PIPES]
    assert service.read_text().splitlines() == [f"serves all {pipes}", "quit"]
    assert not Path(pipes).exists()


def test_a_folder_of_sockets_that_another_made_is_refused_in_one_line(
    tmp_path: Path, service: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who owns it could serve the cards in the name of this run, and read what the engines compute."""
    shared, theirs = tmp_path / "tmp", tmp_path / "theirs"
    shared.mkdir()
    theirs.mkdir(mode=0o755)
    shared.chmod(0o1777)
    pipes = shared / "pipelinerl-mps"
    pipes.symlink_to(theirs)
    monkeypatch.setenv(mps.PIPES, str(pipes))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert mps.serve() == mps.REFUSED
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr().err
    assert said.startswith("mps: ") and said.count("\n") == 1
    assert "not a folder of this user" in said and "shorter output_dir" in said
    assert theirs.stat().st_mode & 0o777 == 0o755 and not service.exists()


def test_sockets_of_a_long_path_lie_elsewhere(tmp_path: Path) -> None:
    short, long = Path("/r"), tmp_path.joinpath("x" * 100)
    assert mps.environment(short)[mps.PIPES] == "/r/mps/pipe"
    found = [mps.environment(folder)[mps.PIPES] for folder in (long, long, long / "other")]
    assert found[0] == found[1] != found[2] and len(found[0]) <= mps.LONGEST_FOLDER
