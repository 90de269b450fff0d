"""How a demonstration becomes a dialogue: the small models' own template, or that of a pretrained one.

Importable without torch and transformers.
"""

from typing import TYPE_CHECKING, NamedTuple

from pipelinerl.base.tokenizing import render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, END, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}"
    + ASSISTANT
    + "{{ m['content'] }}"
    + END
    + "{% else %}"
    + USER
    + "{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


class ChatFormat(NamedTuple):
    """What stands before and behind the one message of a prompt, and what ends the answer."""

    before: str
    after: str
    end: str


SMALL_CHAT = ChatFormat(USER, ASSISTANT, END)
_MESSAGE = "zqxUserMessageyxqz"


def chat_format(tokenizer: "PreTrainedTokenizerFast") -> ChatFormat:
    """That of the tokenizer's chat template. Raises ValueError for one that does not keep the message."""
    rendered = render_chat(tokenizer, [{"role": "user", "content": _MESSAGE}])
    before, found, after = rendered.partition(_MESSAGE)
    if not found:
        raise ValueError(f"the chat template of {tokenizer.name_or_path} does not keep the user's message")
    return ChatFormat(before, after, str(tokenizer.eos_token))
