"""The bytes of a version: a safetensors file for anybody, memory that is used again, damage that is found."""

import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from pipelinerl.engines import wire
from pipelinerl.engines.version_file import HostMemory, read_tensors
from pipelinerl.engines.wire import PermanentUpdateError
from pipelinerl.weights.transports import file as file_transport
from pipelinerl.weights.transports.base import NamedTensor, StagedUpdate
from pipelinerl.weights.transports.file import FileTransport
from tests.support.version_sums import checksum

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def odd_tensors(seed: int = 0) -> list[NamedTensor]:
    """Sizes that end nowhere even, nothing, a number, a transposed one, and one under two names."""
    drawn = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (7, 13), "nothing": (0, 5), "number": (), "b": (1,), "wide": (3, 1, 1021)}
    made = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
    made |= {
        "transposed": torch.randn(5, 9, generator=drawn).T,
        "tied": made["a.weight"],
        "odd ünd": made["b"],
    }
    made["b"][0] = float("nan")
    return list(made.items())


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    whole = tensor.contiguous().view(-1)
    return tensor.dtype, tuple(tensor.shape), whole.view(torch.uint8).numpy().tobytes() if len(whole) else b""


def read(staged: StagedUpdate, memory: HostMemory | None = None) -> dict[str, torch.Tensor]:
    info = staged.info
    return read_tensors(Path(info["path"]), info["bytes"], info["checksum"], memory or HostMemory())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_version_is_a_safetensors_file_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = odd_tensors()
    expected = {name: bits(tensor.to(dtype)) for name, tensor in tensors}
    staged = FileTransport(tmp_path, dtype).stage(1, iter(tensors))
    assert {name: bits(one) for name, one in load_file(staged.info["path"]).items()} == expected
    assert {name: bits(one) for name, one in read(staged).items()} == expected
    assert staged.layout == {name: (tuple(one.shape), str(dtype)) for name, one in tensors}


def test_a_file_of_the_library_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    tensors = {f"{dtype}": torch.arange(5).to(dtype) for dtype in (*DTYPES, torch.float64)}
    save_file(tensors, path, metadata={"format": "pt"})
    data = path.read_bytes()
    found = read_tensors(path, len(data), checksum(data), HostMemory())
    assert {name: bits(one) for name, one in found.items()} == {
        name: bits(one) for name, one in tensors.items()
    }


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, b"\xff" * 100, b"\2" + b"\0" * 7 + b"[]", b"\2" + b"\0" * 7]
)
def test_what_is_no_safetensors_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        read_tensors(path, len(content), checksum(content), HostMemory())


def test_a_checksum_is_that_of_the_checksums_of_4_mib(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(2 * 4 * 2**20 + 5)
    pieces = (data[: 4 * 2**20], data[4 * 2**20 : 8 * 2**20], data[8 * 2**20 :])
    expected = xxh3_64_hexdigest(struct.pack("<3Q", *(xxh3_64_intdigest(one) for one in pieces)))
    assert wire.write_version(tmp_path / "version", memoryview(data)) == f"xxh3:{expected}"


def test_damage_in_any_piece_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", 1000)
    staged = FileTransport(tmp_path).stage(1, odd_tensors())
    path = Path(staged.info["path"])
    whole = path.read_bytes()
    assert len(whole) > 10 * wire.PIECE and staged.info["checksum"] == checksum(whole, piece=1000)
    read(staged)
    for place in (*range(0, len(whole), 1000), *range(999, len(whole), 1000), len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="has checksum"):
            read(staged)
    path.write_bytes(whole[1000:2000] + whole[:1000] + whole[2000:])  # pieces that are whole, elsewhere
    with pytest.raises(ValueError, match="has checksum"):
        read(staged)
    for wrong in (whole[:-1], whole + b"x"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"has {len(wrong)} bytes, {len(whole)} were announced"):
            read(staged)


def test_another_layout_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    transport, memory = FileTransport(tmp_path, torch.bfloat16), HostMemory()
    sizes = (10, 5_000_000, 3, 20_000_001, 10)
    for version, size in enumerate(sizes):
        tensors = {f"w{version}": torch.arange(float(size)), "last": torch.tensor(float(version))}
        staged = transport.stage(version, tensors.items())
        assert Path(staged.info["path"]).stat().st_size == staged.bytes
        for found in (load_file(staged.info["path"]), read(staged, memory)):
            assert found.keys() == tensors.keys()
            assert all(torch.equal(one, tensors[name].bfloat16()) for name, one in found.items())


def test_memory_and_the_file_before_the_last_are_used_again(tmp_path: Path) -> None:
    transport, memory = FileTransport(tmp_path), HostMemory()
    places, inodes, bases = [], [], []
    for version in range(1, 5):
        staged = transport.stage(version, odd_tensors(version))
        bases.append(transport._memory.reserve(1).data_ptr())
        places.append({name: one.data_ptr() for name, one in read(staged, memory).items()})
        inodes.append(Path(staged.info["path"]).stat().st_ino)
    assert len(set(bases)) == 1 and all(one == places[0] for one in places)
    assert inodes[0] == inodes[2] != inodes[1] == inodes[3]
    assert len(list(tmp_path.iterdir())) == 2


def meanwhile(monkeypatch: pytest.MonkeyPatch, call: str, then: Callable[[], object]) -> None:
    """Runs `then` once, when `os.CALL` has been called for the third time."""
    real, count = getattr(os, call), 0

    def called(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        found = real(*arguments)
        if count == 3:
            then()
        return found

    monkeypatch.setattr(wire, "PIECE", 1000)
    monkeypatch.setattr(wire, "THREADS", 1)
    monkeypatch.setattr(os, call, called)


def test_a_version_that_is_being_read_stays_and_an_older_one_is_found_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = FileTransport(tmp_path)
    monkeypatch.setattr(wire, "PIECE", 1000)
    first = transport.stage(1, odd_tensors(1))
    expected = {name: bits(one) for name, one in odd_tensors(1)}
    with monkeypatch.context() as patch:
        meanwhile(patch, "preadv", lambda: transport.stage(2, odd_tensors(2)))
        assert {name: bits(one) for name, one in read(first).items()} == expected
    with monkeypatch.context() as patch:
        meanwhile(patch, "preadv", lambda: transport.stage(3, odd_tensors(3)))
        with pytest.raises(ValueError, match="has checksum"):
            read(first)
    with pytest.raises(FileNotFoundError):
        read(first)


def test_a_version_has_its_name_when_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = FileTransport(tmp_path)
    for version in (1, 2):
        transport.stage(version, odd_tensors(version))
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(sorted(one.name for one in tmp_path.iterdir()))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        meanwhile(patch, "pwrite", look)
        with pytest.raises(PermanentUpdateError, match=r"No space left .* weights\.directory .* room for 2"):
            transport.stage(3, odd_tensors(3))
    assert seen == [["weights-00000002.safetensors", "~weights-00000003.safetensors"]]
    assert [one.name for one in tmp_path.iterdir()] == ["weights-00000002.safetensors"]
    assert read(transport.stage(4, odd_tensors(4)))["a.weight"].equal(dict(odd_tensors(4))["a.weight"])


def test_a_limit_of_a_files_size_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder has room then."""

    def refuse(*_: Any) -> int:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(PermanentUpdateError, match=r"File too large\); allow larger files \(ulimit -f\)"):
        FileTransport(tmp_path).stage(1, odd_tensors())


def test_short_reads_and_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read_into = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:777], at))
    monkeypatch.setattr(os, "preadv", lambda file, into, at: read_into(file, [into[0][:777]], at))
    staged = FileTransport(tmp_path).stage(1, odd_tensors())
    assert {name: bits(one) for name, one in read(staged).items()} == {
        name: bits(one) for name, one in odd_tensors()
    }


def test_names_that_do_not_fit_in_front_of_the_data_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transport, "HEADER_ROOM", 128)
    with pytest.raises(PermanentUpdateError, match=r"names of 8 tensors take \d+ bytes, .* 128"):
        FileTransport(tmp_path).stage(1, odd_tensors())


class Cudart:
    """Says what was page-locked; without room, as CUDA says it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locked: dict[int, int] = {}
        self.calls = self.error = 0
        monkeypatch.setattr(
            torch.cuda,
            "cudart",
            lambda: SimpleNamespace(cudaHostRegister=self.lock, cudaHostUnregister=self.locked.pop),
        )
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def lock(self, pointer: int, size: int, flags: int) -> int:
        assert pointer not in self.locked, "locked twice"
        self.calls += 1
        if not self.error:
            self.locked[pointer] = size
        return self.error


def test_memory_is_page_locked_once_and_anew_where_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, memory = Cudart(monkeypatch), HostMemory()
    for _ in range(3):
        given = memory.reserve(1000)
        memory.pin(1000)
    given[:] = 7
    assert cuda.locked == {given.data_ptr(): 1000} and cuda.calls == 1
    larger = memory.reserve(5000)
    assert not cuda.locked and larger[:1000].eq(7).all(), "what was there is kept"
    cuda.error = 2
    with pytest.raises(RuntimeError, match=r"out of memory .*5000 bytes, CUDA error 2"):
        memory.pin(5000)
    cuda.error = 0
    memory.pin(5000)
    assert cuda.locked == {larger.data_ptr(): 5000}
    memory.release()
    assert not cuda.locked


def test_all_threads_have_ended_when_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = FileTransport(tmp_path).stage(1, odd_tensors())
    monkeypatch.setattr(wire, "PIECE", 1000)
    real, failed, late = os.preadv, threading.Event(), []

    def slow(file: int, into: list[memoryview], at: int) -> int:
        if not at:
            failed.set()
            raise OSError(5, "Input/output error")
        assert failed.wait(60)
        time.sleep(0.002)
        found = real(file, into, at)
        late.append(at)
        return found

    monkeypatch.setattr(os, "preadv", slow)
    with pytest.raises(OSError, match="Input/output error"):
        read(staged)
    failing = len(range(0, staged.bytes, 4 * 1000))  # every fourth piece is the failed thread's
    assert len(late) == len(range(0, staged.bytes, 1000)) - failing, "the others have read all of theirs"
