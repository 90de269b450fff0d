"""A small byte-level BPE tokenizer trained on a domain's own prompts.

Digits are always single tokens, so a number reads the same wherever it stands. Fixed pieces of the
domain's formats (JSON skeletons, short document names) become single added tokens, so that a structured
answer costs a handful of decoding steps.
"""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipelinerl.extras.bootstrap.formats import CHAT_TEMPLATE, END, PAD, SPECIAL_TOKENS

# A word with its leading space, one digit, a run of punctuation, or white space.
_PIECES = r" ?[A-Za-z']+|\d| ?[^\sA-Za-z'\d]+|\s+(?!\S)|\s+"


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, added_tokens: Sequence[str] = (), max_length: int = 1024
) -> PreTrainedTokenizerFast:
    """Train on `texts`; the result has at most `vocab_size` entries, added tokens included.

    Raises ValueError when `vocab_size` cannot hold the bytes and the added tokens.
    """
    pieces = list(dict.fromkeys(added_tokens))
    learned = vocab_size - len(pieces)
    if learned < 256 + len(SPECIAL_TOKENS):
        raise ValueError(
            f"vocab_size={vocab_size} is too small: 256 bytes, {len(SPECIAL_TOKENS)} special and "
            f"{len(pieces)} added tokens need at least {len(pieces) + 256 + len(SPECIAL_TOKENS)}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=learned,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without(texts, pieces), trainer)
    tokenizer.add_tokens(
        [AddedToken(p, normalized=False, special=False, single_word=p.isalnum()) for p in pieces]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=max_length,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _without(texts: Iterable[str], pieces: Sequence[str]) -> Iterable[str]:
    """The texts cut at added tokens: merges that can never be used would waste vocabulary."""
    longest_first = sorted(pieces, key=len, reverse=True)
    for text in texts:
        for piece in longest_first:
            text = text.replace(piece, "\n")
        yield text
