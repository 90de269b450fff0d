"""Files that other hosts write to a shared folder, and files that others shall read."""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from pipelinerl.base.files import is_there, let_others_read


def test_a_look_for_a_missing_file_touches_its_folder_so_that_no_cache_answers(tmp_path: Path) -> None:
    os.utime(tmp_path, (1.0, 1.0))
    assert not is_there(tmp_path / "none")
    assert tmp_path.stat().st_mtime > 1.0
    (tmp_path / "one").touch()
    os.utime(tmp_path, (1.0, 1.0))
    assert is_there(tmp_path / "one") and tmp_path.stat().st_mtime == 1.0
    assert not is_there(tmp_path / "no" / "folder")


def test_weights_can_be_read_by_whoever_the_umask_lets_read(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    files = [tmp_path / "model.safetensors", tmp_path / "adapter" / "adapter_model.safetensors"]
    before = os.umask(0o027)
    try:
        for file in files:
            save_file({"a": torch.zeros(1)}, file)
            file.chmod(0o600)  # what newer versions of the library leave
        let_others_read(tmp_path)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}
    assert len([*tmp_path.iterdir()]) == 2


def test_no_text_is_read_as_the_locale_has_it() -> None:
    """A start under `LC_ALL=C PYTHONUTF8=0` ended in a traceback at the first letter that is not ASCII."""
    root = Path(__file__).parents[3]
    read = [
        path for name in ("pipelinerl", "domains", "retrieval_server") for path in (root / name).rglob("*.py")
    ]
    assert len(read) > 500
    assert [path for path in read if ".read_text()" in path.read_text(encoding="utf-8")] == []
