"""Loading a model that is whole: nothing is invented for a tensor that is missing or has another shape."""

import json
import logging
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils import cached_file

from pipelinerl.base.errors import printable
from pipelinerl.base.hub import model_folder
from pipelinerl.base.logs import REMARK
from pipelinerl.modeling.layer_kinds import cut_short, other_depth

log = logging.getLogger(__name__)

ALIGNMENT = 64
"""Bytes; torch's own allocator gives every tensor an address that is a multiple of it."""
_OF_WEIGHTS = ("dtype", "torch_dtype", "quantization_config")
"""Keys of `config.json` about the weights beside it, which are others in a checkpoint."""


class DamagedModel(ValueError):
    """A model folder that cannot be loaded as it is; the message is one line."""


def load_causal_lm(path: str | Path, **options: Any) -> PreTrainedModel:
    """A causal LM in the class that saved it, so that tensors keep the names by which engines know them.

    Options are those of `from_pretrained`. Tensors of the host lie at multiples of ALIGNMENT, whatever file
    they are from. Raises DamagedModel naming the path and the cause.
    """
    report = logging.getLogger("transformers.modeling_utils")
    report.addFilter(_no_table)
    transformers.utils.logging.disable_progress_bar()
    try:
        kind, known = _auto_class(path, options)
        model, info = kind.from_pretrained(
            str(path), output_loading_info=True, ignore_mismatched_sizes=True, **known, **options
        )
    except Exception as error:
        cause = f"{type(error).__name__}: {printable(' '.join(str(error).split())[:200])}"
        if type(error).__name__ == "UnpicklingError":  # torch advises to load it with the checks turned off
            cause = (
                "a weight file is damaged, or holds more than tensors and would run code; "
                "save the model again, with save_pretrained, as safetensors"
            )
        raise DamagedModel(f"{path}: cannot be loaded ({cause})") from error
    finally:
        report.removeFilter(_no_table)
    _refuse(path, info, model)
    _align(model)
    return model  # type: ignore[no-any-return]


def _align(model: PreTrainedModel) -> None:
    """Copy every tensor of the host that lies at another address than torch would have given it.

    A file whose type needs no conversion is mapped into memory, and its header's length decides where tensors
    lie in it. MKL's products sum in another order at some addresses, so equal weights of two files, as of a
    model and of a checkpoint, would give other last bits.
    """
    for one in chain(model.parameters(), model.buffers()):
        if one.device.type == "cpu" and one.data_ptr() % ALIGNMENT:
            # `.data` keeps the parameter itself, and with it what is tied to it.
            one.data = one.data.clone()


def left_out(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Tensors in the folder of a model for which its class has no module, as they are there.

    transformers knows their names and passes over them without a word: predictors of further tokens
    (`mtp.*` of Qwen3-Next and Qwen3.5, the last layer of DeepSeek V3), with which engines may speculate. Of a
    layer that the model has nothing is taken, whatever it is called in the folder.
    """
    patterns = [re.compile(one) for one in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    modules = {name for name, _ in model.named_modules()}
    found: dict[str, torch.Tensor] = {}
    for file in _weight_files(model.name_or_path) if patterns and model.name_or_path else ():
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                if any(one.search(name) for one in patterns) and _owner(name) not in modules:
                    found[name] = tensors.get_tensor(name)
    return found


def _owner(name: str) -> str:
    """The layer that a tensor belongs to, or the outermost module."""
    layer = re.match(r".*?\.\d+(?=\.)", name)
    return layer[0] if layer else name.partition(".")[0]


def keep_keys(model: PreTrainedModel, folder: Path) -> None:
    """Add to the `config.json` that was saved in `folder` what the model's own says in keys that it lacks.

    Versions of transformers differ in names: from 5 on one key stands for `rope_theta`, `rope_scaling` and
    the like. Earlier ones, and servers built on them, would take their defaults without a word.
    """
    of_model = model_folder(model.name_or_path) if model.name_or_path else None
    if of_model is None or not (own := of_model / "config.json").is_file():
        return  # built in memory, or its folder was removed meanwhile
    path = folder / "config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    _add_keys(saved, json.loads(own.read_text(encoding="utf-8")))
    path.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")


def _add_keys(saved: dict[str, Any], own: dict[str, Any]) -> None:
    for key, value in own.items():
        if key not in saved and key not in _OF_WEIGHTS:
            saved[key] = value
        elif isinstance(value, dict) and isinstance(inner := saved.get(key), dict):
            _add_keys(inner, value)


def _weight_files(path: str) -> Iterator[Path]:
    """The safetensors files of a folder or of a model in the hub's cache; none where there are none."""

    def at(name: str) -> Path | None:
        known = {"_raise_exceptions_for_missing_entries": False, "local_files_only": True}
        found = cached_file(path, name, **known)
        return None if found is None else Path(found)

    if (index := at("model.safetensors.index.json")) is not None:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        yield from (one for name in names if (one := at(name)) is not None)
    elif (whole := at("model.safetensors")) is not None:
        yield whole


def _auto_class(path: str | Path, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class that loads a model, and its configuration as an option where it is known by then.

    transformers loads some models that also see as their decoder alone, with the names of a decoder.
    """
    if "gguf_file" in options:  # holds a decoder, and its configuration
        return AutoModelForCausalLM, {}
    asked = {name: options[name] for name in ("trust_remote_code", "local_files_only") if name in options}
    config = AutoConfig.from_pretrained(str(path), **asked)
    saved, sees = (config.architectures or [None])[0], AutoModelForImageTextToText._model_mapping
    if type(config) in sees and saved == sees[type(config)].__name__:
        return AutoModelForImageTextToText, {"config": config}
    return AutoModelForCausalLM, {"config": config}


def _no_table(record: logging.LogRecord) -> bool:
    """Leaves out the table of tensors that do not fit; the first of them is named in one line instead."""
    return "LOAD REPORT" not in record.getMessage()


def _refuse(path: str | Path, info: dict[str, Any], model: PreTrainedModel) -> None:
    different = sorted(info["mismatched_keys"])
    if different:
        name, saved, wanted = different[0]
        raise DamagedModel(
            f"{path}: {name} has shape {list(saved)}, config.json wants {list(wanted)} "
            f"({len(different)} tensors differ); weights and config.json belong to different models"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise DamagedModel(
            f"{path}: {missing[0]} is missing ({len(missing)} tensors in all); save the model again"
        )
    unused = sorted(info["unexpected_keys"])
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    if count is not None and (found := other_depth([*unused, *model.state_dict()], count)) is not None:
        raise DamagedModel(f"{path}: {cut_short(found, count)}")
    if unused:
        log.warning("%s: %d tensors are not used, first %s", path, len(unused), unused[0], extra=REMARK)
