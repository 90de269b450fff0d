"""`finetune.compile=auto`: a short run never compiles, a long one once, and neither learns anything else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipelinerl.config.finetune import COMPILE_WORTH_S, RLConfig
from pipelinerl.finetune import compile_later
from pipelinerl.finetune.compile_later import LaterCompilation, makes_kernels, warm_up
from pipelinerl.finetune.rl.batch import encode
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.activations import decoder_layers
from pipelinerl.modeling.branches import SHORTEST
from pipelinerl.modeling.model import prepare_model
from tests.support.builders import ready, write_steps
from tests.support.policy import VOCAB, learner
from tests.support.tiny_model import hybrid_lm
from tests.support.training import saved, train, trainer

BATCH = encode([ready(index, 1.0) for index in range(6)], 0, 6)
Compiled = list[list[bool]]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Notes for each compilation which layers recompute; layers are not really compiled."""
    made: Compiled = []

    def note(model: Any) -> None:
        made.append(["forward" in vars(layer) for layer in decoder_layers(model)])

    monkeypatch.setattr(compile_later, "compile_layers", note)
    return made


def later(folder: Path, **fields: Any) -> tuple[LaterCompilation, Learner]:
    one = trainer(folder, gradient_checkpointing=False)
    derived = one.cfg.derived.model_copy(update={"compile": "later", **fields})
    cfg = one.cfg.model_copy(update={"derived_": derived})
    return LaterCompilation(one.learner, cfg), one.learner


@pytest.mark.parametrize(
    ("worked_s", "steps_left", "expected"),
    [
        ([60.0, 1.0, 1.0], 100, 0),  # the first step tells nothing
        ([1.0, 4.0, 4.0, 4.0], 100, 1),  # once
        ([9.0, 9.0, 9.0], 10, 0),
        ([1.0, 1.0, COMPILE_WORTH_S], 1, 1),
    ],
)
def test_layers_are_compiled_once_enough_work_is_left(
    tmp_path: Path, compiled: Compiled, worked_s: list[float], steps_left: int, expected: int
) -> None:
    one, _ = later(tmp_path)
    for seconds in worked_s:
        one.after_step(seconds, steps_left, BATCH)
    assert len(compiled) == expected


@pytest.mark.parametrize("choice", [True, False])
def test_what_was_compiled_at_the_start_or_never_shall_be_is_left_alone(
    tmp_path: Path, compiled: Compiled, choice: bool
) -> None:
    one, _ = later(tmp_path, compile=choice)
    for _ in range(3):
        one.after_step(1e6, 1000, BATCH)
    assert compiled == []


def test_compiled_layers_recompute_what_was_chosen_for_them(tmp_path: Path, compiled: Compiled) -> None:
    one, learner = later(tmp_path, gradient_checkpointing=True, compiled_checkpointing=2)
    for _ in range(2):
        one.after_step(1e6, 1000, BATCH)
    assert compiled == [[True, False]]
    assert all(p.grad is None for p in learner.model.parameters())


def test_a_compiler_that_fails_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a host without a C compiler, say."""

    def broken(model: Any) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("Failed to find C compiler\nsecond line")

        for layer in decoder_layers(model):
            layer.forward = fail

    monkeypatch.setattr(compile_later, "compile_layers", broken)
    one, learner = later(tmp_path)
    for _ in range(3):
        one.after_step(1e6, 1000, BATCH)
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == "the layers stay uncompiled: RuntimeError: Failed to find C compiler"
    assert not any("forward" in vars(layer) for layer in decoder_layers(learner.model))
    learner.take_part(BATCH)


def test_a_run_that_switches_learns_what_one_does_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dynamo, whose back-end makes no code here, between the second and the third of four steps.

    Rows have one text, since on a CPU each number of texts is a graph of its own.
    """
    real = torch.compile
    traced: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        traced.append(1)
        return graph.forward

    monkeypatch.setattr(
        "pipelinerl.modeling.compiling.torch.compile", lambda *a, **k: real(*a, **k, backend=backend)
    )
    monkeypatch.setattr(compile_later, "COMPILE_WORTH_S", 0.0)
    torch._dynamo.reset()
    for name, fields in (("plain", {}), ("switched", {"compile": "later"})):
        write_steps(tmp_path / name, 4, 6, seq_length=12)
        train(tmp_path / name, **fields)
    torch._dynamo.reset()
    assert traced
    plain, switched = saved(tmp_path / "plain"), saved(tmp_path / "switched")
    for name, tensor in plain.items():
        torch.testing.assert_close(switched[name], tensor)


def test_kernels_are_made_by_a_full_row_that_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = trainer(tmp_path, gradient_checkpointing=False, seq_length=500)
    assert not makes_kernels(one.learner, one.cfg)  # on a CPU there is nothing to make
    before = {name: tensor.clone() for name, tensor in one.learner.model.state_dict().items()}
    lengths: list[int] = []
    take_part = Learner.take_part

    def noting(self: Learner, batch: Any) -> None:
        lengths.append(batch.n_tokens)
        take_part(self, batch)

    monkeypatch.setattr(Learner, "take_part", noting)
    warm_up(one.learner, one.cfg)
    assert lengths == [one.cfg.finetune.seq_length]
    assert all(torch.equal(before[name], tensor) for name, tensor in one.learner.model.state_dict().items())
    assert all(p.grad is None for p in one.learner.model.parameters())
    with_states = learner(RLConfig(), prepare_model(hybrid_lm("qwen3_5", VOCAB)))
    warm_up(with_states, one.cfg)
    assert lengths == 2 * [one.cfg.finetune.seq_length] + [9 * SHORTEST], "and one with branches"
    assert all(p.grad is None for p in with_states.model.parameters())
    assert not [record for record in caplog.records if record.levelname == "WARNING"]

    def lacking(self: Learner, batch: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(Learner, "take_part", lacking)
    warm_up(one.learner, one.cfg)
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == "no kernels were made before the first step: OutOfMemoryError: CUDA out of memory."
