"""Lists of words and phrases, written as running text."""


def words(text: str) -> tuple[str, ...]:
    """The space-separated words."""
    return tuple(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """The phrases between vertical bars, without spaces at their ends."""
    return tuple(phrase.strip() for phrase in text.split("|"))
