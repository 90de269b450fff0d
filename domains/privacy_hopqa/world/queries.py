"""A question as a search query; the checks of a world and the scripted teacher search this way."""

from .lists import words

QUESTION_WORDS = frozenset(
    words(
        "a an and are as at be by did do does for from had has have how in is it its many much of on or per "
        "that the their there these this to was were what when where which who whose why with"
    )
)


def keyword_query(question: str) -> str:
    """The content words of a question in their order, without punctuation at their ends."""
    kept = (word.strip("?.,;:!\"'()") for word in question.split())
    return " ".join(word for word in kept if word and word.lower() not in QUESTION_WORDS)
