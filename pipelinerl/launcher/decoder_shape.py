"""Sizes of a policy's layers, read from its `config.json` without torch: what memory and time follow from."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class DecoderShape:
    """Numbers of one dense decoder."""

    layers: int
    hidden: int
    mlp: int
    queries: int
    """Numbers of a token's queries in a layer, all heads together."""
    keys: int
    """Of its keys; its values are as many."""
    vocabulary: int
    tied: bool
    """Whether the embedding is the output head as well."""

    @property
    def parameters(self) -> int:
        """Weights in matrices; the others do not matter."""
        layer = self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.mlp)
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)


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
def _of_hub(name: str, ask: bool) -> str | None:
    # Here, because most runs name a folder, and it takes half a second.
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str) or not ask:
        return cached if isinstance(cached, str) else None
    try:
        return hf_hub_download(name, "config.json")
    except Exception:  # no network, no access, no such model: the engine's own message is the better one
        return None


def has_experts(config: dict[str, Any]) -> bool:
    """Whether layers choose between experts."""
    return any((config.get(name) or 0) > 1 for name in _EXPERTS)


def decoder_shape(config: dict[str, Any] | None) -> DecoderShape | None:
    """The shape of a dense decoder; None for any other architecture, of which nothing was measured."""
    if config is None or has_experts(config):
        return None
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        return DecoderShape(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            mlp=int(config["intermediate_size"]),
            queries=heads * head,
            keys=int(config.get("num_key_value_heads") or heads) * head,
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
