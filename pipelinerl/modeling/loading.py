"""Loading a model that is whole: nothing is invented for a tensor that is missing or has another shape."""

import logging
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from pipelinerl.base.errors import printable

log = logging.getLogger(__name__)


class DamagedModel(ValueError):
    """A model folder that cannot be loaded as it is; the message is one line."""


def load_causal_lm(path: str | Path, **options: Any) -> PreTrainedModel:
    """A causal LM in the class that saved it, so that tensors keep the names by which engines know them.

    Options are those of `from_pretrained`. Raises DamagedModel naming the path and the cause.
    """
    report = logging.getLogger("transformers.modeling_utils")
    report.addFilter(_no_table)
    transformers.utils.logging.disable_progress_bar()
    try:
        model, info = _auto_class(path, options).from_pretrained(
            str(path), output_loading_info=True, ignore_mismatched_sizes=True, **options
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
    _refuse(path, info)
    return model  # type: ignore[no-any-return]


def _auto_class(path: str | Path, options: dict[str, Any]) -> Any:
    """transformers loads some models that also see as their decoder alone, with the names of a decoder."""
    if "gguf_file" in options:  # holds a decoder, and its configuration
        return AutoModelForCausalLM
    asked = {name: options[name] for name in ("trust_remote_code", "local_files_only") if name in options}
    config = AutoConfig.from_pretrained(str(path), **asked)
    saved, sees = (config.architectures or [None])[0], AutoModelForImageTextToText._model_mapping
    if type(config) in sees and saved == sees[type(config)].__name__:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def _no_table(record: logging.LogRecord) -> bool:
    """Leaves out the table of tensors that do not fit; the first of them is named in one line instead."""
    return "LOAD REPORT" not in record.getMessage()


def _refuse(path: str | Path, info: dict[str, Any]) -> None:
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
    if info["unexpected_keys"]:
        log.warning("%s: %d tensors are not used", path, len(info["unexpected_keys"]))
