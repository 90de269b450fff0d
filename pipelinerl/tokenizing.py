"""Tokenisers and chat templates on the client's side, without torch.

A prompt is rendered and tokenised exactly once, here; what is trained are the ids that went to the engine
and the ids that came back. A dialogue grows by appending ids (`continue_dialogue`), so nothing that was
sampled is ever tokenised again.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]

_PLACEHOLDER = "zqxAssistantReplyxqz"


@lru_cache(maxsize=8)
def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokeniser of a model folder or hub name, shared by everyone in this process.

    `AutoTokenizer` would import torch. Raises ValueError if there is no `tokenizer.json`.
    """
    if not name:
        raise ValueError(
            "no tokenizer: tokenizer_name and model_name are empty; set one to a model folder or name"
        )
    folder = Path(name)
    if folder.is_dir() and not (folder / "tokenizer.json").exists():
        raise ValueError(f"{name} holds no tokenizer.json; save the model with a fast tokenizer")
    return PreTrainedTokenizerFast.from_pretrained(name)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> np.ndarray:
    """Ids of `text`, int32 `[tokens]`, without the special tokens a template already wrote."""
    return np.array(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int] | np.ndarray, skip_special: bool) -> str:
    listed = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return tokenizer.backend_tokenizer.decode(listed, skip_special_tokens=skip_special)


def render_chat(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    generation_prompt: bool = True,
    template_kwargs: dict[str, Any] | None = None,
) -> str:
    """The prompt's text. Raises ValueError if the tokeniser has no chat template."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template; add one or give Prompt.token_ids"
        )
    rendered = tokenizer.apply_chat_template(
        list(messages),
        tools=list(tools) if tools else None,
        tokenize=False,
        add_generation_prompt=generation_prompt,
        **(template_kwargs or {}),
    )
    assert isinstance(rendered, str)
    return rendered


def continue_dialogue(
    tokenizer: PreTrainedTokenizerFast,
    earlier: Sequence[Message],
    prompt_ids: np.ndarray,
    output_ids: np.ndarray,
    messages: Sequence[Message],
    template_kwargs: dict[str, Any] | None = None,
) -> np.ndarray:
    """Ids of the next prompt: what the engine saw and sampled, then what the template puts after it.

    `earlier` are the messages of the prompt that was answered, `messages` the new ones. The text between is
    what the template writes after an assistant's reply, found with a placeholder reply; an end-of-turn id
    that was sampled is not repeated. Raises ValueError if the template alters replies beyond recognition.
    """
    reply = {"role": "assistant", "content": _PLACEHOLDER}
    rendered = render_chat(tokenizer, [*earlier, reply, *messages], template_kwargs=template_kwargs)
    _, found, rest = rendered.rpartition(_PLACEHOLDER)
    if not found:
        raise ValueError(
            "the chat template does not keep an assistant's reply, so a dialogue cannot be continued"
        )
    rest_ids = encode(tokenizer, rest)
    if len(rest_ids) and len(output_ids) and rest_ids[0] == output_ids[-1]:
        rest_ids = rest_ids[1:]
    return np.concatenate([prompt_ids, output_ids, rest_ids]).astype(np.int32)
