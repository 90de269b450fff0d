"""The actor's process with two domains: weighted problems, one policy each, figures by domain."""

from pathlib import Path

from pipelinerl.run_state.accounting import reconcile
from tests.support.actor_run import ActorRun, tiny_model, write_config
from tests.support.fake_engine import FakeEngine, said
from tests.support.known_metrics import (
    ACTOR,
    ACTOR_WITH_EVALUATION,
    ACTOR_WITH_MIX,
    ACTOR_WITH_PARTS,
    ACTOR_WITH_PENALTY,
    names,
)
from tests.support.metric_tables import names_in, undocumented

TOY = "tests.support.toy_domain"
DATASETS = {
    "dataset_loader": "pipelinerl.domains.multidomain.loader.load_datasets",
    "dataset_loader_params": {
        "domain_loaders": {
            "async": f"{TOY}.load",
            "plain": f"{TOY}.load",
        },
        "per_domain_params": {"async": {"count": 3}, "plain": {"count": 40}},
    },
    "train_dataset_names": ["async::many", "plain::few@train"],
    "test_dataset_names": ["plain::few@test", "async::many@all"],
    "actor": {
        "rollout_policy": "pipelinerl.domains.dispatcher.generate_multidomain_rollout",
        "domain_rollouts": {
            "async": f"{TOY}.play",
            "plain": f"{TOY}.play_plain",
        },
        "domain_mix": {"async": 3, "plain": 1},
        "difficulty_aware_penalty": {"enabled": True},
    },
    "rewards": {"buffer_tokens": 7},
}


def test_two_domains_train_together_in_the_wanted_mixture(tmp_path: Path) -> None:
    model = tiny_model.save_model(tmp_path / "model")
    with FakeEngine(said("42")) as engine:
        write_config(tmp_path / "run", model, [engine], eval_at_end=False, max_lag=10_000, **DATASETS)
        with ActorRun(tmp_path / "run") as run:
            groups = run.until(lambda: len(found := run.read("actor")) >= 200 and found)
            engine.version = "8"
            run.trainer.weight_update_success(8)
            record = run.until(lambda: (rows := run.read("stats")) and rows[-1])
            run.trainer.training_done()
            assert run.end() == (0, "")
            (evaluation,) = run.read("stats_test")
    prompts = [group[0]["text"].split("<e>")[0] for group in groups]
    assert len(prompts) >= 200
    shares = {name: record[f"domain_mix_actual/{name}"] for name in ("async", "plain")}
    assert abs(shares["async"] - 0.75) < 0.1 and abs(sum(shares.values()) - 1.0) < 1e-9
    assert record["domain_mix_target/async"] == 0.75
    assert {"async/reward_mean", "plain/reward_mean", "many/reward_mean", "few/reward_mean"} <= set(record)
    assert evaluation["test_problems"] == 4 + 3
    assert reconcile(tmp_path / "run").adds_up
    reported = names_in(tmp_path / "run", "actor")
    assert names(ACTOR) | names(ACTOR_WITH_PENALTY) | names(ACTOR_WITH_EVALUATION) <= reported
    assert names(ACTOR_WITH_MIX, "async", "plain") <= reported
    assert names(ACTOR_WITH_PARTS, "async", "plain", "many", "few") <= reported
    assert undocumented("actor", reported) == []
