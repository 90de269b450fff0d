"""Files of lines after a kill or a power cut: half a line is dropped and counted, damage is named."""

import json
import logging
from pathlib import Path

import pytest

from pipelinerl.base.line_file import DamagedLine, LineFile, LineTail, read_lines

ROWS = [{"number": n, "text": "ä" * n} for n in range(4)]
WHOLE = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS)


def test_a_file_cut_at_any_byte_has_its_whole_lines_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lines.jsonl"
    for end in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:end])
        whole, incomplete = WHOLE.count(b"\n", 0, end), int(end > 0 and WHOLE[end - 1 : end] != b"\n")
        tail = LineTail(path)
        caplog.clear()
        assert list(tail.records(json.loads)) == read_lines(path, json.loads) == ROWS[:whole]
        assert tail.dropped == incomplete
        said = [f"{path}: 1 incomplete lines left out (a writer was killed)"] * incomplete
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == said
        with LineFile(path) as file:
            file.append(b'{"later":1}')
            file.append(b'{"later":2}')
        assert list(tail.records(json.loads)) == [{"later": 1}, {"later": 2}] and tail.dropped == incomplete
        assert read_lines(path, json.loads) == [*ROWS[:whole], {"later": 1}, {"later": 2}]


def test_zeros_that_a_power_cut_leaves_are_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE + bytes(3000))
    assert read_lines(path, json.loads) == ROWS
    with LineFile(path) as file:
        file.append(b'{"later":1}')
    assert read_lines(path, json.loads) == [*ROWS, {"later": 1}]


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"number":1}{', b"[" * 50_000, b"\x00\x00"])
def test_damage_in_the_middle_is_refused_with_file_and_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE + damage + b"\n" + WHOLE)
    with pytest.raises(DamagedLine, match=r"lines\.jsonl:5: .*delete the line to go on without it") as error:
        read_lines(path, json.loads)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 400
    tail, said = LineTail(path), list[str]()
    assert list(tail.records(json.loads, said.append)) == ROWS * 2
    assert said == [str(error.value)]
