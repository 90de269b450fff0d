"""Routes on their way from samples to gradients: packed once, replayed, measured."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.build import _routers
from pipelinerl.finetune.collect import fetch
from pipelinerl.finetune.metrics import StepStatistics, step_metrics
from pipelinerl.finetune.peaks import Hardware
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, encode
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.sample import BadSample, Sample
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.model import prepare_model
from pipelinerl.preprocess.snapshots import Held
from pipelinerl.run_state.snapshots import Snapshots
from pipelinerl.streams.records import HEADER_SIZE, encode_record, parse_header, record_decoder
from tests.support.builders import ready, record, some_routes
from tests.support.policy import VOCAB, learner
from tests.support.tiny_model import causal_lm, mixture_lm

RL = RLConfig(policy_loss="reinforce", epsilon_high=4.0)


def policy() -> PreTrainedModel:
    return prepare_model(mixture_lm(VOCAB, spread=0.3))


def trainer(rl: RLConfig = RL, model: PreTrainedModel | None = None) -> Learner:
    one = learner(rl, model or policy())
    one.routers = _routers(one.model, rl)
    return one


def sample(seed: int, ids: list[int] | None = None, **fields: Any) -> Sample:
    """A sample with a record of all tokens but the last, as engines give it."""
    one = ready(seed, 1.0 if seed % 2 else -1.0, **fields)
    if ids is not None:
        labels = np.array(ids, np.int32)
        labels[: len(ids) - 2] = -100
        one.input_ids, one.labels = np.array(ids, np.int32), labels
        one.old_logprobs = one.ref_logprobs = np.full(2, -1.0, np.float32)
        one.weight_versions = [(0, 0, 2)]
    one.routed_experts = some_routes(len(one.input_ids) - 1, seed)
    return one


def gradients(one: Learner, batches: list[PipelineBatchEncoding]) -> dict[str, torch.Tensor]:
    one.model.zero_grad()
    for batch in batches:
        one.accumulate(batch, targets_of(batch, one.rl), Coefficients())
    return {name: p.grad.clone() for name, p in one.model.named_parameters() if p.grad is not None}


def test_a_row_has_the_routes_of_its_tokens_and_says_which_have_none() -> None:
    samples = [sample(1), sample(2), ready(3)]
    row = encode(samples, 0, 3)
    assert row.routes is not None and row.routes.dtype == np.uint8 and row.unrouted is not None
    at = 0
    for one in samples:
        length, known = len(one.input_ids), 0 if one.routed_experts is None else len(one.routed_experts)
        np.testing.assert_array_equal(
            row.routes[at : at + known], one.routed_experts if known else row.routes[:0]
        )
        assert set(row.unrouted) & set(range(at, at + length)) == set(range(at + known, at + length))
        at += length
    row.check()
    plain = encode([ready(3)], 0, 1)
    assert plain.routes is None and plain.unrouted is None and plain.disagreeing == 0


def test_a_shared_token_has_the_experts_of_the_first_sample_that_has_a_record_of_it() -> None:
    stem = [3, 4, 5, 6]
    samples = [sample(1, [*stem, 7, 8]), sample(2, [*stem, 9, 9]), sample(3, [*stem, 7, 8, 1, 2])]
    samples[2].routed_experts[1:5] = samples[0].routed_experts[1:5][..., ::-1]  # type: ignore[index]
    ((row,),) = assemble_step(samples, 0, 64, share=True)
    assert row.shared is not None and row.routes is not None and row.prefixes is not None
    first = samples[row.text_ids.index([row.text_ids[0][0], 0, 0])]
    assert row.text_ids[0][0] == "g1" and first is samples[0]  # rows are in the order of ids
    np.testing.assert_array_equal(row.routes[:5], samples[0].routed_experts)
    # The last token of the first sample went nowhere; the sample that goes on from it says where it goes.
    np.testing.assert_array_equal(row.routes[5], samples[2].routed_experts[5])  # type: ignore[index]
    assert row.unrouted is not None and len(row.unrouted) == 2
    # Of the third all but the four that name the same experts in another order, of the second all.
    assert row.disagreeing == 1 + 4


def test_shared_rows_give_the_gradients_of_plain_rows_where_samples_agree() -> None:
    stem = [3, 4, 5, 6]
    samples = [sample(1, [*stem, 7, 8]), sample(2, [*stem, 9, 9]), sample(4, [*stem, 7, 2])]
    for one in samples[1:]:
        one.routed_experts[:4] = samples[0].routed_experts[:4]  # type: ignore[index]
    samples[2].routed_experts[4] = samples[0].routed_experts[4]  # type: ignore[index]
    plain = gradients(trainer(), assemble_step(samples, 0, 64)[0])
    ((row,),) = assemble_step(samples, 0, 64, share=True)
    assert row.disagreeing == 0 and row.n_computed < row.n_tokens
    for name, gradient in gradients(trainer(), [row]).items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-6)


def test_tokens_are_told_apart_by_whether_the_experts_agree_in_plain_and_in_shared_rows() -> None:
    """Engines made the choices of the trainer, but for one token, which predicts the last of its sample."""
    stem, one_trainer, samples = [3, 4, 5, 6], trainer(), []
    assert one_trainer.routers is not None
    for seed, ids in enumerate(([*stem, 7, 8], [*stem, 9, 9], [*stem, 2, 1])):
        with one_trainer.routers.noting(), torch.no_grad():
            one_trainer.model(input_ids=torch.tensor([ids]), use_cache=False)
            record_of = one_trainer.routers.recorded().numpy().astype(np.uint8)
        samples.append(sample(seed, ids))
        samples[-1].routed_experts = record_of[:-1]
    odd = samples[1].routed_experts
    assert odd is not None
    odd[4, 0] = [expert for expert in range(8) if expert not in odd[4, 0]][:2]
    for rows in (assemble_step(samples, 0, 64)[0], assemble_step(samples, 0, 64, share=True)[0]):
        found = metrics_of(trainer(), rows)
        assert found["mismatch/experts_differ/tokens"] == 1 and found["mismatch/experts_agree/tokens"] == 5


def test_free_routing_reads_no_routes_and_a_dense_policy_is_the_same_bits() -> None:
    samples = [sample(i) for i in range(4)]
    without = [ready(i, 1.0 if i % 2 else -1.0) for i in range(4)]
    free = gradients(trainer(RLConfig(**RL.model_dump() | {"routing": "free"})), [encode(samples, 0, 4)])
    replayed = gradients(trainer(), [encode(samples, 0, 4)])
    bare = gradients(learner(RL, policy()), [encode(without, 0, 4)])
    assert free.keys() == bare.keys()
    for name, gradient in bare.items():
        torch.testing.assert_close(free[name], gradient, rtol=0, atol=0)
    assert any((replayed[name] - gradient).abs().max() > 1e-3 for name, gradient in bare.items())
    dense = [trainer(RL, prepare_model(causal_lm(VOCAB))), learner(RL, prepare_model(causal_lm(VOCAB)))]
    assert dense[0].routers is None
    one, other = (gradients(each, [encode(without, 0, 4)]) for each in dense)
    for name, gradient in other.items():
        torch.testing.assert_close(one[name], gradient, rtol=0, atol=0)


def test_replay_keeps_the_log_ratio_of_a_router_that_rounds_otherwise() -> None:
    """An engine's router is perturbed as rounding would; with its choices the trainer stays close to it."""
    engine, rows, gaps = trainer(), [], {}
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in engine.model.model.layers:
            layer.mlp.gate.weight += 0.02 * torch.randn_like(layer.mlp.gate.weight)
    for seed in range(8):
        ids = torch.from_numpy(np.random.default_rng(seed).integers(1, VOCAB, (1, 60)))
        assert engine.routers is not None
        with engine.routers.noting(), torch.no_grad():
            logits = engine.model(input_ids=ids, use_cache=False).logits[0]
            record_of = engine.routers.recorded().numpy().astype(np.uint8)
        one = ready(seed)
        one.input_ids = ids[0].numpy().astype(np.int32)
        one.labels = np.where(np.arange(60) < 10, -100, one.input_ids).astype(np.int32)
        sampled = logits[9:-1].log_softmax(-1).gather(1, ids[0, 10:, None])[:, 0]
        one.old_logprobs = one.ref_logprobs = sampled.numpy()
        one.weight_versions, one.routed_experts = [(0, 0, 50)], record_of[:-1]
        rows.append(encode([one], 0, 1))
    for routing in ("replay", "free"):
        one_trainer = trainer(RLConfig(**RL.model_dump() | {"routing": routing}))
        found = metrics_of(one_trainer, rows)
        gaps[routing] = found["rl/mean_abs_log_ratio_new_old"]
        assert found["routing/replayed_share"] == pytest.approx(59 / 60 if routing == "replay" else 0)
        if routing == "replay":
            assert 0.01 < found["routing/differing_share"] < 0.3
            assert found["routing/bytes_per_token"] == 4 * 2
            differ = found["mismatch/experts_differ/tokens"]
            assert differ + found["mismatch/experts_agree/tokens"] == found["mismatch/lag_0/tokens"] == 400
            assert 0.5 < differ / 400 / found["routing/differing_share"] < 4, "one of four layers at least"
        else:
            assert "mismatch/lag_0/ess" in found and "mismatch/experts_agree/ess" not in found
        assert 1 <= found["routing/load_max_over_mean"] < 8
    assert gaps["replay"] < 0.5 * gaps["free"]


def metrics_of(one: Learner, rows: list[PipelineBatchEncoding]) -> dict[str, Any]:
    counts, measured = StepStatistics(), []
    for row in rows:
        targets = targets_of(row, one.rl)
        measured.append((row, targets, one.accumulate(row, targets, Coefficients())))
        counts.texts += row.n_texts
    fetch(counts, measured, one.routers)
    return step_metrics(counts, Coefficients(), 1, Hardware(16, 1, None))


def test_the_auxiliary_loss_adds_up_over_micro_batches_and_moves_routers() -> None:
    rl = RLConfig(**RL.model_dump() | {"router_aux_loss_coef": 0.5})
    samples = [sample(i) for i in range(4)]
    for one in samples:
        one.advantage = 0.0
    aux = trainer(rl)
    row = encode(samples, 0, 4)
    found = gradients(aux, [row])
    assert all(found[n].abs().max() > 0 for n in found if n.endswith("mlp.gate.weight"))
    halves = [gradients(aux, [encode(samples, 0, 8)]), gradients(aux, [encode(samples, 0, 8)] * 2)]
    for name, gradient in found.items():  # half of a step's texts count half
        torch.testing.assert_close(halves[0][name], gradient / 2, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(halves[1][name], gradient, rtol=1e-4, atol=1e-7)
    assert metrics_of(aux, [row])["routing/aux_loss"] >= 1.0


def test_records_of_samples_and_rows_hold_them_as_they_are() -> None:
    def through(tree: dict[str, Any]) -> dict[str, Any]:
        data = memoryview(bytearray(encode_record(tree)))
        found: dict[str, Any] = record_decoder()(parse_header(data), data[HEADER_SIZE:])
        return found

    given = {**record("g", 0, 0, 0.5, 3), "routed_experts": (r := some_routes(5, 1))}
    one = Sample.from_record(through(given))
    np.testing.assert_array_equal(one.routed_experts, r)
    row = encode([sample(1), sample(2)], 0, 2)
    again = PipelineBatchEncoding.from_record(through(row.to_record()))
    np.testing.assert_array_equal(again.routes, row.routes)
    np.testing.assert_array_equal(again.unrouted, row.unrouted)
    row.routes = row.routes[:-1] if row.routes is not None else None
    with pytest.raises(ValueError, match="column routes has shape"):
        row.check()


def test_what_preprocess_held_is_held_again_with_its_routes(tmp_path: Path) -> None:
    held = Held(4, [(0, [sample(1)])], [ready(2)], 7)
    snapshots = Snapshots(tmp_path, "preprocess", 2)
    snapshots.save(4, msgspec.structs.asdict(held))
    found = snapshots.restore(4, Held)
    assert found is not None and found.buffered[0].routed_experts is None
    np.testing.assert_array_equal(found.ahead[0][1][0].routed_experts, sample(1).routed_experts)


@pytest.mark.parametrize(
    "wrong", [np.zeros((99, 4, 2), np.uint8), np.zeros((2, 4), np.uint8), np.zeros((2, 4, 2), np.int64), [1]]
)
def test_a_record_that_does_not_fit_its_tokens_names_the_sample(wrong: Any) -> None:
    with pytest.raises(BadSample, match="sample g/0/0: routed_experts is") as raised:
        Sample.from_record({**record("g", 0, 0, 0.5, 3), "routed_experts": wrong})
    assert raised.value.reason == "bad_routes"


def test_replay_of_another_models_routes_is_refused() -> None:
    one = sample(1)
    one.routed_experts = some_routes(len(one.input_ids) - 1, 0, layers=3)
    with pytest.raises(ValueError, match="routes of 3 layers with 2 experts each, but the policy has 4"):
        gradients(trainer(), [encode([one], 0, 1)])
    with pytest.raises(ValueError, match="in one row"):
        encode([one, sample(2)], 0, 2)
