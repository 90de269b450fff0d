"""Two bundled domains in one run, all processes real: guessing and math on one small model.

Problems are drawn by weight, each goes to its own policy and its own servers, every figure is also there by
domain, and both domains' rollouts reach updates of the one policy.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from domains.multidomain.loader import load_datasets
from pipelinerl.actor.sampler import ProblemSampler
from pipelinerl.config import load
from pipelinerl.domain_sampling import ADAPT_AFTER
from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import Start, records_of
from tests.support.metric_tables import check_run

BOTH = """
# @package _global_
dataset_loader: pipelinerl.domains.multidomain.loader.load_datasets
dataset_loader_params:
  domain_loaders: {guessing: domains.guessing.stepwise.load_problems}
  per_domain_params:
    guessing: {count: 40, highest: 20, max_guesses: 2}
    math: {max_problems: 40, highest: 9}
train_dataset_names: ["guessing::numbers@train", "math::arithmetic_train"]
test_dataset_names: ["guessing::numbers@test", "math::arithmetic_test@test"]
domain_hooks: [domains.guessing.demonstrations.GuessingDomain, domains.math.domain.MathDomain]
environments:
  math: {_target_: domains.math.MathEnvironment, workers: 1}
model_path: domains/guessing/checkpoint
engine: {max_model_len: 256}
llm: {parameters: {max_tokens: 8}}
test_llm: {parameters: {max_tokens: 8}}
max_lag: 64
eval_every_n_versions: 1000000
actor:
  rollout_policy: pipelinerl.domains.dispatcher.generate_multidomain_rollout
  domain_rollouts: {guessing: domains.guessing.stepwise.generate_guessing_rollout}
  domain_mix: {guessing: 3, math: 1}
finetune:
  max_train_steps: 5
  seq_length: 1024
  rl: {step_reward_advantages: true}
"""


def domains_of_groups(output_dir: Path) -> dict[str, str]:
    """Domain of each published group, told from its prompt."""
    groups = records_of(output_dir, "actor")
    return {g[0]["group_id"]: "guessing" if "guess 1-" in g[0]["text"] else "math" for g in groups}


@pytest.mark.slow
def test_two_domains_train_one_policy_in_the_wanted_mixture(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "domain"
    folder.mkdir(parents=True)
    (folder / "both.yaml").write_text(BOTH)
    size = "finetune.gradient_accumulation_passes=32"
    run = start(f"--config-dir={folder.parent}", "+domain=both", size)
    assert run.wait() == 0, run.err
    out, cfg = run.output_dir, load(run.output_dir)
    assert not run.children()
    assert [job.environment_key for job in cfg.jobs_of("environment")] == ["math"]

    counts = run.counts()
    tests = Counter(p["domain"] for p in load_datasets(cfg.test_dataset_names, **cfg.dataset_loader_params))
    assert set(tests) == {"guessing", "math"}
    assert counts.eval_ends[Outcome.EVAL_DONE] == counts.eval_started == 2 * sum(tests.values())

    check_run(out)
    check_draws(domains_of_groups(out), cfg)
    check_updates(domains_of_groups(out), out)
    check_figures(read_metrics(out, "actor"))


def check_draws(published: dict[str, str], cfg: Any) -> None:
    """Each group is of the domain that the weighted sampler draws for its number.

    Until the sampler corrects its shares, a draw depends on seed and number alone.
    """
    problems = load_datasets(cfg.train_dataset_names, **cfg.dataset_loader_params)
    sampler = ProblemSampler(problems, cfg.seed, cfg.actor.domain_mix)
    drawn = [str(problems[sampler.draw().problem]["domain"]) for _ in range(ADAPT_AFTER)]
    early = {id_: domain for id_, domain in published.items() if int(id_.rpartition("-")[2]) < ADAPT_AFTER}
    assert len(early) > 10
    assert early == {id_: drawn[int(id_.rpartition("-")[2])] for id_ in early}


def check_updates(published: dict[str, str], output_dir: Path) -> None:
    """Rollouts of both domains were trained on."""
    lines = (output_dir / "accounting/finetune.jsonl").read_text().splitlines()
    ended = [entry for entry in map(json.loads, lines) if entry["outcome"] == "trained"]
    trained = Counter(published[name.rpartition("/")[0]] for entry in ended for name in entry["rollouts"])
    assert min(trained["guessing"], trained["math"]) > 0


def check_figures(actor: list[dict[str, Any]]) -> None:
    """The mixture, and reward, success and what a domain alone reports, by domain."""
    last = [record for record in actor if "actor/domain_mix_count/math" in record][-1]
    counts = {name: last[f"actor/domain_mix_count/{name}"] for name in ("guessing", "math")}
    for name, wanted in (("guessing", 0.75), ("math", 0.25)):
        assert last[f"actor/domain_mix_target/{name}"] == wanted
        assert last[f"actor/domain_mix_actual/{name}"] == counts[name] / sum(counts.values())
        for metric in ("reward", "success", "no_error", "output_tokens"):
            assert any(f"actor/{name}/{metric}_mean" in record for record in actor), (name, metric)
    assert sum(counts.values()) == last["actor/finished_groups"]
    assert counts["guessing"] > counts["math"] > 0
    assert any("actor/math/verify_s_mean" in record for record in actor)
    assert not any("actor/guessing/verify_s_mean" in record for record in actor)
    evaluations = [record for record in actor if "actor/test_problems" in record]
    assert len(evaluations) == 2
    assert all(f"actor/{name}/reward_mean" in record for record in evaluations for name in counts)
