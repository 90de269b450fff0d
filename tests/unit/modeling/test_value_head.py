"""A value head is trained, saved and restored with the policy, and never leaves the trainer."""

import json
from pathlib import Path

import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.modeling.value_head import FILE, build_value_head, load_value_head
from tests.support.builders import VALUE_HEAD, trainer_config
from tests.support.known_metrics import FINETUNE, FINETUNE_WITH_VALUES, names
from tests.support.policy import tiny_model
from tests.support.training import assert_resumes_bit_for_bit, train

RL = RLConfig(epsilon_high=4.0, value_loss_coef=0.5)


def test_a_run_learns_values_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight, resumed = assert_resumes_bit_for_bit(tmp_path, rl=RL, model_class=VALUE_HEAD)
    found, expected = (torch.load(f / "finetune/current" / FILE) for f in (resumed, straight))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert expected.keys() == {"output.weight", "output.bias"}  # of upstream's module `ValueHead`
    assert bool(expected["output.weight"].abs().max() > 0)
    rows = [json.loads(line) for line in (straight / "finetune/metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert names(FINETUNE) | names(FINETUNE_WITH_VALUES) <= set(row)
    assert [row["stats/queue/batches"] for row in rows] == sorted(
        (row["stats/queue/batches"] for row in rows), reverse=True
    )
    assert rows[0]["stats/queue/batches"] > rows[-1]["stats/queue/batches"] == 0
    assert rows[-1]["rl/value_mse"] < rows[0]["rl/value_mse"]


def test_without_a_head_there_are_no_value_metrics(tmp_path: Path) -> None:
    train(tmp_path)
    row = json.loads((tmp_path / "finetune/metrics.jsonl").read_text().splitlines()[0])
    assert not [name for name in row if "value" in name]
    assert not (tmp_path / "finetune/current" / FILE).exists()


def test_engines_are_sent_the_policy_only(tmp_path: Path) -> None:
    one = build_learner(
        trainer_config(tmp_path, tiny_model(), rl=RL, model_class=VALUE_HEAD), Ranks(), tmp_path / "model"
    )
    assert one.value_head is not None
    sent = {id(tensor) for _, tensor in distinct_parameters(one.model)}
    assert not sent & {id(p) for p in one.value_head.parameters()}
    trained = [p for group in one.optimiser.param_groups for p in group["params"]]
    assert any(p is one.value_head.weight for p in trained)


def test_a_head_of_another_width_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, tmp_path / FILE)
    with pytest.raises(ValueError, match=r"value_head\.pt: .* shape \(1, 5\), the model needs \(1, 16\)"):
        load_value_head(build_value_head(tiny_model()), tmp_path)


def test_a_head_of_upstream_is_read_and_one_with_more_layers_is_refused(tmp_path: Path) -> None:
    theirs = {"output.weight": torch.arange(16.0)[None], "output.bias": torch.tensor([2.0])}
    torch.save(theirs, tmp_path / FILE)
    head = build_value_head(tiny_model())
    assert load_value_head(head, tmp_path)
    assert head(torch.ones(16)).tolist() == [122.0]  # the sum of 0 to 15, and 2
    torch.save({"weight": torch.ones(1, 16), "bias": torch.zeros(1)}, tmp_path / FILE)
    assert load_value_head(head, tmp_path)  # as earlier versions of this project saved it
    assert head(torch.ones(16)).tolist() == [16.0]
    torch.save({"dense.weight": torch.zeros(4, 16), **theirs}, tmp_path / FILE)
    with pytest.raises(ValueError, match=r"value_head\.pt: no linear head, it holds .*dense\.weight"):
        load_value_head(head, tmp_path)
