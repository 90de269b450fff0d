"""Special tokens and the chat template of the small models; importable without torch."""

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
