"""Models and a tokeniser small enough for tests; every harness takes them from here."""

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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


def causal_lm(
    vocab_size: int,
    *,
    hidden: int = 16,
    heads: int = 2,
    kv_heads: int = 1,
    positions: int = 128,
    tied: bool = True,
    eos: int | None = None,
    spread: float = 0.3,
    seed: int = 0,
) -> "PreTrainedModel":
    """A random Qwen3 of two layers; the larger `spread`, the further its distributions are from uniform."""
    import torch  # tests of processes that must not load it import this module too
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=2,
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
