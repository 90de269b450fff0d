"""A server reads the fingerprint of a generated world from the manifest beside its files."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from domains.privacy_hopqa.world import generate, world_config
from domains.privacy_hopqa.world.config import manifest_of
from retrieval_server.arguments import parse_arguments
from retrieval_server.corpus import CorpusError

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two worlds."""
    folder = tmp_path_factory.mktemp("made")
    return [generate(world_config("tiny", seed), folder / f"world_{seed}") for seed in (1, 2)]


def fingerprint(tasks: Path | None, web: Path | None, *more: str) -> str | None:
    given = [f"--tasks={tasks}" if tasks else "", f"--web={web}" if web else "", *more]
    return parse_arguments([word for word in given if word]).fingerprint


def test_it_is_that_of_the_world_whose_files_are_served(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for world in made:
        told = manifest_of(str(world / "tasks"))["fingerprint"]
        assert fingerprint(world / "tasks", world / "web.jsonl") == told
        assert fingerprint(world / "tasks", None) == fingerprint(None, world / "web.jsonl") == told
        monkeypatch.chdir(world)  # as the README writes it
        assert fingerprint(Path("tasks"), Path("web.jsonl")) == told
    assert fingerprint(made[0] / "tasks", made[0] / "web.jsonl", "--fingerprint=mine") == "mine"


def test_files_of_none_or_not_all_of_one_world_have_none(made: list[Path], tmp_path: Path) -> None:
    (tmp_path / "web.jsonl").write_bytes((made[0] / "web.jsonl").read_bytes())
    assert fingerprint(None, tmp_path / "web.jsonl") is None
    assert fingerprint(made[0] / "tasks", tmp_path / "web.jsonl") is None
    (tmp_path / "manifest.json").write_text("[]")
    assert fingerprint(None, tmp_path / "web.jsonl") is None


def test_two_worlds_at_once_are_refused(made: list[Path]) -> None:
    with pytest.raises(CorpusError, match="belong to two worlds"):
        fingerprint(made[0] / "tasks", made[1] / "web.jsonl")


@pytest.mark.parametrize(
    "change",
    [
        lambda world: (world / "web.jsonl").write_text("{}"),
        lambda world: next((world / "tasks").rglob("*.md")).unlink(),
        lambda world: next((world / "tasks").rglob("*.md")).write_text("changed"),
        lambda world: next((world / "tasks").rglob("*.md")).with_name("more.md").write_text("one more"),
    ],
)
def test_a_world_that_was_changed_does_not_go_by_its_fingerprint(
    made: list[Path], tmp_path: Path, change: Change
) -> None:
    world = tmp_path / "world"
    shutil.copytree(made[0], world)
    change(world)
    wrong = r"(missing or was changed since|added after) .*manifest\.json was written"
    with pytest.raises(CorpusError, match=wrong):
        fingerprint(world / "tasks", world / "web.jsonl")
