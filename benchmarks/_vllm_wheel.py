"""Reads single source files of a wheel that lies on a package index, and finds definitions in them.

`vllm_releases` asks it what a release of vLLM has. A wheel is a zip: its directory lies at its end, so a few
ranges of a file of 300 MB are enough, and nothing is kept on the disk. Nothing of vLLM is imported.
"""

import ast
import io
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from http import HTTPStatus

DEADLINE_S = 120.0
# Sources lie side by side in a wheel, so that one range brings many of them.
BLOCK = 2**20
Function = ast.FunctionDef | ast.AsyncFunctionDef


def pip(*arguments: str) -> str:
    """What pip prints; it knows which index this machine uses. RuntimeError with its last line."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"pip {' '.join(arguments)}: {last}")
    return done.stdout


def releases(package: str, oldest: tuple[int, ...]) -> list[str]:
    """Final releases of `package` on the index from `oldest` on, oldest first."""
    found = re.search(r"Available versions: (.*)", pip("index", "versions", package))
    listed = found[1].split(", ") if found else []
    numbers = [tuple(map(int, one.split("."))) for one in listed if re.fullmatch(r"\d+(\.\d+)+", one)]
    return [".".join(map(str, one)) for one in sorted(numbers) if one >= oldest]


def address(package: str, release: str) -> str:
    """Where the wheel of a release lies."""
    wheel = ("--only-binary=:all:", "--python-version", "3.12", "--no-deps", "--ignore-installed")
    said = pip(
        "install", "--quiet", "--dry-run", *wheel, "--target", "x", "--report", "-", f"{package}=={release}"
    )
    url: str = json.loads(said)["install"][0]["download_info"]["url"]
    return url


class RemoteFile(io.RawIOBase):
    """A file behind an address, of which only what is read is fetched. RuntimeError if that cannot be."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        self.fetched = 0
        """Bytes so far."""
        with self._range(0, 0) as answer:
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what io.BufferedReader passes
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        with self._range(self._at, stop - 1) as answer:
            content = answer.read()
        buffer[: len(content)] = content
        self._at += len(content)
        self.fetched += len(content)
        return len(content)

    def _range(self, first: int, last: int):  # type: ignore[no-untyped-def]  # a response of urllib
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={first}-{last}"})
        answer = urllib.request.urlopen(request, timeout=DEADLINE_S)
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            answer.close()
            raise RuntimeError("the package index sends whole files only; use one that answers ranges")
        return answer


class Wheel:
    """The sources of a release."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._trees: dict[str, Module] = {}

    @classmethod
    def remote(cls, package: str, release: str) -> "Wheel":
        """Of a release on the index."""
        file = io.BufferedReader(RemoteFile(address(package, release)), BLOCK)
        return cls(zipfile.ZipFile(file))

    @cached_property
    def names(self) -> list[str]:
        """Paths of all files."""
        return sorted(self._archive.namelist())

    def text(self, path: str) -> str:
        return self._archive.read(path).decode()

    def metadata(self, field: str) -> list[str]:
        """Values of a field of METADATA."""
        path = next(one for one in self.names if one.endswith(".dist-info/METADATA"))
        return re.findall(rf"^{field}: (.*)$", self.text(path), re.MULTILINE)

    def module(self, name: str) -> "Module | None":
        """A module by its dotted name, None where the release has none."""
        path = name.replace(".", "/")
        found = next((one for one in (f"{path}.py", f"{path}/__init__.py") if one in self.names), None)
        return None if found is None else self.at(found)

    def below(self, folder: str, ending: str = ".py") -> "Iterator[Module]":
        """Every module in a folder, by path."""
        return (self.at(one) for one in self.names if one.startswith(folder) and one.endswith(ending))

    def at(self, path: str) -> "Module":
        if path not in self._trees:
            self._trees[path] = Module(path, ast.parse(self.text(path)))
        return self._trees[path]


class Module:
    """What a source file defines."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.tree = path, tree

    def names(self) -> set[str]:
        """Everything that can be imported from it."""
        found = set()
        for one in ast.walk(self.tree):
            if isinstance(one, ast.ImportFrom | ast.Import):
                found |= {(name.asname or name.name) for name in one.names}
            elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                found.add(one.id)
        return found | {one.name for one in self.tree.body if isinstance(one, ast.ClassDef | Function)}

    def classes(self) -> "dict[str, Class]":
        return {one.name: Class(one) for one in self.tree.body if isinstance(one, ast.ClassDef)}

    def functions(self) -> dict[str, Function]:
        return functions_of(self.tree.body)

    def calls(self, *functions: str) -> Iterator[ast.Call]:
        """Calls of functions or methods of these names, wherever they stand."""
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Call) and name_of(one.func) in functions:
                yield one

    def texts(self) -> set[str]:
        """Every string in it."""
        return strings(self.tree)


class Class:
    """What a class statement holds."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.node = node

    @cached_property
    def fields(self) -> list[str]:
        """Annotated names in its body: fields of a dataclass, of a pydantic model, of a msgspec struct."""
        annotated = (one.target for one in self.node.body if isinstance(one, ast.AnnAssign))
        return [one.id for one in annotated if isinstance(one, ast.Name)]

    @cached_property
    def values(self) -> dict[str, object]:
        """Names that are given a constant, such as members of an enumeration."""
        assigned = (one for one in self.node.body if isinstance(one, ast.Assign))
        return {
            name_of(one.targets[0]): one.value.value
            for one in assigned
            if isinstance(one.value, ast.Constant)
        }

    @cached_property
    def methods(self) -> dict[str, Function]:
        return functions_of(self.node.body)

    @property
    def abstract(self) -> list[str]:
        """Methods that a subclass has to define."""
        return [
            name
            for name, method in self.methods.items()
            if "abstractmethod" in {name_of(one) for one in method.decorator_list}
        ]

    @property
    def attributes(self) -> set[str]:
        """Names that its methods give a value on `self`."""
        stored = (one for one in ast.walk(self.node) if isinstance(one, ast.Attribute))
        return {one.attr for one in stored if isinstance(one.ctx, ast.Store) and name_of(one.value) == "self"}


def functions_of(body: Sequence[ast.stmt]) -> dict[str, Function]:
    return {one.name: one for one in body if isinstance(one, Function)}


def parameters(function: Function) -> list[str]:
    """Names of what a function takes, without `self` and `cls`."""
    taken = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [one.arg for one in taken if one.arg not in ("self", "cls")]


def name_of(node: ast.expr) -> str:
    """`c` of `c` and of `a.b.c`, empty for another expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def strings(node: ast.AST) -> set[str]:
    """Every string below a node."""
    constants = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {one for one in constants if isinstance(one, str)}
