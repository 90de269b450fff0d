"""Files that other hosts write to a shared folder."""

import os
from pathlib import Path

from pipelinerl.base.files import is_there


def test_a_look_for_a_missing_file_touches_its_folder_so_that_no_cache_answers(tmp_path: Path) -> None:
    os.utime(tmp_path, (1.0, 1.0))
    assert not is_there(tmp_path / "none")
    assert tmp_path.stat().st_mtime > 1.0
    (tmp_path / "one").touch()
    os.utime(tmp_path, (1.0, 1.0))
    assert is_there(tmp_path / "one") and tmp_path.stat().st_mtime == 1.0
    assert not is_there(tmp_path / "no" / "folder")
