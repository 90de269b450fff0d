"""Weights beside a `config.json` that they do not fit, told by the headers of the weight files alone.

Called before a start: engines and trainer find the same when they have loaded the model. Not one of `checks`,
because those import nothing of the launcher.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pipelinerl.base.hub import model_folder
from pipelinerl.launcher.checks.config_fields import declared
from pipelinerl.launcher.checks.data import header, of_text, unusable_files
from pipelinerl.launcher.decoder_shape import decoder_shape
from pipelinerl.modeling.decoder_defaults import decoder_config
from pipelinerl.modeling.layer_kinds import OF_LAYER, cut_short, other_depth

Headers = Mapping[str, dict[str, Any]]
"""By name of a safetensors file, what it says of its tensors."""


def check(model: str) -> Iterator[str]:
    """One line for each way in which a model's weights, if here, do not fit; none where others are said."""
    folder = model_folder(model)
    if folder is None or not (folder / "config.json").is_file() or any(unusable_files(folder)):
        return
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = sorted(folder.glob("*.safetensors"))
    yield from misfits(folder, config, {file.name: header(file) for file in files})


def misfits(path: Path, config: dict[str, Any], headers: Headers) -> Iterator[str]:
    """What does not fit in the model of `path`, one line each."""
    for found in (_shapes, _head, _depth):
        yield from found(path, config, headers)


def _shapes(path: Path, config: dict[str, Any], headers: Headers) -> Iterator[str]:
    """Weights beside a `config.json` of other sizes, as far as these tensors tell; one line for all.

    A size that it leaves out is transformers' own for the type.
    """
    vocabulary = decoder_config(config).get("vocab_size")
    wanted = {"embed_tokens.weight": [vocabulary, _size(config, "hidden_size")[1]]}
    if (shape := decoder_shape(config)) is not None:
        wanted |= {
            "self_attn.q_proj.weight": [shape.queries * (1 + shape.gated), shape.hidden],
            "self_attn.k_proj.weight": [shape.keys, shape.hidden],
        }
        if not shape.experts:
            wanted["mlp.down_proj.weight"] = [shape.hidden, shape.mlp]
    for file, tensors in headers.items():
        for name, entry in tensors.items():
            in_layer = OF_LAYER.fullmatch(name)  # not a layer of a part that sees
            sizes = wanted.get(in_layer[2] if in_layer else ".".join(name.split(".")[-2:]))
            if sizes and None not in sizes and entry.get("shape") != sizes:
                yield (
                    f"model_path={path}: {name} of {file} has shape {entry.get('shape')}, config.json "
                    f"wants {sizes}; they belong to different models"
                )
                return


def _head(path: Path, config: dict[str, Any], headers: Headers) -> Iterator[str]:
    """An output head of its own that the weights lack, so that it would begin at random."""
    names = [name.split(".")[-2:] for name in chain.from_iterable(headers.values())]
    untied = decoder_config(config).get("tie_word_embeddings") is False
    if untied and ["embed_tokens", "weight"] in names and ["lm_head", "weight"] not in names:
        yield (
            f"model_path={path}: no lm_head.weight in its weights, config.json says "
            "tie_word_embeddings=false; set true there, or save the model again"
        )


def _depth(path: Path, config: dict[str, Any], headers: Headers) -> Iterator[str]:
    """Weights of a deeper model, whose further layers would be left out, or of one with too few layers."""
    key, count = _size(config, "num_hidden_layers")
    names = chain.from_iterable(headers.values())
    if isinstance(count, int) and (found := other_depth(names, count)) is not None:
        if of_text(config).get(key) is not None:
            yield f"model_path={path}: {cut_short(found, count, key)}"
        else:
            yield (
                f"model_path={path}: its weights are of {found} layers, config.json has no {key}, and "
                f"transformers takes {count}; set {found} there"
            )


def _size(config: dict[str, Any], key: str) -> tuple[str, Any]:
    """How a `config.json` of this type calls the size `key`, and its value, or else transformers' default.

    That default stands in our table, or in the text of the class.
    """
    text = decoder_config(config)
    if text.get(key) is not None:
        return key, text[key]
    of = declared(str(text.get("model_type")))
    key = of.names.get(key, key)
    return key, text.get(key) or of.defaults.get(key)
