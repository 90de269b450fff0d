"""A tokeniser of characters with a chat template, saved as a model folder without weights."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}<e>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
SPECIAL = ["<e>", "<u>", "<a>", "<s>", "<unk>"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    characters = sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -?.:\n"))
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


def save_model(folder: Path) -> Path:
    build_tokenizer().save_pretrained(str(folder))
    return folder
