"""A stopped run of which one file is cut or altered, started again: recovered, or ended by one line."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.conftest import DEADLINE_S, LauncherProcess, Start, optimizer_steps
from tests.support.one_line import check_one_line

# With max_lag=0 and one rollout at a time a resumed run ends bit for bit as if nothing had happened, so a
# file that was altered and trained on shows in the weights.
RUN = [
    "max_lag=0",
    "actor.llm_max_rollouts=1",
    "engine.max_prefill_tokens=256",
    "finetune.save_checkpoint_steps=1",
    "finetune.keep_intermediate_checkpoints=false",
    "weights.parity_every=0",
    "eval_every_n_versions=0",
    "eval_at_end=false",
]
RESULTS = ("current/model.safetensors", "training_state/tensors.safetensors")


def cut(content: bytes) -> bytes:
    """What a power cut leaves of a file that was being written."""
    return content[: len(content) - max(1, len(content) // 3)]


def zeroed(content: bytes) -> bytes:
    """A file whose size reached the disk before its last block did."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


def flipped(content: bytes) -> bytes:
    """One bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def begun_wrong(content: bytes) -> bytes:
    """One bit of the first byte: of a file of JSON lines no longer the beginning of an object."""
    return bytes([content[0] ^ 1]) + content[1:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    damage.__name__: damage for damage in (cut, zeroed, flipped, begun_wrong)
}


def stopped_run(launch: Start) -> LauncherProcess:
    """A run that was killed behind its second checkpoint."""
    run = launch(*RUN, "finetune.max_train_steps=1000")
    run.until(lambda: len(optimizer_steps(run.output_dir)) >= 2, "two steps")
    run.send(signal.SIGKILL)
    run.wait()
    for process in run.children():
        process.wait(DEADLINE_S)
    return run


def files_of(folder: Path) -> list[str]:
    """Files that hold anything, without logs and what the launcher locks."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    logs = (".log", ".lock", ".sh")
    return sorted(str(path.relative_to(folder)) for path in found if not path.name.endswith(logs))


def results(folder: Path) -> list[bytes]:
    return [(folder / "finetune" / name).read_bytes() for name in RESULTS]


class DamagedRuns:
    """Starts copies of one stopped run, each with its damage."""

    def __init__(self, launch: Start, tmp_path: Path) -> None:
        self._launch, self._kept = launch, tmp_path / "kept"
        self.folder = stopped_run(launch).output_dir
        self._steps = len(optimizer_steps(self.folder)) + 2
        shutil.copytree(self.folder, self._kept)
        undamaged = self._again()
        assert undamaged.wait() == 0, undamaged.err
        self._expected = results(self.folder)
        self.files = files_of(self._kept)

    def _again(self) -> LauncherProcess:
        return self._launch(*RUN, f"finetune.max_train_steps={self._steps}")

    def put_back(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._kept, self.folder)

    def start(self, damage: str, names: list[str]) -> LauncherProcess:
        """Ended; the weights of one that recovered are those of the run without damage."""
        self.put_back()
        for name in names:
            path = self.folder / name
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
        run = self._again()
        case = f"{damage}: {', '.join(names)}"
        if run.wait():
            check_one_line(run.err, "", case)
        else:
            assert results(self.folder) == self._expected, f"{case}: other weights than without the damage"
        return run


@pytest.mark.slow
def test_incomplete_lines_are_left_out_with_a_count_and_damaged_ones_refused_by_name(
    launch: Start, tmp_path: Path
) -> None:
    runs = DamagedRuns(launch, tmp_path)
    lines = [name for name in runs.files if name.endswith(".jsonl") and not name.startswith("streams")]
    assert {"accounting", "actor", "finetune"} <= {name.partition("/")[0] for name in lines}
    recovered = runs.start("cut", lines)
    assert recovered.wait() == 0, recovered.err
    assert " incomplete lines recorded" in recovered.out
    refused = runs.start("begun_wrong", ["accounting/actor.jsonl"])
    check_one_line(refused.err, "accounting/actor.jsonl:1: ")
    runs.put_back()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_file_of_a_run_folder_may_be_damaged(launch: Start, tmp_path: Path) -> None:
    runs, wrong = DamagedRuns(launch, tmp_path), []
    for name in runs.files:
        for damage in DAMAGES:
            try:
                runs.start(damage, [name])
            except AssertionError as error:
                wrong.append(str(error).partition("\n")[0])
    runs.put_back()
    assert wrong == []
