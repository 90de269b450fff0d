"""A mixture of experts learns from an engine whose experts the trainer replays, in whole runs."""

from pathlib import Path

import pytest

from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from tests.pipeline.conftest import Start, optimizer_steps, records_of
from tests.support.metric_tables import check_run
from tests.support.tiny_model import build_tokenizer, mixture_lm

pytestmark = pytest.mark.usefixtures("forked", "undrawn")
STEPS = 3
GUESSING = [
    *("+domain=guessing", "max_lag=64", "dataset_loader_params={count: 6, max_guesses: 3}"),
    f"finetune.max_train_steps={STEPS}",
    "finetune.learning_rate=5e-5",  # else old samples differ more on a busy machine
]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 experts in each of 4 layers, of which a token goes to 2."""
    folder, tokenizer = tmp_path_factory.mktemp("mixture"), build_tokenizer()
    tokenizer.save_pretrained(str(folder))
    model = mixture_lm(len(tokenizer), spread=0.05)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.max_position_embeddings = 1024
    model.save_pretrained(folder)
    return folder


def test_a_mixture_trains_with_the_experts_of_its_engine(start: Start, mixture: Path) -> None:
    run = start(*GUESSING, f"model_path={mixture}")
    assert run.wait() == 0, run.err
    check_run(run.output_dir)
    steps = optimizer_steps(run.output_dir)
    assert len(steps) == STEPS
    for step in steps:
        # All but the last token of each text, and those that the text before it has as well.
        assert 0.8 < step["routing/replayed_share"] < 1
        assert step["routing/bytes_per_token"] == 4 * 2
        assert step["routing/differing_share"] < 0.2 and step["routing/load_max_over_mean"] >= 1
    assert steps[0]["routing/differing_share"] < 0.001, "the same weights"
    assert steps[0]["rl/mean_abs_log_ratio_new_old"] < 1e-4
    rows = [PipelineBatchEncoding.from_record(one) for one in records_of(run.output_dir, "training_data")]
    assert all(row.routes is not None and row.routes.shape[1:] == (4, 2) for row in rows)
    assert any(row.shared is not None and row.shared.any() for row in rows)


@pytest.mark.slow  # what a free choice asks of an engine, `test_routing_choice.py` knows without a run
def test_with_free_routing_the_engine_is_not_asked(start: Start, mixture: Path) -> None:
    run = start(*GUESSING, f"model_path={mixture}", "finetune.rl.routing=free", name="free")
    assert run.wait() == 0, run.err
    assert all(step["routing/replayed_share"] == 0 for step in optimizer_steps(run.output_dir))
    rows = [PipelineBatchEncoding.from_record(one) for one in records_of(run.output_dir, "training_data")]
    assert rows and all(row.routes is None for row in rows)
