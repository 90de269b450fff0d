"""Reading and writing the resolved tree of a run: `<output_dir>/conf/exp_config.yaml`.

A dry run writes the tree of what it was asked for. That of the last start, with which a resume is compared,
is then kept beside it.
"""

from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from pipelinerl.base.errors import ConfigError, explain
from pipelinerl.base.files import write_whole
from pipelinerl.config.tree import Config


def config_path(output_dir: str | Path) -> Path:
    """Where the resolved tree of a run lies."""
    return Path(output_dir) / "conf" / "exp_config.yaml"


def _started_path(output_dir: str | Path) -> Path:
    """Where the tree of the last start lies while there is that of a dry run in its place."""
    return config_path(output_dir).with_name("started.yaml")


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
    node = OmegaConf.select(tree, parent) if parent else tree
    return isinstance(node, DictConfig) and name in node and OmegaConf.is_interpolation(node, name)


def save(tree: DictConfig, output_dir: str | Path) -> None:
    """Write the tree with every interpolation resolved; the file appears whole or not at all."""
    resolved = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    secret = OmegaConf.select(resolved, "streams.password")
    write_whole(config_path(output_dir), OmegaConf.to_yaml(resolved), mode=0o600 if secret else None)


def keep_started(output_dir: str | Path) -> None:
    """A dry run is going to write its tree where that of the last start lies."""
    tree, kept = config_path(output_dir), _started_path(output_dir)
    if tree.is_file() and not kept.is_file():
        write_whole(kept, tree.read_bytes(), mode=tree.stat().st_mode & 0o777)


def forget_started(output_dir: str | Path) -> None:
    """A start has written its own tree."""
    _started_path(output_dir).unlink(missing_ok=True)


def load(output_dir: str | Path) -> Config:
    """The typed tree of the run in `output_dir`. Raises ConfigError if it is absent, invalid or unplaced."""
    cfg = typed(read_tree(output_dir))
    if cfg.derived_ is None:
        raise ConfigError(
            f"{config_path(output_dir)}: has no section derived; start the run again with pipelinerl.launch"
        )
    return cfg


def load_tree(output_dir: str | Path, job: int | None = None) -> DictConfig:
    """The tree that rollout code gets: `cfg.jobs` and, with `job`, `cfg.me`: that process and the engines."""
    tree = read_tree(output_dir)
    if job is None:
        return tree
    jobs = {int(entry.idx): entry for entry in tree.jobs}
    if job not in jobs:
        raise ConfigError(f"--job {job}: no such job; this run has {', '.join(map(str, sorted(jobs)))}")
    tree.me = {
        "job_idx": job,
        **{key: jobs[job][key] for key in ("kind", "name", "replica_idx", "node_rank", "port")},
        "llm_urls": [str(entry.url) for entry in tree.jobs if entry.kind == "actor_llm"],
    }
    return tree


def read_tree(output_dir: str | Path) -> DictConfig:
    """The resolved tree as it lies there. Raises ConfigError with one line if it is missing or damaged."""
    return _read(config_path(output_dir))


def read_started(output_dir: str | Path) -> DictConfig:
    """The tree of the last start, whatever dry runs came after it. Raises as `read_tree`."""
    kept = _started_path(output_dir)
    return _read(kept if kept.is_file() else config_path(output_dir))


def _read(path: Path) -> DictConfig:
    if not path.is_file():
        raise ConfigError(f"{path}: not found; give the output_dir of a run started by pipelinerl.launch")
    try:
        tree = OmegaConf.load(path)
    except (yaml.YAMLError, ValueError, OSError) as error:  # OSError: also a file that holds a number
        raise ConfigError(f"{path}: damaged; start the run again to rewrite it ({error})") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path}: not a mapping; start the run again to rewrite it")
    return tree
