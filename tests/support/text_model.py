"""A random model with a tokeniser of bytes and a chat template that knows tools."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.tiny_model import causal_lm

SPECIAL = ["<|end|>", "<|start|>"]
TEMPLATE = (
    "{% if tools %}<|start|>system\nTools, called as <tool_call>{JSON}</tool_call>:\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if not thinks | default(true) %}none{% endif %}{% endif %}"
)


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One id per byte, and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def build_text_model(folder: Path) -> Path:
    """Weights, tokeniser and template in one folder."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(str(folder))
    shape: dict[str, Any] = {"hidden": 64, "heads": 4, "kv_heads": 2, "positions": 4096, "spread": 0.15}
    causal_lm(len(tokenizer), **shape, eos=tokenizer.eos_token_id).save_pretrained(folder)
    return folder
