"""Sizes of a policy's layers, read from its `config.json` without torch: what memory and time follow from."""

import json
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")
ATTEND = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that have keys and values of the usual size."""
_SIZED_OTHERWISE = (
    "hybrid_override_pattern",  # Nemotron-H
    "kv_lora_rank",  # latent attention
    "mamba_d_state",  # hybrids
    "intermediate_size_mlp",  # experts that are laid out in other ways: Llama 4, ERNIE 4.5, Jamba, DBRX
    "moe_k",
    "moe_num_experts",
    "expert_layer_period",
    "ffn_config",
)
"""Keys of architectures whose weights are not counted here."""
_TIED = ("gemma", "cohere")
"""Families whose configurations leave `tie_word_embeddings` out where it is true."""

CONNECT_S = 5.0
"""For the hub to answer at all."""


@dataclass(frozen=True)
class DecoderShape:
    """Numbers of one decoder, dense or a mixture of experts."""

    layers: int
    hidden: int
    mlp: int
    """Width of a dense layer's MLP."""
    queries: int
    """Numbers of a token's queries in a layer, all heads together."""
    keys: int
    """Of its keys; its values are as many."""
    vocabulary: int
    tied: bool
    """Whether the embedding is the output head as well."""
    dense_layers: int
    """Layers with a dense MLP; the others choose between experts."""
    experts: int = 0
    """Of one layer; 0 for a dense decoder, as the following three."""
    active_experts: int = 0
    """How many of them a token passes through."""
    expert_mlp: int = 0
    """Width of one expert's MLP."""
    shared_mlp: int = 0
    """Width of the MLP that every token passes through beside its experts, all shared experts together."""
    heads: int = 0
    """Of its queries; 0 where nobody needs to know."""
    key_heads: int = 0
    """Of its keys."""

    @property
    def parameters(self) -> int:
        """Weights in matrices, those of all experts included; the others do not matter."""
        return self._count(self.experts)

    @property
    def active_parameters(self) -> int:
        """Weights in matrices that one token passes through, the whole embedding included."""
        return self._count(self.active_experts)

    def _count(self, experts: int) -> int:
        attention = self.layers * self.hidden * (2 * self.queries + 2 * self.keys)
        dense = self.dense_layers * 3 * self.hidden * self.mlp
        mixed = 3 * (experts * self.expert_mlp + self.shared_mlp) + self.experts  # the last is the router
        sparse = (self.layers - self.dense_layers) * self.hidden * mixed
        return attention + dense + sparse + self.vocabulary * self.hidden * (1 if self.tied else 2)


def model_config(model: str, ask_hub: bool) -> dict[str, Any] | None:
    """The `config.json` of a folder or hub name; None if it cannot be had.

    `ask_hub` says whether a name that is not in the local cache may be asked for over the network.
    """
    path: Path | str | None = Path(model) / "config.json"
    if not Path(model).is_dir():
        path = _of_hub(model, ask_hub)
    try:
        content = json.loads(Path(path).read_text()) if path is not None else None
    except (OSError, ValueError):  # the checks name it, or the engine will
        return None
    return content if isinstance(content, dict) else None


@cache
def hub_silence() -> str | None:
    """Why the hub cannot be asked, or None. Its own client tries for half a minute before it says so."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = urlsplit(constants.ENDPOINT)
    if getproxies().get(address.scheme):  # the proxy knows the way, and perhaps the name
        return None
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        return f"{host} does not answer ({error.strerror or error})"
    return None


@cache
def _of_hub(name: str, ask: bool) -> str | None:
    # Here, because most runs name a folder, and it takes half a second.
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str) or not ask or hub_silence() is not None:
        return cached if isinstance(cached, str) else None
    try:
        return hf_hub_download(name, "config.json")
    except Exception:  # no network, no access, no such model: the engine's own message is the better one
        return None


def _decoder(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that describes the text decoder; models that also see have several."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    key = "tie_word_embeddings"  # may be said for the whole model
    return text if key in text or key not in config else text | {key: config[key]}


def has_experts(config: dict[str, Any]) -> bool:
    """Whether layers choose between experts."""
    return _experts(_decoder(config)) > 1


def _experts(config: dict[str, Any]) -> int:
    return max(int(config.get(name) or 0) for name in _EXPERTS)


def decoder_shape(config: dict[str, Any] | None) -> DecoderShape | None:
    """The shape of a decoder whose layers all attend; None for any other, and where sizes are missing."""
    if config is None:
        return None
    config = _decoder(config)
    if {*(config.get("layer_types") or ())} - ATTEND or any(config.get(key) for key in _SIZED_OTHERWISE):
        return None
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        layers = int(config["num_hidden_layers"])
        return DecoderShape(
            layers=layers,
            hidden=hidden,
            mlp=int(config["intermediate_size"]),
            queries=heads * head,
            keys=int(config.get("num_key_value_heads") or heads) * head,
            heads=heads,
            key_heads=int(config.get("num_key_value_heads") or heads),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", str(config.get("model_type")).startswith(_TIED))),
            **(_mixture(config, layers) if has_experts(config) else {"dense_layers": layers}),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _mixture(config: dict[str, Any], layers: int) -> dict[str, int]:
    """The fields that describe experts. Raises KeyError where a size is missing."""
    expert = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    shared = next((int(config[name]) for name in _SHARED if config.get(name)), 0)
    return {
        "dense_layers": sum(_is_dense(config, layer) for layer in range(layers)),
        "experts": _experts(config),
        "active_experts": int(config["num_experts_per_tok"]),
        "expert_mlp": expert,
        "shared_mlp": shared or int(config.get("n_shared_experts") or 0) * expert,
    }


def _is_dense(config: dict[str, Any], layer: int) -> bool:
    first = int(config.get("first_k_dense_replace") or 0)
    step = int(config.get("decoder_sparse_step") or 1)
    return layer < first or layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step != 0
