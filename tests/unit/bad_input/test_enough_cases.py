"""How many kinds of bad input are tried; a table that shrinks is noticed here."""

from __future__ import annotations

import pytest

from tests.unit.bad_input import test_bad_bodies as bodies
from tests.unit.bad_input import test_bad_checkpoints as checkpoints
from tests.unit.bad_input import test_bad_configuration as configuration
from tests.unit.bad_input import test_bad_data_files as files
from tests.unit.config import test_refusals as refusals
from tests.unit.math import test_math_data as math_rows
from tests.unit.math import test_math_service as math_bodies

KINDS = {
    "configuration": [
        configuration.INERT,
        configuration.IMPOSSIBLE,
        configuration.OPTIONS,
        refusals.MISSPELT,
        refusals.WRONG_VALUES,
        refusals.CONTRADICTIONS,
    ],
    "data files": [files.CASES, files.ABSENT, math_rows.BAD_ROWS],
    "bodies": [
        *bodies.ENGINE.values(),
        *bodies.RETRIEVAL.values(),
        bodies.SCORER,
        math_bodies.BAD_BODIES,
    ],
    "checkpoints": [checkpoints.LAUNCHER, checkpoints.LOADED, checkpoints.RESUMED],
}
LEAST = {"configuration": 170, "data files": 55, "bodies": 105, "checkpoints": 38}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_cases(kind: str) -> None:
    assert sum(len(table) for table in KINDS[kind]) >= LEAST[kind]


def test_there_are_a_hundred_and_fifty_and_more() -> None:
    assert sum(LEAST.values()) >= 150
