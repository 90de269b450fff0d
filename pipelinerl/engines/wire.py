"""What both ends of a weight update agree on: files and where they lie, the marks beside them, packets, and
how a refusal says that no restart can mend it.

Imported by `send`, `receive`, the embedded engine, and by the launcher, which removes what a killed trainer
left; no torch here.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from pipelinerl.base.threads import in_thread

PREPARE_ROUTE = "/prepare_weights"
"""Takes the body of /update_weights ahead of it, while the engine samples. The embedded engine offers it in
its answer to /init_weight_transfer_engine; vLLM has no such route."""
CHECK_ROUTE = "/weight_checker"
"""Says the checksum of every parameter in use, by its Hugging Face name (`parameter_checksum`). vLLM's
route of this name, which only its development mode has, knows the fused and sharded parameters of vLLM."""
SHARED_MEMORY = Path("/dev/shm")
OWNER = "owner"
"""File in a run's folder there that its launcher keeps locked."""
OF_A_RUN = "pipelinerl-"
"""How the name of a run's folder begins, beside those of other runs and what else lies there."""
_PERMANENT = "<<permanent: ", ">>"
# As torch says it of a GPU and of the host.
_NO_MEMORY = ("out of memory", "can't allocate memory")
COPIES = 2
"""Versions whose files are there at a time: the latest, and the one before it or the next, half written."""
# A checksum is that of the checksums of pieces, so that several threads can compute it. A piece is still in
# the processor's cache when it is looked at once more.
PIECE, THREADS = 4 * 2**20, 4


class PermanentUpdateError(ValueError):
    """An update that a new process of this run would refuse too; the message has the key and the remedy.

    vLLM hands an error of a worker on as text inside other text, without its class. So `str` puts `words`
    between two marks, by which `permanent_words` finds them.
    """

    def __init__(self, words: str) -> None:
        self.words = " ".join(words.split())
        super().__init__(self.words)

    def __str__(self) -> str:
        return self.words.join(_PERMANENT)


def permanent_words(text: str) -> str | None:
    """The words of a PermanentUpdateError in a text that holds its `str`; None without one."""
    begin, end = _PERMANENT
    _, found, after = text.partition(begin)
    return after.partition(end)[0] if found else None


def lacks_memory(error: BaseException) -> bool:
    """Whether it is about memory of a GPU or of the host."""
    return isinstance(error, MemoryError) or any(one in str(error) for one in _NO_MEMORY)


def shared_directory(output_dir: Path) -> Path:
    """The run's folder in shared memory; the same for every process and every start of that run."""
    return SHARED_MEMORY / _own_name(output_dir)


def outside_directory(output_dir: Path, configured: Path | None) -> Path:
    """Where weights of a run lie that is not in its folder: below `configured`, or in shared memory."""
    return shared_directory(output_dir) if configured is None else configured / _own_name(output_dir)


def _own_name(output_dir: Path) -> str:
    return OF_A_RUN + hashlib.sha256(str(output_dir.resolve()).encode()).hexdigest()[:16]


def weights_directory(
    output_dir: Path, model_bytes: int, configured: Path | None = None, shared: bool = False
) -> Path:
    """An existing folder with room for the versions kept; files of an earlier start are removed.

    One of the run's own below `configured` where that is given; otherwise in shared memory that can be
    written and has room for `COPIES` of `model_bytes`, else `output_dir/weights`, which is also that of a run
    whose hosts have to share it.
    """
    in_memory = not shared and SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    if configured is not None or (in_memory and shutil.disk_usage(SHARED_MEMORY).free > COPIES * model_bytes):
        chosen = outside_directory(output_dir, configured)
    else:
        chosen = output_dir / "weights"
    make_private(chosen)
    # Also `~weights-...`, which a killed trainer had not given its name yet.
    for leftover in (*chosen.glob("weights-*"), *chosen.glob("~weights-*")):
        leftover.unlink()
    return chosen


def make_private(folder: Path, instead: str = "set weights.directory") -> None:
    """Make a folder; where others may write, as in shared memory, /tmp or a group's, it is this user's alone.

    Raises OSError for one that another user made there, who could read or replace what is in it; `instead`
    says how to have another folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.parent != SHARED_MEMORY and not folder.parent.stat().st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        folder.mkdir(exist_ok=True)
        return
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(folder):
        why = f"not a folder of this user; have its owner remove it, or {instead}"
        raise OSError(errno.EPERM, why, str(folder))
    if folder.stat().st_mode & 0o777 != 0o700:  # made by hand
        folder.chmod(0o700)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder, and no link to one, of this process's user."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _owner_file(folder: Path) -> TextIO:
    """Its file of the owner, opened; OSError for a pipe, at which this would wait, and for a link."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW
    return open(
        folder / OWNER, "a", encoding="utf-8", opener=lambda path, asked: os.open(path, asked | flags, 0o666)
    )


def claim(folder: Path) -> TextIO:
    """Make the folder this process's own until the returned file is closed, or the process ends."""
    while True:
        make_private(folder)
        owner = _owner_file(folder)
        fcntl.flock(owner, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):  # somebody removed the folder between the two lines above
            if os.path.samestat(os.fstat(owner.fileno()), (folder / OWNER).stat()):
                return owner
        owner.close()


def remove_abandoned(dry_run: bool = False) -> dict[Path, int]:
    """Remove the folders in shared memory that no living process has claimed; their sizes in bytes.

    Folders of other users, and such without an owner's file, are left alone.
    """
    found: dict[Path, int] = {}
    for owned in sorted(SHARED_MEMORY.glob(f"{OF_A_RUN}*/{OWNER}")):
        folder = owned.parent
        with suppress(OSError):
            if not _is_own(folder):
                continue
        with suppress(OSError), _owner_file(folder) as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = sum(file.lstat().st_size for file in folder.iterdir())
            if not dry_run:
                shutil.rmtree(folder)
            found[folder] = size
    return found


def parameter_checksum(data: bytes | bytearray | memoryview) -> str:
    """`xxh3:XXXXXXXXXXXXXXXX` of these bytes, such as those of one parameter."""
    return f"xxh3:{xxh3_64_hexdigest(data)}"


def write_version(path: Path, data: memoryview, used: Path | None = None) -> str:
    """Write a version's file, which appears whole or not at all; its checksum.

    `used` is a file that is no longer needed: the new one takes its place on the disk, whose pages are there
    already, and its name goes first. Raises OSError, such as on a full disk; nothing is left then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"~{path.name}")
    try:
        if used is not None:
            with suppress(FileNotFoundError):
                used.replace(beside)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

        def write(start: int, stop: int) -> int:
            found, at = xxh3_64_intdigest(data[start:stop]), start
            while at < stop:
                at += os.pwrite(file, data[at:stop], at)
            return found

        try:
            os.ftruncate(file, len(data))
            found = _by_pieces(write, len(data))
        finally:
            os.close(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return _combined(found)


def read_checked(path: Path, size: int, expected: str, memory: Callable[[], memoryview]) -> None:
    """Read the whole file into `memory`, which is asked for when the size is known to be right.

    What was read is what is checked, so a file that changes meanwhile is damaged. ValueError if it is not
    what was announced, OSError if it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise ValueError(f"{path} has {found} bytes, {size} were announced")
        data = memory()

        def read(start: int, stop: int) -> int:
            at = start
            while at < stop:
                if not (count := os.preadv(file.fileno(), [data[at:stop]], at)):
                    raise ValueError(f"{path} ends at {at} bytes, {size} were announced")
                at += count
            return xxh3_64_intdigest(data[start:stop])

        sum_read = _combined(_by_pieces(read, size))
    if sum_read != expected:
        raise ValueError(f"{path} has checksum {sum_read}, {expected} was announced")


def _by_pieces(work: Callable[[int, int], int], size: int) -> list[int]:
    """`work(start, stop)` of each piece, in their order; a few threads, which let go of the interpreter."""
    starts = range(0, size, PIECE)

    def lane(first: int) -> list[int]:
        return [work(start, min(start + PIECE, size)) for start in starts[first::THREADS]]

    lanes = [in_thread(lane, first) for first in range(min(THREADS, len(starts)))]
    wait(lanes)  # also after an error: none may still write into what the next version gets
    found = [one.result() for one in lanes]
    return [found[number % THREADS][number // THREADS] for number in range(len(starts))]


def _combined(pieces: list[int]) -> str:
    """The checksum of the checksums of all pieces, each little-endian in eight bytes."""
    # Damage has to be found, not an attack: sha256 would take many times as long.
    return parameter_checksum(b"".join(one.to_bytes(8, "little") for one in pieces))


def read_mark(path: Path, reader: str, rank: int) -> Path:
    """Beside a version's file: this rank of engine `reader` has read it; its text says what hindered it."""
    return path.with_name(f"{path.name}.read-{reader}-{rank}")


def packets(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Cut tensors of these sizes in bytes into packets: half-open [start, stop) of each."""
    start, size = 0, 0
    for index, one in enumerate(sizes):
        size += one
        # The tensor with which a packet exceeds the limit still belongs to it. That is the rule of vLLM's
        # receiver (packed_nccl_broadcast_consumer); a sender that cuts elsewhere hangs in its broadcast.
        if size > limit:
            yield start, index + 1
            start, size = index + 1, 0
    if start < len(sizes):
        yield start, len(sizes)
