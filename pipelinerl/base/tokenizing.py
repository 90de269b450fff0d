"""Tokenisers and chat templates on the client's side, without torch.

A prompt is rendered and tokenised exactly once, here; what is trained are the ids that went to the engine
and the ids that came back. A dialogue grows by appending ids (`continue_dialogue`), so nothing that was
sampled is ever tokenised again.
"""

import json
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError

from pipelinerl.base.hub import with_files
from pipelinerl.base.thoughts import (
    CHANNEL,
    CLOSE,
    FINAL,
    MESSAGE,
    OPEN,
    START,
    TOKENS,
    bounds,
    opened_by,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]

_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.jinja")
_FILES_OF_PROCESSOR = ("*processor_config.json", "chat_template.json")
"""Of a model that also sees; engines that serve it as such do not start without them."""
_PICTURES = ("image", "image_url", "input_image", "video", "video_url")
_HALF_EMOJI = re.compile("[\ud800-\udfff]")
_PLACEHOLDER = "zqxAssistantReplyxqz"


@lru_cache(maxsize=8)
def load_tokenizer(name: str) -> "PreTrainedTokenizerFast":
    """The tokeniser of a model folder or hub name, shared by everyone in this process.

    Its `apply_chat_template` gives ids as before transformers 5, which gives a dict: policies take its length
    for that of a prompt. `AutoTokenizer` would import torch. Raises ValueError if there is no
    `tokenizer.json`.
    """
    if not name:
        raise ValueError(
            "no tokenizer: tokenizer_name and model_name are empty; set one to a model folder or name"
        )
    folder = Path(name)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        raise ValueError(f"{name} holds no tokenizer.json; save the model with a fast tokenizer")
    # A second of processor time: the launcher and the actor import policies, but tokenise nothing.
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(name)
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, return_dict=False)
    return tokenizer


def tokenizer_folder(name: str) -> Path:
    """Where the tokenizer's and the processor's files of a model are. Raises as `with_files`."""
    return with_files(name, _FILES + _FILES_OF_PROCESSOR)


def copy_tokenizer(source: str, folder: Path) -> None:
    """The tokenizer's files of a folder or hub name into a folder, byte for byte, with the chat template.

    Those of the processor of pictures, if there is one, go along.
    """
    for file in chain.from_iterable(map(tokenizer_folder(source).glob, _FILES + _FILES_OF_PROCESSOR)):
        shutil.copy2(file, folder / file.name)


def encode(tokenizer: "PreTrainedTokenizerFast", text: str) -> np.ndarray:
    """Ids of `text`, int32 `[tokens]`, without the special tokens a template already wrote."""
    return np.array(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def encode_within(
    tokenizer: "PreTrainedTokenizerFast",
    text: str,
    context: int,
    longest: int | None,
    add_special_tokens: bool = False,
) -> list[int]:
    """Ids of a text that somebody else wrote, for a thread beside an event loop.

    `longest` is `longest_token`. Raises ValueError for a text that is too long for the context whatever its
    ids are.
    """
    most = context * (longest or len(text))
    if len(text) > most:
        raise ValueError(
            f"{len(text)} characters have more tokens than the context of {context}; shorten the prompt to "
            f"less than {most}"
        )
    # `encode` keeps the interpreter for itself, for a second a megabyte; nothing else would be answered.
    batch = tokenizer.backend_tokenizer.encode_batch
    return list(batch([text], add_special_tokens=add_special_tokens)[0].ids)


@lru_cache(maxsize=8)  # by identity; a vocabulary has hundreds of thousands of tokens
def longest_token(tokenizer: "PreTrainedTokenizerFast") -> int | None:
    """Characters that an id stands for at most; None where an id may stand for any number of them.

    Byte-level tokens have as many characters as bytes. There is no bound with a normaliser, an id for
    unknown text, or a token that strips the spaces beside it.
    """
    from tokenizers.models import BPE

    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder().values()
    if backend.normalizer is not None or any(one.lstrip or one.rstrip for one in added):
        return None
    if not isinstance(backend.model, BPE) or backend.model.unk_token is not None:
        return None
    return max(len(token) for token in backend.get_vocab())


def decode(tokenizer: "PreTrainedTokenizerFast", ids: Sequence[int] | np.ndarray, skip_special: bool) -> str:
    listed = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return tokenizer.backend_tokenizer.decode(listed, skip_special_tokens=skip_special)


_END_IDS = 16
"""Ids of a prompt's end that are read: those of `<think>` and blanks, were each a character."""


def _end_of(tokenizer: "PreTrainedTokenizerFast", prompt_ids: Sequence[int] | np.ndarray) -> str:
    return decode(tokenizer, prompt_ids[-_END_IDS:], skip_special=False)


def begins_in_thoughts(tokenizer: "PreTrainedTokenizerFast", prompt_ids: Sequence[int] | np.ndarray) -> bool:
    """Whether a prompt ends with `<think>`, so that what is sampled behind it begins in thoughts."""
    return opened_by(_end_of(tokenizer, prompt_ids))


@lru_cache(maxsize=8)  # by identity
def _marks(tokenizer: "PreTrainedTokenizerFast") -> dict[int, str]:
    """Ids that mark thoughts and that plain text leaves out, or shows as another family's tags do."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    known = {*TOKENS, CHANNEL, MESSAGE, START}
    return {
        key: one.content
        for key, one in added.items()
        if one.content in known and (one.special or one.content not in (OPEN, CLOSE))
    }


_NAME_IDS, _CALLED = 32, " to="
"""Ids that are read of the header of a channel, and what stands in that of a call."""


def thought_marks(tokenizer: "PreTrainedTokenizerFast", ids: np.ndarray) -> list[tuple[int, int, str]]:
    """Where the marks of thoughts stand in sampled ids that plain text does not show as `<think>`.

    (start, end, tag): half-open ranges of ids, each of which stands for `<think>` or `</think>`.
    """
    marks = _marks(tokenizer)
    places = np.flatnonzero(np.isin(ids, list(marks))).tolist() if marks else []
    messages = [at for at in places if marks[int(ids[at])] == MESSAGE]
    found, before, start = [], "", 0
    for at in places:
        name = marks[int(ids[at])]
        if name in TOKENS:
            found.append((at, at + 1, TOKENS[name]))
        elif name == CHANNEL:
            behind = bisect_right(messages, at)
            end = messages[behind] if behind < len(messages) else len(ids)
            begins = max(start if before == START else at, found[-1][1] if found else 0)
            header = decode(tokenizer, ids[begins : min(end, at + _NAME_IDS)], skip_special=True)
            if _CALLED in header:  # a call, which no text before the answer is; its header says so
                found.append((begins, min(begins + 1, len(ids)), CLOSE))
            else:
                channel = decode(tokenizer, ids[at + 1 : min(end, at + _NAME_IDS)], skip_special=True).split()
                tag = CLOSE if channel[:1] == [FINAL] else OPEN
                found.append((begins, max(begins, min(end + 1, len(ids))), tag))
        before, start = name, at
    return found


def with_tags(
    tokenizer: "PreTrainedTokenizerFast",
    prompt_ids: np.ndarray,
    ids: np.ndarray,
    text_of_end: Callable[[np.ndarray], str],
) -> tuple[str | None, bool]:
    """What was sampled with the tags of thoughts that plain text lacks, and whether it is thoughts alone.

    The text is None where it lacks none. `text_of_end` gives the text of the ids behind the last mark.
    Thoughts alone are those that the prompt began, by `<think>` or another family's token, and nothing ended.
    """
    text = None
    if marks := thought_marks(tokenizer, ids):
        starts, ends = [0, *(end for _, end, _ in marks)], [*(start for start, _, _ in marks), len(ids)]
        *pieces, last = (ids[start:end] for start, end in zip(starts, ends, strict=True))
        whole = [*(decode(tokenizer, piece, skip_special=True) for piece in pieces), text_of_end(last)]
        # Between quotation marks a tag would be a quoted one.
        apart = ("\n" if one.startswith(('"', "'", "`")) else "" for one in whole[1:])
        text = whole[0] + "".join(
            tag + blank + one for (_, _, tag), blank, one in zip(marks, apart, whole[1:], strict=True)
        )
    end = _end_of(tokenizer, prompt_ids).rstrip()
    if not end.endswith(tuple(token for token, tag in TOKENS.items() if tag == OPEN)):
        return text, False
    said = decode(tokenizer, ids, skip_special=False) if text is None else text
    return text, bounds(said, opened=True)[1] == 0


def render_chat(
    tokenizer: "PreTrainedTokenizerFast",
    messages: Sequence[Message],
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    generation_prompt: bool = True,
    template_kwargs: dict[str, Any] | None = None,
) -> str:
    """The prompt's text, with U+FFFD for half an emoji; messages may be written as engines take them.

    Raises ValueError if the tokeniser has no chat template, and for a picture.
    """
    for message in messages:
        parts = content if isinstance(content := message.get("content"), list) else []
        if any(isinstance(part, dict) and _is_picture(part) for part in parts):
            # A template would write the picture's bytes into the prompt as text.
            raise ValueError("a message holds a picture; models that also see are run on text alone")
    if tokenizer.chat_template is None:
        raise ValueError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template; add one or give Prompt.token_ids"
        )
    rendered = tokenizer.apply_chat_template(
        [_plain(message) for message in messages],
        tools=list(tools) if tools else None,
        tokenize=False,
        add_generation_prompt=generation_prompt,
        **(template_kwargs or {}),
    )
    assert isinstance(rendered, str)
    # A model may have escaped half an emoji in the arguments of a call; no tokenizer takes one.
    return rendered if rendered.isascii() else _HALF_EMOJI.sub("\ufffd", rendered)


def _is_picture(part: dict[str, Any]) -> bool:
    """Some models' examples name no type. Rows of a table have every key, with null where it says nothing."""
    return part.get("type") in _PICTURES or any(part.get(key) is not None for key in _PICTURES)


def _plain(message: Message) -> Message:
    """Text as a string and arguments of calls as values, as engines give them to a template.

    A template would write a list of parts into the prompt as Python shows it, and quote arguments that are
    JSON already once more.
    """
    plain, content = dict(message), message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        plain["content"] = "\n".join(texts) if len(texts) == len(parts) else content
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_with_values(call) for call in calls]
    return plain


def _with_values(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):  # what a model wrote
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def continue_dialogue(
    tokenizer: "PreTrainedTokenizerFast",
    earlier: Sequence[Message],
    prompt_ids: np.ndarray,
    output_ids: np.ndarray,
    messages: Sequence[Message],
    template_kwargs: dict[str, Any] | None = None,
    context: int | None = None,
) -> np.ndarray:
    """Ids of the next prompt: what the engine saw and sampled, then what the template puts after it.

    `earlier` are the messages of the prompt that was answered, `messages` the new ones. The text between is
    what the template writes after an assistant's reply; an end-of-turn id that was sampled is not repeated.
    Raises ValueError if the template alters replies beyond recognition, and for a text in between that is
    too long for `context` tokens whatever its ids are, before it is tokenised.
    """
    rest = _text_after_reply(tokenizer, earlier, messages, template_kwargs)
    if context is None:
        rest_ids = encode(tokenizer, rest)
    else:
        rest_ids = np.array(encode_within(tokenizer, rest, context, longest_token(tokenizer)), dtype=np.int32)
    if len(rest_ids) and len(output_ids) and rest_ids[0] == output_ids[-1]:
        rest_ids = rest_ids[1:]
    return np.concatenate([prompt_ids, output_ids, rest_ids], dtype=np.int32)


_ROLES_REMEMBERED = 1024
_needs_whole_dialogue: dict[tuple[Any, ...], bool] = {}
"""By template and roles: whether the text after a reply depends on more than the exchange before it."""


def _text_after_reply(
    tokenizer: "PreTrainedTokenizerFast",
    earlier: Sequence[Message],
    messages: Sequence[Message],
    template_kwargs: dict[str, Any] | None,
) -> str:
    """What the template writes after a reply to `earlier` that `messages` follow.

    Rendering the whole dialogue for each turn would take time in the square of its turns. The last exchange
    is enough for a template that was seen to write the same after it as after the whole dialogue; that is
    looked at once for each sequence of roles.
    """

    def rendered_after(before: Sequence[Message]) -> str:
        reply = {"role": "assistant", "content": _PLACEHOLDER}
        text = render_chat(tokenizer, [*before, reply, *messages], template_kwargs=template_kwargs)
        _, found, rest = text.rpartition(_PLACEHOLDER)
        if not found:
            raise ValueError(
                "the chat template does not keep an assistant's reply, so a dialogue cannot be continued"
            )
        return rest

    recent = _last_exchange(earlier)
    if len(recent) == len(earlier):
        return rendered_after(earlier)
    roles = tuple(message["role"] for message in (*recent, *messages))
    key = (str(tokenizer.chat_template), repr(template_kwargs), roles)
    whole_needed = _needs_whole_dialogue.get(key)  # once: another thread may clear them
    if whole_needed is None:
        whole = rendered_after(earlier)
        try:
            alone = rendered_after(recent)
        except (TemplateError, ValueError):  # a template may refuse a dialogue that begins in the middle
            alone = None
        if len(_needs_whole_dialogue) >= _ROLES_REMEMBERED:
            _needs_whole_dialogue.clear()
        _needs_whole_dialogue[key] = alone != whole
        return whole
    return rendered_after(earlier if whole_needed else recent)


def _last_exchange(messages: Sequence[Message]) -> Sequence[Message]:
    """The system's message and everything from the last one of the user."""
    start = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=0)
    system = [message for message in messages[: min(start, 1)] if message["role"] == "system"]
    return [*system, *messages[start:]]
