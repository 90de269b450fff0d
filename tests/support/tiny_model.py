"""Models and a tokeniser small enough for tests; every harness takes them from here."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipelinerl.base import hub

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}<e>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
SPECIAL = ["<e>", "<u>", "<a>", "<s>", "<unk>"]


def build_tokenizer(more: str = "") -> PreTrainedTokenizerFast:
    """One token per character, those of `more` too, and a chat template."""
    characters = sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -?.:\n" + more))
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<e>",
        unk_token="<unk>",
        additional_special_tokens=["<u>", "<a>", "<s>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_model(folder: Path, more: str = "") -> Path:
    """A model folder with a tokeniser and without weights."""
    build_tokenizer(more).save_pretrained(str(folder))
    return folder


def hub_snapshot(monkeypatch: pytest.MonkeyPatch, cache: Path, name: str) -> Path:
    """An empty folder for the files of a hub's name in a cache that this process uses, without a network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "silence", lambda: "HF_HUB_OFFLINE is set")
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0123")
    (snapshot := repository / "snapshots/0123").mkdir(parents=True)
    return snapshot


def causal_lm(
    vocab_size: int,
    *,
    hidden: int = 16,
    heads: int = 2,
    kv_heads: int = 1,
    layers: int = 2,
    positions: int = 128,
    tied: bool = True,
    eos: int | None = None,
    spread: float = 0.3,
    seed: int = 0,
) -> "PreTrainedModel":
    """A random Qwen3; the larger `spread`, the further its distributions are from uniform."""
    import torch  # tests of processes that must not load it import this module too
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=2 * hidden,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        initializer_range=spread,
        eos_token_id=eos,
        bos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def mixture_lm(vocab_size: int, *, hidden: int = 64, spread: float = 0.1, seed: int = 0) -> "PreTrainedModel":
    """A random Qwen3-MoE of four layers; a token passes through two of eight experts in each."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        moe_intermediate_size=hidden // 2,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=spread,
    )
    return Qwen3MoeForCausalLM(config)


HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
"""Families with gated DeltaNets in three of four layers."""
HEADS_OF_STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}


def hybrid_lm(
    family: str,
    vocab_size: int,
    *,
    sees: bool = False,
    eos: int | None = None,
    seed: int = 0,
    **fields: object,
) -> "PreTrainedModel":
    """A random model of four layers of a family of HYBRIDS; the class that `sees` too, of Qwen3.5's.

    Weights are spread so that states matter: decays differ by head, and norms are not what they begin with.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(seed)
    text: dict[str, object] = HEADS_OF_STATES | {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.1,  # at 0.2 rounding grows a hundredfold from layer to layer
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": None,
        **fields,
    }
    if not family.endswith("moe") and family != "qwen3_next":
        text = {name: value for name, value in text.items() if "expert" not in name and "moe" not in name}
    if sees:
        sight: dict[str, object] = {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "patch_size": 4,
        }
        sight |= {"out_hidden_size": text["hidden_size"], "num_position_embeddings": 16}
        tokens = {
            f"{kind}_token_id": vocab_size - 1 for kind in ("image", "video", "vision_start", "vision_end")
        }
        config = AutoConfig.for_model(family, text_config=text, vision_config=sight, **tokens)
        model = AutoModelForImageTextToText.from_config(config)
    else:
        config = AutoConfig.for_model(family if family == "qwen3_next" else f"{family}_text", **text)
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "dt_bias")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model  # type: ignore[no-any-return]
