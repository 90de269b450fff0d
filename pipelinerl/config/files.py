"""Reading and writing the resolved tree of a run: `<output_dir>/conf/exp_config.yaml`.

Its secrets are masked there and stand in `exp_config.secrets.json`, which only its owner may read. A dry
run writes the tree of what it was asked for. That of the last start, with which a resume is compared and
which is shown of the run, is then kept beside it.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from pipelinerl.base.errors import ConfigError, explain
from pipelinerl.base.files import write_whole
from pipelinerl.config.secrets import (
    Place,
    mask_in_texts,
    masked,
    masked_places,
    secrets_of,
    unmasked,
    written,
)
from pipelinerl.config.tree import Config

_TRUTH = {
    written
    for word in ("y", "yes", "n", "no", "true", "false", "on", "off")
    for written in (word, word.capitalize(), word.upper())
}
"""How YAML 1.1 writes truth values."""


def config_path(output_dir: str | Path) -> Path:
    """Where the resolved tree of a run lies."""
    return Path(output_dir) / "conf" / "exp_config.yaml"


def _started_path(output_dir: str | Path) -> Path:
    """Where the tree of the last start lies while there is that of a dry run in its place."""
    return config_path(output_dir).with_name("started.yaml")


def _last_start(output_dir: str | Path) -> Path:
    kept = _started_path(output_dir)
    return kept if kept.is_file() else config_path(output_dir)


def typed(tree: DictConfig) -> Config:
    """The tree as a frozen typed model. Raises ConfigError with one line per problem."""
    container = OmegaConf.to_container(tree, resolve=True)
    try:
        return Config.model_validate(container)
    except ValidationError as error:
        lines = [line for text in explain(error, Config) for line in text.split("\n")]
        raise ConfigError([line for line in lines if not _is_copy(tree, line)] or lines) from None


def _is_copy(tree: DictConfig, line: str) -> bool:
    """Whether a problem is about a key that takes its value from another one, which is named as well."""
    key = line.partition("=")[0]
    parent, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(tree, parent) if parent else tree
    except OmegaConfBaseException:  # a line about an item of a list, whose place is no key
        return False
    return isinstance(node, DictConfig) and name in node and OmegaConf.is_interpolation(node, name)


def secrets_path(tree: Path) -> Path:
    """Where the secrets of a tree lie."""
    return tree.with_suffix(".secrets.json")


def save(tree: DictConfig, output_dir: str | Path) -> None:
    """Write the tree with every interpolation resolved; the file appears whole or not at all.

    Secrets are masked in it, and stand in a file beside it with mode 600.
    """
    path, secrets = config_path(output_dir), secrets_of(tree)
    if secrets:
        lines = [{"key": list(place), "value": value} for place, value in secrets.items()]
        write_whole(secrets_path(path), json.dumps(lines, indent=1) + "\n", mode=0o600)
    write_whole(path, as_yaml(masked(OmegaConf.to_container(tree, resolve=True), secrets)))
    if not secrets:
        secrets_path(path).unlink(missing_ok=True)


class _Dumper(getattr(yaml, "CDumper", yaml.Dumper)):  # type: ignore[misc]
    """libyaml's where it is installed, which takes a fifth of the time."""


def _text(dumper: yaml.Dumper, value: str) -> yaml.ScalarNode:
    quoted = value in _TRUTH
    for kind in (int, float):
        with suppress(ValueError):
            kind(value)
            quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if quoted else None)


_Dumper.add_representer(str, _text)


def as_yaml(container: Any) -> str:
    """The text of which `OmegaConf.create` makes these plain values again.

    Of a text that it would take for a number or a truth value, in its own or in YAML's eyes, only the quotes
    say that it is none.
    """
    text: str = yaml.dump(
        container, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text


def keep_started(output_dir: str | Path) -> None:
    """A dry run is going to write its tree where that of the last start lies."""
    tree, kept = config_path(output_dir), _started_path(output_dir)
    if tree.is_file() and not kept.is_file():
        if secrets_path(tree).is_file():
            write_whole(secrets_path(kept), secrets_path(tree).read_bytes(), mode=0o600)
        write_whole(kept, tree.read_bytes(), mode=tree.stat().st_mode & 0o777)


def forget_started(output_dir: str | Path) -> None:
    """A start has written its own tree."""
    kept = _started_path(output_dir)
    kept.unlink(missing_ok=True)
    secrets_path(kept).unlink(missing_ok=True)


def load(output_dir: str | Path) -> Config:
    """The typed tree of the run in `output_dir`. Raises ConfigError if it is absent, invalid or unplaced."""
    cfg = typed(read_tree(output_dir))
    if cfg.derived_ is None:
        raise ConfigError(
            f"{config_path(output_dir)}: has no section derived; start the run again with pipelinerl.launch"
        )
    return cfg


def load_tree(output_dir: str | Path, job: int | None = None) -> DictConfig:
    """The tree that rollout code gets: `cfg.jobs` and, with `job`, `cfg.me`: that process and the engines.

    Without `job` it is the tree of the last start, for what looks at a run from outside.
    """
    if job is None:
        return read_started(output_dir)
    tree = read_tree(output_dir)
    jobs = {int(entry.idx): entry for entry in tree.jobs}
    if job not in jobs:
        raise ConfigError(f"--job {job}: no such job; this run has {', '.join(map(str, sorted(jobs)))}")
    tree.me = {
        "job_idx": job,
        **{key: jobs[job][key] for key in ("kind", "name", "replica_idx", "node_rank", "port")},
        "llm_urls": "+".join(str(entry.url) for entry in tree.jobs if entry.kind == "actor_llm"),
    }
    return tree


def read_tree(output_dir: str | Path) -> DictConfig:
    """The resolved tree with its secrets. Raises ConfigError with one line if it is missing or damaged."""
    path = config_path(output_dir)
    return with_secrets(_read(path), path)


def read_shown(output_dir: str | Path) -> DictConfig:
    """The tree of the last start as it may be shown: its secrets are masked. Raises as `read_tree`."""
    tree = _read(_last_start(output_dir))
    found = masked(OmegaConf.to_container(tree, resolve=True), secrets_of(tree))  # an older file's
    shown: DictConfig = OmegaConf.create(found)
    return shown


def is_readable(output_dir: str | Path) -> bool:
    """Whether the resolved tree is there and whole."""
    try:
        _read(config_path(output_dir))
    except ConfigError:
        return False
    return True


def read_started(output_dir: str | Path) -> DictConfig:
    """The tree of the last start, whatever dry runs came after it. Raises as `read_tree`."""
    path = _last_start(output_dir)
    return with_secrets(_read(path), path)


def read_secrets(output_dir: str | Path) -> dict[Place, Any]:
    """The secret values of a run by their places.

    Raises ConfigError if the file is damaged or not one's own.
    """
    return _secrets(config_path(output_dir))


def with_secrets(tree: DictConfig, path: Path) -> DictConfig:
    """The tree that was read from `path`, with the secrets that lie beside it.

    Raises ConfigError with the keys that stay masked.
    """
    container: Any = OmegaConf.to_container(tree, resolve=False)
    if not masked_places(container):
        mask_in_texts({})
        return tree
    secrets = _secrets(path)
    mask_in_texts(secrets)
    container = unmasked(container, secrets)
    if left := masked_places(container):
        keys = ", ".join(map(written, left))
        raise ConfigError(
            f"{path}: {keys} masked, and {secrets_path(path).name} has no value; start the run again, or set "
            f"{written(left[0])}=VALUE in the file"
        )
    return OmegaConf.create(container)


def _secrets(path: Path) -> dict[Place, Any]:
    beside = secrets_path(path)
    try:
        lines = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else []
        return {tuple(line["key"]): line["value"] for line in lines}
    except PermissionError:
        raise ConfigError(f"{beside}: only its owner may read the run's secrets; ask as that user") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f"{beside}: damaged; start the run again to rewrite it ({error})") from error


def _read(path: Path) -> DictConfig:
    if not path.is_file():
        raise ConfigError(f"{path}: not found; give the output_dir of a run started by pipelinerl.launch")
    try:
        tree = OmegaConf.load(path)
    except (yaml.YAMLError, ValueError, OSError) as error:  # OSError: also a file that holds a number
        raise ConfigError(f"{path}: damaged; start the run again to rewrite it ({error})") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path}: not a mapping; start the run again to rewrite it")
    if not tree:  # of a power cut, as of an editor: its keys would all be at their defaults
        raise ConfigError(f"{path}: empty; start the run again to rewrite it")
    return tree
