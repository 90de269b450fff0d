"""Ranks that share a row do what one rank does: gradients and metrics of every loss, and a whole training."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from pipelinerl.finetune.metrics import StepStatistics, step_metrics
from pipelinerl.finetune.peaks import Hardware
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.modeling.seq_parallel import check_model, repeats
from tests.support.policy import tiny_model
from tests.support.row_ranks import CASES, TEXTS, learner_of, model_of, run, step_of
from tests.unit.finetune.test_ranks import DEADLINE_S, start_ranks

COMPILED = [case for case in CASES if case.startswith("compiled")]
RUN = [case for case in CASES if case not in COMPILED and (case != "adapters" or find_spec("peft"))]
OF_MICRO_BATCHES = ("rl/max_loss", "rl/min_loss")
"""Metrics that depend on how texts are packed."""


def tolerance(case: str) -> float:
    return 0.05 if case == "bfloat16" else 1e-5


@pytest.fixture(
    scope="module",
    params=[(2, 2), *(pytest.param(one, marks=pytest.mark.slow) for one in ((4, 4), (4, 2)))],
    ids=["2 ranks", "4 ranks", "2 rows of 2 ranks"],
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, Path]:
    """How many ranks there were, how many for each row, and where each case left what it found."""
    count, size = request.param
    folder = tmp_path_factory.mktemp("rows")
    start(folder, count, size, RUN)
    return count, size, folder


def start(folder: Path, count: int, size: int, cases: list[str], deadline_s: float = DEADLINE_S) -> None:
    for case in cases:
        model_of(case).save_pretrained(folder / case / "model")
    for code, said in start_ranks(folder, count, "row_ranks", deadline_s=deadline_s, cases=cases, size=size):
        assert code == 0, said[-3000:]


@pytest.mark.slow  # compilers take as long as all other cases together
@pytest.mark.timeout(5 * DEADLINE_S)
def test_compiled_layers_give_the_gradients_and_metrics_of_one_rank(tmp_path: Path) -> None:
    start(tmp_path, 2, 2, COMPILED, 4 * DEADLINE_S)
    for case in COMPILED:
        assert_as_one_rank(2, 2, tmp_path, case, tmp_path / f"{case} alone")


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("case", RUN)
def test_gradients_and_metrics_are_those_of_one_rank(
    ranks: tuple[int, int, Path], case: str, tmp_path: Path
) -> None:
    assert_as_one_rank(*ranks, case, tmp_path)


def assert_as_one_rank(count: int, size: int, folder: Path, case: str, alone: Path) -> None:
    fields: dict[str, Any] = CASES[case]
    # The one label of a row is another one where rows are packed otherwise.
    groups = count // size if case == "one label" else 1
    batches = [batch for rows in step_of(case, groups) for batch in rows]
    assert len(batches) > 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CASES, case, {name: value for name, value in fields.items() if name != "use_fsdp"})
        learner = learner_of(case, alone, Ranks())
    expected, measured = run(learner, batches, len(batches))
    assert sum(bool(one.any()) for one in expected.values()) > len(expected) / 2
    scale = max(float(one.abs().max()) for one in expected.values())
    for rank in range(count):
        found = load_file(folder / case / f"{rank}.safetensors")
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            difference = float((found[name] - gradient).abs().max())
            assert difference <= tolerance(case) * scale, (rank, name, difference, scale)
    assert_metrics(folder / case, count, size, [one.vector.tolist() for one in measured], tolerance(case))
    if count == size:  # rows are the same ones then
        texts = [one.texts_3S.tolist() for one in measured]
        for rank in range(count):
            own = [one for _, one in json.loads((folder / case / f"{rank}.json").read_text())]
            for ours, theirs in zip(own, texts, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=tolerance(case), rtol=tolerance(case))


def assert_metrics(
    folder: Path, count: int, size: int, expected: list[list[float]], tolerance: float
) -> None:
    """Those of the step, from the ranks that count; every rank of a group has measured the same."""
    vectors: list[list[float]] = []
    for first in range(0, count, size):
        group = [json.loads((folder / f"{first + one}.json").read_text()) for one in range(size)]
        assert all(one == group[0] for one in group)
        vectors += [vector for vector, _ in group[0]]
    ours, theirs = (
        step_metrics(StepStatistics(one, TEXTS), Coefficients(), 1, Hardware(16, 1, None))
        for one in (vectors, expected)
    )
    assert ours.keys() == theirs.keys() and "rl/ess" in theirs
    for name, value in theirs.items():
        if name.startswith("rl/") and (name not in OF_MICRO_BATCHES or count == size):
            assert ours[name] == pytest.approx(value, rel=10 * tolerance, abs=10 * tolerance), name


@pytest.mark.parametrize(
    ("heads", "key_heads"), [(16, 8), (32, 8), (12, 2), (14, 2), (12, 6), (8, 8), (8, 1)]
)
def test_a_rank_gets_the_keys_that_its_queries_read(heads: int, key_heads: int) -> None:
    for ranks in (n for n in range(1, heads + 1) if heads % n == 0):
        sent = np.repeat(np.arange(key_heads), repeats(heads, key_heads, ranks))
        queries = np.arange(heads) * key_heads // heads  # which keys each query head reads
        assert len(sent) % ranks == 0
        for own_queries, own_keys in zip(np.split(queries, ranks), np.split(sent, ranks), strict=True):
            read = np.repeat(own_keys, len(own_queries) // len(own_keys))  # as attention shares its heads
            assert np.array_equal(read, own_queries)


def test_a_model_that_cannot_be_divided_is_refused_in_one_line() -> None:
    model = tiny_model()
    check_model(model, 2)
    with pytest.raises(
        ValueError, match=r"^finetune.seq_parallel=3: does not divide the 2 attention heads .*$"
    ):
        check_model(model, 3)
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(
        ValueError, match=r"^finetune.seq_parallel=2: layers of linear_attention pass .* set 1$"
    ):
        check_model(model, 2)
