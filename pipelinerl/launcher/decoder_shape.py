"""Sizes of a policy's layers, read from its `config.json` without torch: what memory and time follow from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelinerl.base.hub import model_folder
from pipelinerl.launcher.checks.config_fields import problems
from pipelinerl.modeling.decoder_defaults import (
    DEFAULTS,
    FOUR_NORMS,
    POLICY_SEES,
    QWEN_VISION,
    SIGLIP,
    TEXT_PART,
    UNCOUNTED,
    UNGATED,
    decoder_config,
)
from pipelinerl.modeling.layer_kinds import EXPERTS

_SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")
ATTEND = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that have keys and values of the usual size."""
LINEAR = "linear_attention"
_SIZED_OTHERWISE = (
    "hybrid_override_pattern",  # Nemotron-H
    "mamba_d_state",  # hybrids
    "intermediate_size_mlp",  # experts that are laid out in other ways: Llama 4, ERNIE 4.5, Jamba, DBRX
    "moe_k",
    "moe_num_experts",
    "expert_layer_period",
    "ffn_config",
    "hidden_size_per_layer_input",  # Gemma 3n and 4: embeddings of each layer, heads of several sizes
    "per_layer_config",
    "type_vocab_size",  # encoders
)
"""Keys of architectures whose weights are not counted here."""
_LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
"""Types of latent attention that can be trained."""
_TIED = ("gemma", "cohere")
"""Families whose configurations leave `tie_word_embeddings` out where it is true."""


@dataclass(frozen=True)
class LinearShape:
    """Layers of gated DeltaNet: a request has a state of fixed size there instead of keys and values."""

    layers: int
    keys: int
    """Numbers of a token's keys in a layer, all heads together; its queries are as many."""
    values: int
    key_heads: int
    value_heads: int
    kernel: int
    """Tokens that the convolution before it looks at."""
    state_bytes_per_number: int | None = None
    """Of its matrices in an engine; None: as the model's."""

    @property
    def mixed(self) -> int:
        """Numbers of a token that go through the convolution."""
        return 2 * self.keys + self.values

    @property
    def state(self) -> int:
        """Numbers of a request's matrices in a layer, one for each value head."""
        return self.keys // self.key_heads * self.values

    def parameters(self, hidden: int) -> int:
        """Of one layer: in, gate, the two scalars of each value head, convolution and out."""
        projections = hidden * (self.mixed + 2 * self.values + 2 * self.value_heads)
        return projections + self.mixed * self.kernel


@dataclass(frozen=True)
class LatentShape:
    """Latent attention: a token's keys and values are made of `rank` numbers, for all heads together.

    DeepSeek-V2's paper, section 2.1. Engines keep these and the keys with positions, which heads share too.
    """

    rank: int
    rope: int
    """Numbers of a head's queries and keys that positions rotate."""
    nope: int
    """Those that they do not."""
    value: int
    """Of a head's values."""
    query_rank: int = 0
    """Queries are made of so many numbers; 0: of the hidden state itself."""

    @property
    def cached(self) -> int:
        """Numbers of a token in a layer that an engine keeps."""
        return self.rank + self.rope

    def parameters(self, hidden: int, heads: int) -> int:
        """Of one layer: queries, the narrow numbers, keys and values of them, and out."""
        wide = heads * (self.nope + self.rope)
        queries = self.query_rank * (hidden + wide) if self.query_rank else hidden * wide
        return (
            queries
            + hidden * self.cached
            + heads * (self.rank * (self.nope + self.value) + self.value * hidden)
        )


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
    latent: LatentShape | None = None
    """What all keys and values are made of; `keys` are then the expanded ones of trainers, and values are
    filled up to their width."""
    linear: LinearShape | None = None
    """Those of its layers that have a state instead of keys and values."""
    gated: bool = False
    """Whether the other layers have a gate beside their queries, as wide as those."""
    windowed: int = 0
    """Layers that look back `window` tokens at most."""
    window: int = 0
    norms: int = 2
    """Of a layer, over its whole width."""
    mlp_matrices: int = 3
    """Of a dense MLP: in, gate and out; 2 without a gate."""
    vision: int = 0
    """Numbers of the part that sees, which an engine loads beside the decoder."""
    policy_sees: bool = False
    """Whether the trainer's model has that part as well, frozen."""

    @property
    def attending(self) -> int:
        """Layers that have keys and values."""
        return self.layers - (self.linear.layers if self.linear else 0)

    @property
    def parameters(self) -> int:
        """Weights in matrices of the decoder, those of all experts included; the others do not matter."""
        return self._count(self.experts)

    @property
    def policy_parameters(self) -> int:
        """Weights in matrices of the model that transformers loads, and that travels."""
        return self.parameters + self.frozen

    @property
    def frozen(self) -> int:
        """Weights of the trainer's model that are not trained."""
        return self.vision if self.policy_sees else 0

    @property
    def served_parameters(self) -> int:
        """Weights in matrices of what an engine loads."""
        return self.parameters + self.vision

    @property
    def active_parameters(self) -> int:
        """Weights in matrices that one token passes through, the whole embedding included."""
        return self._count(self.active_experts)

    def _count(self, experts: int) -> int:
        attention = self.hidden * ((2 + self.gated) * self.queries + 2 * self.keys)
        if self.latent is not None:
            attention = self.latent.parameters(self.hidden, self.heads)
        attention *= self.attending
        if self.linear is not None:
            attention += self.linear.layers * self.linear.parameters(self.hidden)
        dense = self.dense_layers * self.mlp_matrices * self.hidden * self.mlp
        mixed = 3 * (experts * self.expert_mlp + self.shared_mlp) + self.experts  # the last is the router
        sparse = (self.layers - self.dense_layers) * self.hidden * mixed
        return attention + dense + sparse + self.vocabulary * self.hidden * (1 if self.tied else 2)


def model_config(model: str, ask_hub: bool) -> dict[str, Any] | None:
    """The `config.json` of a folder or hub name; None if it cannot be had, or has values that none may have.

    `ask_hub` says whether a name that is not in the local cache may be asked for over the network.
    """
    folder = model_folder(model, ask_hub)
    try:
        content = None if folder is None else json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the checks name it, or the engine will
        return None
    if not isinstance(content, dict) or any(problems(Path(model), content)):
        return None
    return content


def has_states(config: dict[str, Any] | None) -> bool:
    """Whether layers are gated DeltaNets of a type that can be trained."""
    try:
        text = decoder_config(config or {})
        return _is_delta_net(text) and LINEAR in _kinds(text, int(text["num_hidden_layers"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # the checks name it
        return False


def _is_delta_net(text: dict[str, Any]) -> bool:
    return "linear_num_value_heads" in DEFAULTS.get(str(text.get("model_type")), {})


def has_experts(config: dict[str, Any]) -> bool:
    """Whether layers choose between experts."""
    return _experts(decoder_config(config)) > 1


def _experts(config: dict[str, Any]) -> int:
    return max(int(config.get(name) or 0) for name in EXPERTS)


def decoder_shape(config: dict[str, Any] | None) -> DecoderShape | None:
    """The shape of a decoder whose layers attend, or are gated DeltaNets; None for any other, and where sizes
    are missing."""
    if config is None:
        return None
    whole, config = config, decoder_config(config)
    kind = str(config.get("model_type"))
    if {kind, whole.get("model_type")} & {*UNCOUNTED} or any(config.get(key) for key in _SIZED_OTHERWISE):
        return None
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        latent = _latent(config) if config.get("kv_lora_rank") else None
        head = int(config.get("head_dim") or hidden // heads) if latent is None else latent.nope + latent.rope
        layers = int(config["num_hidden_layers"])
        kinds = _kinds(config, layers)
        if {*kinds} - ATTEND - {LINEAR}:
            return None
        linear = _linear(config, kinds.count(LINEAR)) if LINEAR in kinds else None
        windowed = kinds.count("sliding_attention")
        key_heads = int(config.get("num_key_value_heads") or heads) if latent is None else heads
        return DecoderShape(
            layers=layers,
            hidden=hidden,
            mlp=int(config.get("intermediate_size") or config["moe_intermediate_size"]),
            queries=heads * head,
            keys=key_heads * head,
            heads=heads,
            key_heads=key_heads,
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", kind.startswith(_TIED))),
            latent=latent,
            linear=linear,
            gated=linear is not None,
            windowed=windowed,
            window=int(config["sliding_window"]) if windowed else 0,
            norms=4 if kind in FOUR_NORMS else 2,
            mlp_matrices=2 if kind in UNGATED else 3,
            vision=_vision(whole, hidden),
            policy_sees=whole.get("model_type") in POLICY_SEES,
            **(_mixture(config, layers) if has_experts(config) else {"dense_layers": layers}),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _kinds(config: dict[str, Any], layers: int) -> list[str]:
    """What each layer is, as transformers completes it where `layer_types` is left out."""
    if given := config.get("layer_types"):
        return [str(kind) for kind in given[:layers]]
    full, every = "full_attention", config.get("full_attention_interval")
    if every and "linear_num_value_heads" in config:
        return [LINEAR if (layer + 1) % int(every) else full for layer in range(layers)]
    windows = config.get("use_sliding_window", not str(config.get("model_type")).startswith("qwen"))
    if not config.get("sliding_window") or not windows:
        return [full] * layers
    if every := config.get("sliding_window_pattern") or config.get("_sliding_window_pattern"):
        return ["sliding_attention" if (layer + 1) % int(every) else full for layer in range(layers)]
    first = int(config.get("max_window_layers") or 0)  # Qwen's: those from there on
    return [full if layer < first else "sliding_attention" for layer in range(layers)]


def _linear(config: dict[str, Any], layers: int) -> LinearShape:
    """Gated DeltaNets of Qwen. Raises KeyError for linear attention of other types."""
    if not _is_delta_net(config):
        raise KeyError("model_type")
    key_heads, value_heads = int(config["linear_num_key_heads"]), int(config["linear_num_value_heads"])
    return LinearShape(
        layers=layers,
        keys=key_heads * int(config["linear_key_head_dim"]),
        values=value_heads * int(config["linear_value_head_dim"]),
        key_heads=key_heads,
        value_heads=value_heads,
        kernel=int(config["linear_conv_kernel_dim"]),
        state_bytes_per_number=4 if config.get("mamba_ssm_dtype") == "float32" else None,
    )


def _latent(config: dict[str, Any]) -> LatentShape:
    """Raises KeyError for latent attention of other types, such as one of two attentions in a layer."""
    if config.get("model_type") not in _LATENT:
        raise KeyError("model_type")
    return LatentShape(
        rank=int(config["kv_lora_rank"]),
        rope=int(config["qk_rope_head_dim"]),
        nope=int(config["qk_nope_head_dim"]),
        value=int(config["v_head_dim"]),
        query_rank=int(config.get("q_lora_rank") or 0),
    )


def _vision(config: dict[str, Any], hidden: int) -> int:
    """Numbers of the part that sees, for the types whose decoder has a shape here; 0 for a decoder alone.

    Other types are counted by their layers, which are nearly all of it.
    """
    given = config.get("vision_config")
    if not isinstance(config.get("text_config"), dict) or not isinstance(given, dict):
        return 0
    if config.get("model_type") == "gemma3":
        one = {**SIGLIP, **given}
        wide, patch = int(one["hidden_size"]), int(one["patch_size"])
        patches = (int(one["image_size"]) // patch) ** 2
        ends = wide * (int(one["num_channels"]) * patch**2 + patches + hidden)
        return int(one["num_hidden_layers"]) * 2 * wide * (2 * wide + int(one["intermediate_size"])) + ends
    one = {**(QWEN_VISION if config.get("model_type") in TEXT_PART else {}), **given}
    wide, layers = (
        int(one.get("hidden_size") or 0),
        int(one.get("depth") or one.get("num_hidden_layers") or 0),
    )
    merged = wide * int(one.get("spatial_merge_size") or 1) ** 2
    patch = int(one.get("in_channels") or 3) * int(one.get("temporal_patch_size") or 1)
    patch *= int(one.get("patch_size") or 0) ** 2
    ends = wide * (patch + int(one.get("num_position_embeddings") or 0))
    ends += merged * (merged + int(one.get("out_hidden_size") or hidden))
    return layers * 2 * wide * (2 * wide + int(one.get("intermediate_size") or 4 * wide)) + ends


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
    if given := config.get("mlp_layer_types"):
        return bool(given[layer] == "dense")
    first = int(config.get("first_k_dense_replace") or 0)
    step = int(config.get("decoder_sparse_step") or 1)
    return layer < first or layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step != 0
