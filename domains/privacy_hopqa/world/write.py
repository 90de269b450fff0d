"""A world on disk: task trees, the web corpus, chains of each split, and a manifest with checksums.

The domain's `prepare` hook and the command call `generate`.
"""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from .build import build
from .config import GENERATOR_VERSION, MANIFEST, SPLITS, WorldConfig, WorldError
from .model import World

LONG_CHARS: Final = 12_000


def generate(config: WorldConfig, directory: str | os.PathLike[str]) -> Path:
    """Write the world of `config` to `directory`, all checks included, and return the directory.

    A directory that holds the same world is kept as it is. Raises `WorldError` if the directory holds
    anything else, or if the world cannot be made. A world appears complete or not at all.
    """
    target = Path(directory)
    if target.exists() and any(target.iterdir()):
        _must_be(target, config)
        return target
    world = build(config)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write(world, staging)
        staging.chmod(0o755)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


def _must_be(target: Path, config: WorldConfig) -> None:
    """Raise unless the directory holds this world, whole and unchanged."""
    path = target / MANIFEST
    if not path.is_file():
        raise WorldError(f"{target} is not empty and holds no world; give an empty directory or remove it")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise WorldError(f"{path} is not JSON ({error}); remove {target}") from error
    if manifest.get("config") != config.as_dict() or manifest.get("generator_version") != GENERATOR_VERSION:
        raise WorldError(f"{target} holds another world; give an empty directory or remove it")
    for name, checksum in manifest["files"].items():
        file = target / name
        if not file.is_file() or sha256(file.read_bytes()).hexdigest() != checksum:
            raise WorldError(f"{file} is missing or was changed; remove {target} to generate the world again")
    if manifest.get("fingerprint") != fingerprint(manifest["files"]):
        raise WorldError(f"{path} was changed; remove {target} to generate the world again")


def fingerprint(checksums: Mapping[str, str]) -> str:
    """One SHA-256 over all files' names and checksums."""
    lines = "".join(f"{name} {checksum}\n" for name, checksum in sorted(checksums.items()))
    return sha256(f"{GENERATOR_VERSION}\n{lines}".encode()).hexdigest()


def write(world: World, directory: Path) -> dict[str, Any]:
    """Write all files below an existing directory and return the manifest, which is written last."""
    checksums: dict[str, str] = {}
    for name, content in _files(world):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode("utf-8")
        path.write_bytes(raw)
        checksums[name] = sha256(raw).hexdigest()
    manifest = {
        "config": world.config.as_dict(),
        "files": checksums,
        "fingerprint": fingerprint(checksums),
        "generator_version": GENERATOR_VERSION,
        "statistics": statistics(world),
        "temptation": world.temptation,
    }
    (directory / MANIFEST).write_bytes(f"{_json(manifest, indent=1)}\n".encode())
    return manifest


def _files(world: World) -> Iterable[tuple[str, str]]:
    for company in world.companies:
        root = f"tasks/{company.task_id}"
        info = {
            "task_id": company.task_id,
            "company_info": {"name": company.name, "description": company.description},
        }
        yield f"{root}/config/task.json", f"{_json(info, indent=1)}\n"
        for document in world.private_docs[company.task_id]:
            yield f"{root}/files/{document.folder}/{document.name}", document.text
    pages = ({"docid": page.docid, "url": page.url, "text": page.text} for page in world.web_docs)
    yield "web.jsonl", _lines(pages)
    for split in SPLITS:
        yield f"chains_{split}.jsonl", _lines(world.chains[split])


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=indent)


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{_json(row)}\n" for row in rows)


def statistics(world: World) -> dict[str, Any]:
    """What the world holds, for the manifest."""
    documents = [document for documents in world.private_docs.values() for document in documents]
    used = {hop["doc_id"] for rows in world.chains.values() for row in rows for hop in row["hops"]}
    return {
        "companies": {split: [c.task_id for c in world.companies_of(split)] for split in SPLITS},
        "private_docs": len(documents),
        "private_docs_used": sum(document.doc_id in used for document in documents),
        "private_docs_long": sum(len(document.text) > LONG_CHARS for document in documents),
        "private_facts": sum(len(document.facts) for document in documents),
        "web_docs": len(world.web_docs),
        "web_docs_used": sum(f"web/{page.docid}" in used for page in world.web_docs),
        "web_docs_long": sum(len(page.text) > LONG_CHARS for page in world.web_docs),
        "splits": {split: _split_statistics(world, split) for split in SPLITS},
    }


def _split_statistics(world: World, split: str) -> dict[str, Any]:
    rows = world.chains[split]
    hops = [hop for row in rows for hop in row["hops"]]
    return {
        "chains": len(rows),
        "hops": len(hops),
        "patterns": dict(Counter(row["pattern"] for row in rows)),
        "answer_kinds": dict(Counter(hop["value_kind"] for hop in hops)),
        "gold_documents": len({hop["doc_id"] for hop in hops}),
        "redrawn": dict(world.refused[split]),
    }
