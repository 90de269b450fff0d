"""Worlds on disk: equal bytes for equal configurations, whole or not at all, growing without moving."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from domains.privacy_hopqa.world import World, WorldError, build, generate, world_config
from retrieval_server.store import Store


def contents(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(p.relative_to(directory)): sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(world_config("tiny", seed=1), tmp_path_factory.mktemp("worlds") / "tiny")


def test_equal_seeds_give_equal_bytes_in_any_process(tiny: Path, tmp_path: Path) -> None:
    """Another hash seed than this process, which drew its own, and another locale."""
    command = [sys.executable, "-m", "domains.privacy_hopqa.world", "--size", "tiny", "--seed", "1"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "LC_ALL": "C", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "w")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "w") == contents(tiny)
    assert (
        json.loads(done.stdout)["fingerprint"]
        == json.loads((tiny / "manifest.json").read_text())["fingerprint"]
    )


def test_other_seeds_give_other_worlds(tiny: Path, tmp_path: Path) -> None:
    other = generate(world_config("tiny", seed=2), tmp_path / "w")
    same = {name for name, checksum in contents(other).items() if contents(tiny).get(name) == checksum}
    assert not same


def test_the_manifest_lists_every_file_with_its_checksum(tiny: Path) -> None:
    manifest = json.loads((tiny / "manifest.json").read_text())
    found = contents(tiny)
    del found["manifest.json"]
    assert manifest["files"] == found
    assert manifest["statistics"]["splits"]["train"]["chains"] == 24
    assert manifest["temptation"][0]["chains"] == 24
    raw = (tiny / "chains_train.jsonl").read_bytes()
    assert b"\r" not in raw and raw.endswith(b"\n")
    assert all(list(row) == sorted(row) for row in map(json.loads, raw.decode().splitlines()))


def test_the_retrieval_server_serves_the_tree(tiny: Path) -> None:
    store = Store.load(tiny / "tasks", tiny / "web.jsonl")
    assert store.web_docs == 200 and sorted(store.task_ids) == ["DR90000", "DR90001", "DR95000"]
    hits = store.search_local("DR90000", "report notes review notice letter", 50)
    assert len(hits) > 10 and not any("ambiguous_aliases" in hit["metadata"] for hit in hits)


def test_an_existing_world_is_reused_and_anything_else_refused(tiny: Path, tmp_path: Path) -> None:
    before = (tiny / "manifest.json").stat().st_mtime_ns
    assert generate(world_config("tiny", seed=1), tiny) == tiny
    assert (tiny / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(WorldError, match="holds another world"):
        generate(world_config("tiny", seed=5), tiny)
    (tmp_path / "stray").write_text("x")
    with pytest.raises(WorldError, match="holds no world"):
        generate(world_config("tiny", seed=1), tmp_path)


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    world = generate(world_config("tiny", seed=1), tmp_path / "w")
    (world / "web.jsonl").write_text("{}\n")
    with pytest.raises(WorldError, match=r"web\.jsonl is missing or was changed; remove"):
        generate(world_config("tiny", seed=1), world)


def custom(**counts: int) -> World:
    base = {"private_docs": 24, "train_chains": 8, "val_chains": 4, "test_chains": 4}
    return build(world_config("custom", seed=4, **{**base, **counts}), checks=False)


def test_more_companies_leave_the_existing_ones_as_they_are() -> None:
    few = custom(companies=1, test_companies=1, web_docs=150)
    many = custom(companies=3, test_companies=2, web_docs=375)
    texts: list[dict[str, Any]] = [
        {d.doc_id: d.text for docs in world.private_docs.values() for d in docs}
        | {page.docid: page.text for pages in world.pages.values() for page in pages}
        for world in (few, many)
    ]
    assert texts[0].items() <= texts[1].items()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": "huge"}, r"world\.size='huge' is not one of tiny, quick, small, paper, custom"),
        ({"size": "tiny", "companies": 3}, r"world\.companies is fixed by size=tiny"),
        ({"size": "custom", "company": 3}, r"world\.company is unknown; allowed: seed, size, companies"),
        ({"size": "custom", "private_docs": 3}, r"world\.private_docs=3 is below 12"),
        ({"size": "custom", "web_docs": 100}, r"world\.web_docs=100 is too few; 6 companies need 300"),
        ({"size": "custom", "patterns": {"LX": 1}}, r"world\.patterns: 'LX' must be 2-4 letters"),
        ({"size": "custom", "patterns": {"LW": 0}}, r"world\.patterns\.LW=0 must be above 0"),
        ({"size": "custom", "companies": 0}, r"world\.companies=0 leaves no company"),
    ],
)
def test_bad_configurations_are_one_line_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(WorldError, match=message) as error:
        world_config(**arguments)
    assert "\n" not in str(error.value)
