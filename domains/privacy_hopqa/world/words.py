"""Lists of words, and the content words of a question, by which the world's checks and the teacher search."""


def words(text: str) -> tuple[str, ...]:
    """The space-separated words."""
    return tuple(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """The phrases between vertical bars, without spaces at their ends."""
    return tuple(phrase.strip() for phrase in text.split("|"))


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
