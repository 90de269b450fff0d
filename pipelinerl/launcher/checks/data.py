"""What the run reads: problems, rollout code, folders, and a model whose files are whole on their face."""

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pipelinerl.base import hub
from pipelinerl.base.errors import suggestion
from pipelinerl.base.hub import model_folder, of_hub
from pipelinerl.config.installed import conf_dir
from pipelinerl.config.legacy import domains_of
from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind
from pipelinerl.launcher.checks import config_fields
from pipelinerl.launcher.checks.dotted import dotted, signature_problem
from pipelinerl.launcher.checks.imports import calls
from pipelinerl.modeling.decoder_defaults import decoder_config
from pipelinerl.modeling.layer_kinds import refusal, type_refusal, unknown_kinds

MULTIDOMAIN_LOADER = "domains.multidomain.loader.load_datasets"
LONGEST_HEADER = 100 << 20
"""Bytes; safetensors allows no more."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
WITH_STATES = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Types whose layers of linear attention are gated DeltaNets, which the trainer knows."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
DTYPES = ("bfloat16", "float16", "float32", "float64", "half", "float", "double")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def check(cfg: Config, dry_run: bool = False) -> Iterator[str]:
    """Problems with paths and dotted names that the roles of this run need."""
    yield from model_problems(cfg, dry_run)
    has_rollouts = "actor" in cfg.debug.roles
    if has_rollouts:
        yield from dotted("dataset_loader", cfg.dataset_loader, "the function that loads problems")
        yield from dotted("actor.rollout_policy", cfg.actor.rollout_policy, "the function of a rollout")
        if not cfg.train_dataset_names and not cfg.debug.evaluates_only:
            yield "train_dataset_names=[]: nothing to train on; name at least one dataset"
        for name in sorted({*cfg.train_dataset_names} & {*cfg.test_dataset_names}):
            if not cfg.debug.evaluates_only:
                yield (
                    f"test_dataset_names: {name} is trained on too, so its evaluation would not be held out; "
                    "name another dataset, or set test_dataset_names=[] with eval_every_n_versions=0"
                )
        tested = cfg.test_dataset_names
        for name in sorted({name for name in tested if tested.count(name) > 1}):
            yield f"test_dataset_names: {name} is named twice, so its problems count twice; name it once"
        if cfg.debug.evaluates_only and not cfg.test_dataset_names:
            yield "test_dataset_names=[]: nothing to evaluate; name a dataset"
        elif cfg.eval_every_n_versions > 0 and not cfg.test_dataset_names:
            yield "test_dataset_names=[]: nothing to evaluate; name a dataset or set eval_every_n_versions=0"
    for domain, path in cfg.actor.domain_rollouts.items():
        yield from dotted(f"actor.domain_rollouts.{domain}", path, "the function of a rollout")
    if has_rollouts:
        yield from filter(None, (signature_problem(*call) for call in calls(cfg)))
        yield from _domains(cfg)
    subset = cfg.train_subset
    if subset is not None and subset.end is not None and subset.begin >= subset.end:
        yield f"train_subset: begin={subset.begin} is not below end={subset.end}; it would be empty"
    for key, value in (
        ("accelerate_config", cfg.accelerate_config),
        ("debug.streams_from", cfg.debug.streams_from),
    ):
        if value is not None and not Path(value).exists():
            yield f"{key}={value}: no such path; check the spelling or set {key}=null"
    directory = cfg.weights.directory
    if directory is not None and not (Path(directory).is_dir() and os.access(directory, os.W_OK)):
        yield f"weights.directory={directory}: not a writable folder; create it or set weights.directory=null"


def _domains(cfg: Config) -> Iterator[str]:
    """Names of domains that no dataset has, where the entries of the datasets say their domains."""
    if not (cfg.dataset_loader or "").endswith(MULTIDOMAIN_LOADER):
        return
    for entry in (*cfg.train_dataset_names, *cfg.test_dataset_names):
        if "::" not in entry:
            yield f"dataset {entry}: names no domain; write <domain>::<dataset>"
    train = domains_of(cfg.train_dataset_names)
    both = train | domains_of(cfg.test_dataset_names)
    params = cfg.dataset_loader_params.get("per_domain_params") or {}
    loaders = cfg.dataset_loader_params.get("domain_loaders") or {}
    # Problems of a loader that `domain_loaders` names may say other domains, as is seen when they are loaded.
    played = not both & set(map(str, loaders))
    for key, named, there in (
        ("actor.domain_mix", (cfg.actor.domain_mix or {}) if played else {}, train),
        ("actor.domain_rollouts", cfg.actor.domain_rollouts if played else {}, both),
        ("dataset_loader_params.per_domain_params", params, both),
        ("dataset_loader_params.domain_loaders", loaders, both),
    ):
        for domain in sorted(set(map(str, named)) - there):
            yield f"{key}.{domain}: no dataset is of that domain; {suggestion(domain, there)}"
    mix = cfg.actor.domain_mix
    for domain in sorted(train - set(mix)) if mix and played and not cfg.debug.evaluates_only else ():
        yield (
            f"actor.domain_mix: no weight for {domain}, a domain of train_dataset_names; give it one (0: it "
            "is never drawn)"
        )


def model_problems(cfg: Config, dry_run: bool = False) -> Iterator[str]:
    """Whether `model_path` is a model folder, or a hub's name; for a dry run one with its sizes.

    Of a hub's model the files in the local cache are checked, which a dry run takes as they are; without any,
    other runs ask the hub for its `config.json`.
    """
    path, folder = Path(cfg.model_path), model_folder(cfg.model_path, ask=not dry_run)
    if folder is not None:
        yield from named(cfg.model_path, _of_folder(cfg, folder, dry_run))
    elif path.exists():
        yield f"model_path={path}: a file; give the folder that holds config.json"
    elif cfg.bootstrap.phases and path == Path(cfg.bootstrap_out):
        yield f"model_path={cfg.model_path}: no such folder; {_recipe_command(cfg)} makes it"
    elif not of_hub(cfg.model_path):
        yield f"model_path={cfg.model_path}: no such folder; give a model folder or a hub name (owner/model)"
    elif not dry_run and (cfg.hardware.kind == "cpu" or not cfg.validate_):
        why = hub.silence() or "the hub has no such model, or none that you may read"
        yield (
            f"model_path={path}: not in the local cache, and {why}; on a machine with access run "
            f"hf download {path} --local-dir DIR, then set model_path=DIR"
        )
    if cfg.finetune.config_name not in (None, cfg.model_path):
        yield f"finetune.config_name={cfg.finetune.config_name}: differs from model_path; set model_path only"


def named(model: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines about the files of a model as it was given; of a hub's, with its folder and what to do there."""
    folder = model_folder(model) if of_hub(model) else None
    for line in lines:
        if folder is not None and line.startswith(said := f"model_path={folder}:"):
            line = (
                f"model_path={model}:{line.removeprefix(said)}; it is in {folder}, and hf download {model} "
            )
            line += "--force-download --local-dir DIR makes a folder that you can mend"
        yield line


def fetched_later(model: str, folder: Path, dry_run: bool) -> bool:
    """Whether a hub's model lacks files in its cached `folder` that a run fetches, a dry run not."""
    if not of_hub(model) or not (dry_run or hub.silence() is None):
        return False
    index = folder / "model.safetensors.index.json"
    lost = any(not path.exists() for path in folder.iterdir()) or (
        index.is_file() and any(_shard_problems(folder, index))
    )
    has_weights = any(any(folder.glob(pattern)) for pattern in WEIGHTS)
    return lost or not (has_weights and (folder / "tokenizer.json").is_file())


def _of_folder(cfg: Config, path: Path, dry_run: bool) -> Iterator[str]:
    if not (path / "config.json").is_file():
        remedy = "give a model folder in Hugging Face format"
        if (path / "adapter_config.json").is_file():
            remedy = (
                "it has an adapter: save the model with it merged (peft's merge_and_unload), and give that"
            )
        for trained in (path / "finetune/current", path / "current"):
            if (trained / "config.json").is_file():
                remedy = f"it is of a run, whose model is model_path={trained}"
        yield f"model_path={path}: no config.json in it; {remedy}"
        return
    later = fetched_later(cfg.model_path, path, dry_run)
    if not (dry_run or later):  # a dry run may be made elsewhere, with no more of a model than its sizes
        yield from _tokenizer(cfg, path)
        yield from _incomplete(cfg, path)
    unusable = list(unusable_files(path, config_only=later))
    yield from unusable
    if not unusable:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        yield from config_problems(cfg, config)
        if not later:
            yield from _no_end(cfg, path, config)
            yield from _token_ids(path)


def _tokenizer(cfg: Config, path: Path) -> Iterator[str]:
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        yield f"model_path={path}: no tokenizer.json in it; save the tokenizer beside the model"
    elif "actor" in cfg.debug.roles and not (path / "tokenizer.json").is_file():
        # The engines could do without, but rollout workers read this file.
        yield f"model_path={path}: no tokenizer.json in it; save the model with a fast tokenizer"


def config_problems(cfg: Config, config: dict[str, Any]) -> Iterator[str]:
    """What in `config.json` of `model_path`, a folder or a hub's name, does not go with this run."""
    path = Path(cfg.model_path)
    yield from _positions(cfg, config)
    yield from _stop_ids(cfg, config)
    yield from _names(path, config)
    if "finetune" in cfg.debug.roles:
        yield from _quantised(path, config)
        yield from _layers(path, config)
        yield from _unknown_type(path, config)
        if "actor_llm" in cfg.debug.roles:
            said = engine_kind(cfg).model_problems(of_text(config))
            yield from (f"model_path={path}: {one}" for one in said)


def _incomplete(cfg: Config, path: Path) -> Iterator[str]:
    """A folder without weights, or whose `config.json` lacks what every role reads of it."""
    if not {"finetune", "actor_llm"} & cfg.debug.roles:
        return
    if not any(any(path.glob(pattern)) for pattern in WEIGHTS):
        yield f"model_path={path}: no weights in it; copy its *.safetensors there, or save it again"
    try:
        config = json.loads((path / "config.json").read_bytes())
        needed = {"model_type": config.get("model_type")}
        needed["vocab_size"] = decoder_config(config).get("vocab_size")  # some types have one of their own
    except (ValueError, AttributeError, RecursionError):  # which is another line
        return
    if lacks := [name for name, value in needed.items() if value is None]:
        yield f"model_path={path}: config.json has no {' and no '.join(lacks)}; save the model again"


def _recipe_command(cfg: Config) -> str:
    """The command of the recipe whose result the run begins with, by its bundled preset if there is one."""
    made = f"python -m pipelinerl.bootstrap +domain={cfg.domain_name}"
    for file in sorted((conf_dir() / "preset").glob(f"{cfg.domain_name}_*.yaml")):
        if f"\nmodel_path: {cfg.model_path}\n" in file.read_text(encoding="utf-8"):
            start = " bootstrap.start=MODEL" if file.stem.endswith("_pretrained") else ""
            return f"{made} +preset={file.stem}{start}"
    return f"{made} with the keys and presets of this command"


def _positions(cfg: Config, config: dict[str, Any]) -> Iterator[str]:
    limit, key = of_text(config).get("max_position_embeddings"), engine_kind(cfg).context_key(cfg)
    if isinstance(limit, int) and cfg.engine.max_model_len > limit:
        yield (
            f"{key}={cfg.engine.max_model_len}: the model has {limit} positions; "
            f"set {key}={limit} or lower, or give a model with more"
        )


def _stop_ids(cfg: Config, config: dict[str, Any]) -> Iterator[str]:
    size = of_text(config).get("vocab_size")
    for group in ("llm", "test_llm"):
        ids = getattr(cfg, group).parameters.stop_token_ids
        if isinstance(size, int) and (unknown := [one for one in ids if one >= size]):
            yield f"{group}.parameters.stop_token_ids={ids}: the model has ids below {size}, not {unknown[0]}"


def _no_end(cfg: Config, path: Path, config: dict[str, Any]) -> Iterator[str]:
    """A model that nothing ends: every answer would be cut at its longest, and count as unfinished."""
    given, tokens = cfg.llm.parameters, path / "tokenizer_config.json"
    if "actor_llm" not in cfg.debug.roles or given.stop or given.stop_token_ids or not tokens.is_file():
        return
    ends = [config.get("eos_token_id"), of_text(config).get("eos_token_id")]
    ends.append(json.loads(tokens.read_bytes()).get("eos_token"))
    if (generation := path / "generation_config.json").is_file():
        ends.append(json.loads(generation.read_bytes()).get("eos_token_id"))
    if all(end in (None, []) for end in ends):
        yield (
            f"model_path={path}: neither config.json nor generation_config.json has an eos_token_id, and "
            "tokenizer_config.json no eos_token, so no answer would end; add one, or set "
            "llm.parameters.stop_token_ids"
        )


def _layers(path: Path, config: dict[str, Any]) -> Iterator[str]:
    """Kinds of layers and types of models that the trainer refuses; not every file names its layers."""
    kinds = of_text(config).get("layer_types")
    types = {of_text(config).get("model_type"), config.get("model_type")}
    if others := unknown_kinds(kinds if isinstance(kinds, list) else (), bool(types & {*WITH_STATES})):
        yield f"model_path={path}: {refusal(others)}; give a model without such layers"
    elif said := type_refusal(str(of_text(config).get("model_type"))):
        yield f"model_path={path}: {said}; give another model"


def _unknown_type(path: Path, config: dict[str, Any]) -> Iterator[str]:
    """A `model_type` without a class in transformers, whose text is read: importing it would import torch."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or "auto_map" in config:
        return
    files = config_fields.in_transformers("models/auto", "*.py")
    if files and not any(f'"{kind}"' in config_fields.text_of(file) for file in files):
        yield (
            f"model_path={path}: config.json says model_type={kind}, which is unknown to the installed "
            "transformers; correct it, or install a release that has it"
        )


def _names(path: Path, config: dict[str, Any]) -> Iterator[str]:
    """Activations, kinds of positions and types of numbers that do not exist, told without torch."""
    text = of_text(config)
    given = [(key, text.get(key), "activations.py") for key in ACTIVATIONS]
    for key in ("rope_parameters", "rope_scaling"):
        section = text.get(key)
        # Some have one for each kind of layer.
        parts = [section, *section.values()] if isinstance(section, dict) else []
        kinds = (part.get("rope_type", part.get("type")) for part in parts if isinstance(part, dict))
        given += [(f"rope_type of {key}", kind, "modeling_rope_utils.py") for kind in kinds]
    for key, value, file in given if "auto_map" not in config else ():
        if (
            value is not None
            and (known := config_fields.in_transformers("", file))
            and not _is_named(value, known)
        ):
            yield config_fields.wrong(path, key, value, "the installed transformers does not know")
    for key in ("dtype", "torch_dtype"):
        if (value := text.get(key, config.get(key))) is not None and value not in DTYPES:
            yield config_fields.wrong(path, key, value, f"is none of {', '.join(DTYPES[:4])}")


def _is_named(value: object, files: list[Path]) -> bool:
    """Whether one of the files, or a type of model by itself, has a text of this value."""
    if not isinstance(value, str):
        return False
    everywhere = chain(files, config_fields.in_transformers("models", "*/configuration_*.py"))
    return any(f'"{value}"' in config_fields.text_of(file) for file in everywhere)


def _token_ids(path: Path) -> Iterator[str]:
    for name in ("config.json", "generation_config.json"):
        if (path / name).is_file():
            config = json.loads((path / name).read_bytes())
            for section in (config, of_text(config)):
                value = section.get("eos_token_id")
                ids = value if isinstance(value, list) else [] if value is None else [value]
                if any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
                    yield config_fields.wrong(
                        path, "eos_token_id", value, "is no token id and no list of them", name
                    )
                    break


def _quantised(path: Path, config: dict[str, Any]) -> Iterator[str]:
    """Weights in a few bits, such as gpt-oss has in MXFP4: an engine would load no trained version."""
    given = config.get("quantization_config") or of_text(config).get("quantization_config")
    if given:
        method = given.get("quant_method", "an unknown way") if isinstance(given, dict) else given
        yield (
            f"model_path={path}: its weights are quantised ({method}), and training needs them in bfloat16; "
            "give a model in bfloat16, such as this one dequantised and saved by transformers"
        )


def of_text(config: dict[str, Any]) -> dict[str, Any]:
    """A model of text and images has what is of its text in a section of its own."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def unusable_files(folder: Path, config_only: bool = False) -> Iterator[str]:
    """One line per damaged file, or per field of `config.json` whose value no model can have."""
    damaged = list(_json_problem(folder, "config.json") if config_only else damaged_files(folder))
    yield from damaged
    if not damaged:
        yield from config_fields.problems(folder, json.loads((folder / "config.json").read_bytes()))


def damaged_files(folder: Path) -> Iterator[str]:
    """One line per JSON file that does not parse, shard that is absent and weight file that is cut."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).is_file():
            yield from _json_problem(folder, name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        yield from _shard_problems(folder, index)
    for path in sorted(folder.glob("*.safetensors")):
        if not path.exists():  # as in a hub's cache whose blobs were cleared
            yield f"model_path={folder}: {path.name} is a link to {path.readlink()}, which is not there"
            continue
        try:
            header(path)
        except ValueError as error:
            yield f"model_path={folder}: {path.name} {error}; copy or save it again"


def _json_problem(folder: Path, name: str) -> Iterator[str]:
    try:
        content = json.loads((folder / name).read_bytes())
    except (ValueError, RecursionError):
        yield f"model_path={folder}: {name} is not valid JSON; save the model again"
        return
    if not isinstance(content, dict):
        yield f"model_path={folder}: {name} holds a {type(content).__name__}, not an object; save it again"


def _shard_problems(folder: Path, index: Path) -> Iterator[str]:
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        yield f"model_path={folder}: {index.name} names no shards; save the model again"
        return
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        yield f"model_path={folder}: {len(missing)} of {len(shards)} shards are missing, first {missing[0]}"


def header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors. Raises ValueError for one that is not whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise ValueError(f"has {size} bytes and no header of a safetensors file")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            expected = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise ValueError("has a damaged header") from None
    if size != expected:
        raise ValueError(f"has {size} of {expected} bytes")
    return header
