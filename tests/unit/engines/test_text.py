"""Text of a sequence while its ids arrive."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from pipelinerl.async_llm import ended_text
from pipelinerl.base.tokenizing import encode
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.openai.text import OutputText, token_bytes
from tests.support.text_model import byte_tokenizer

TOKENIZER = byte_tokenizer()
BACKEND = TOKENIZER.backend_tokenizer


def feed(output: OutputText, ids: list[int]) -> tuple[list[str], str | None]:
    """Pieces as they are handed out, and the stop string that ended the text."""
    pieces, stop = [], None
    for token in ids:
        stop = output.add(token, ends=False)
        pieces.append(output.take())
        if stop:
            break
    output.close()
    return [*pieces, output.take()], stop


def ids_of(text: str) -> list[int]:
    return encode(TOKENIZER, text).tolist()


def test_pieces_join_to_what_the_tokeniser_decodes() -> None:
    for ids in (ids_of("añb 中文 🙂."), ids_of("🙂")[:2], list(range(2, 258)), ids_of("é")[1:] * 9, []):
        output = OutputText(BACKEND, SamplingFields())
        pieces, _ = feed(output, ids)
        assert "".join(pieces) == output.text == BACKEND.decode(ids), ids


@pytest.mark.parametrize(
    "sampled",
    [
        "é\ufffdé".encode(),  # the character that also stands for what is none
        b"\xf0\x9f\x99" + "🙂".encode(),  # an emoji behind the beginning of another
        b"\xc3\xe2\x82" + "中é".encode(),
        b"\x82\x82\x82" + "👩\u200d👧e\u0301".encode(),
    ],
)
def test_a_character_behind_bytes_that_are_none_is_whole(sampled: bytes) -> None:
    id_of = {token_bytes(BACKEND, token): token for token in range(2, 258)}
    output = OutputText(BACKEND, SamplingFields())
    pieces, _ = feed(output, [id_of[bytes([byte])] for byte in sampled])
    assert "".join(pieces) == output.text == sampled.decode(errors="replace")


def with_byte_fallback() -> Tokenizer:
    """As Llama 2 and Gemma: words, and a byte each for what is no word."""
    names = ["<unk>", "</s>", "\u2581", "\u2581a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    words = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([*words, decoders.Strip(" ", 1, 0)])
    return tokenizer


@pytest.mark.parametrize("tokenizer", [BACKEND, with_byte_fallback()], ids=["bytes", "byte fallback"])
def test_no_later_id_changes_text_that_was_handed_out(tokenizer: Tokenizer) -> None:
    rng, special = random.Random(0), [0, 1]
    every = [*range(2, tokenizer.get_vocab_size()), *special * 20]
    of_emoji = [one for one in every if token_bytes(tokenizer, one)[:1] in (b"\xf0", b"\x9f", b"\x99", b"A")]
    for _ in range(1500):
        ids = rng.choices(rng.choice((every, [*of_emoji, 0])), k=rng.randint(1, 30))
        skip = rng.random() < 0.5
        output, sent = OutputText(tokenizer, SamplingFields(skip_special_tokens=skip)), ""
        for token in ids[:-1]:
            output.add(token, ends=False)
            sent += output.take()
        of_model = SimpleNamespace(backend_tokenizer=tokenizer)
        whole = ended_text(of_model, np.array(ids), None, skip_special=skip)
        assert whole.startswith(sent), (ids, sent, whole)
        if "\ufffd" not in whole:
            assert whole == tokenizer.decode(ids, skip_special_tokens=skip)


def test_no_piece_ends_in_the_middle_of_a_character() -> None:
    pieces, _ = feed(OutputText(BACKEND, SamplingFields()), ids_of("a🙂é"))
    assert [one for one in pieces if one] == ["a", "🙂", "é"]


@pytest.mark.parametrize("text", ["añb 中文 🙂\ufffd.", "\n\t é\u2028\x7f\xad"])
def test_bytes_of_ids_join_to_those_of_the_text(text: str) -> None:
    found = [token_bytes(BACKEND, token) for token in ids_of(text)]
    assert b"".join(found) == text.encode()
    assert found[0] == text.encode()[:1]  # its vocabulary is one of bytes
    end = encode(TOKENIZER, "<|end|>").tolist()
    assert [token_bytes(BACKEND, token) for token in [*end, 10**6]] == [b"<|end|>", b""]


def test_bytes_of_ids_that_fall_back_to_bytes() -> None:
    """As Llama 2 and Mistral write them."""
    names = ["<unk>", "\u2581the", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    ids = [1, 2, *(3 + byte for byte in "🙂".encode())]
    assert b"".join(token_bytes(tokenizer, token) for token in ids) == " theé🙂".encode()
    assert token_bytes(tokenizer, ids[2]) == b"\xf0"


def test_a_stop_string_ends_the_text_before_or_behind_it() -> None:
    for include, expected in ((False, "one "), (True, "one STOP")):
        output = OutputText(BACKEND, SamplingFields(stop=["STOP", "zzz"], include_stop_str_in_output=include))
        pieces, stop = feed(output, ids_of("one STOP two"))
        assert (stop, output.text, "".join(pieces)) == ("STOP", expected, expected)


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    output = OutputText(BACKEND, SamplingFields(stop="abc"))
    pieces, stop = feed(output, ids_of("xabab"))
    assert stop is None
    assert pieces == ["", "", "x", "a", "b", "ab"]


def test_a_stop_string_that_begins_before_min_tokens_and_ends_behind_them_counts() -> None:
    output = OutputText(BACKEND, SamplingFields(stop=["ab", "xa"], min_tokens=2))
    assert [output.add(token, ends=False) for token in BACKEND.encode("xab").ids[-3:]] == [None, None, "ab"]
    assert output.close() == "x"


def test_the_first_stop_string_counts_and_none_before_min_tokens() -> None:
    output = OutputText(BACKEND, SamplingFields(stop=["b", "a"], min_tokens=2))
    _, stop = feed(output, ids_of("abxab"))
    assert (stop, output.text) == ("a", "abx")


def test_the_end_id_and_special_ids_are_shown_on_request() -> None:
    end = TOKENIZER.eos_token_id
    for include, skip, expected in ((False, False, "a"), (True, False, "a<|end|>"), (True, True, "a")):
        sampling = SamplingFields(include_stop_str_in_output=include, skip_special_tokens=skip)
        output = OutputText(BACKEND, sampling)
        output.add(ids_of("a")[0], ends=False)
        output.add(end, ends=True)
        assert output.close() == expected
