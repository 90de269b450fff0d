"""Numbers of the reputation game's README that are settings, and those that are neither."""

from tests.support.settings import Setting

REPUTATION_SETTINGS: list[Setting] = []
REPUTATION_OTHERS: dict[str, str] = {}
