"""Which part of a completion is its answer, where a model thinks first; called by every judge.

A chat template may end the prompt with `<think>`. The completion then holds only `</think>`; other models
write both tags, or none. What stands behind the last `</think>` is the answer in all three cases.
"""

OPEN, CLOSE = "<think>", "</think>"


def answer_part(completion: str) -> str:
    """The completion behind its last `</think>`, up to a `<think>` that is not closed.

    Blanks between thoughts and answer are dropped. A completion without either tag is returned as it is.
    """
    _, closed, behind = completion.rpartition(CLOSE)
    answer = behind.partition(OPEN)[0]
    return answer.lstrip() if closed else answer


def thoughts_are_open(completion: str) -> bool:
    """Whether a `<think>` stands behind the last `</think>`: the completion ends in its thoughts."""
    return OPEN in completion.rpartition(CLOSE)[2]
