"""From a GGUF file to a Hugging Face folder in bfloat16; called by `pipelinerl.pretrained`.

transformers reads the file; what it leaves out or does not write is done here.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedConfig

from pipelinerl.base.files import let_others_read
from pipelinerl.modeling.loading import load_causal_lm


def save_unpacked(path: Path, folder: Path) -> int:
    """Write weights, configurations and tokenizer of the file `path` into `folder`; number of parameters.

    Raises DamagedModel for a file that transformers cannot read. The tokenizer is taken for one that splits
    digits, as SmolLM2's.
    """
    options: dict[str, Any] = {"gguf_file": path.name, "dtype": torch.float32, "local_files_only": True}
    # From 5.19 on transformers can keep the weights packed, and does where it finds kernels for them.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = load_causal_lm(path.parent, **options)
    # `save_pretrained` refuses a model that was quantised, although this one is no more.
    tensors = {name: one.detach().to(torch.bfloat16).contiguous() for name, one in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    for name in ("quantization_config", "_model_name_or_path"):
        vars(config).pop(name, None)
    config.architectures, config.dtype = [type(model).__name__], torch.bfloat16
    config.save_pretrained(folder)
    let_others_read(folder)
    assert model.generation_config is not None
    model.generation_config.save_pretrained(folder)
    _save_tokenizer(path, folder, config)
    return sum(one.numel() for one in tensors.values())


def _save_tokenizer(path: Path, folder: Path, config: PreTrainedConfig) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # SmolLM2 splits every digit off before anything else (`tokenizer.ggml.pre`), which transformers does not
    # read: blank lines and blanks before a number would become other tokens than those it was trained on.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = config.max_position_embeddings
    # The tokens of the file by their ids: 5.17 takes the beginning of a turn for its end.
    for role in ("bos", "eos", "pad"):
        if (token := getattr(config, f"{role}_token_id")) is not None:
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token))
    tokenizer.init_kwargs.pop("is_local", None)  # of the file, and written out with the rest otherwise
    tokenizer.save_pretrained(folder)
