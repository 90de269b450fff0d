"""What the domain tells the core: its world, its server, its checks."""

import json
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.domain import PrivacyHopQADomain, world_paths
from domains.privacy_hopqa.leakage import section
from pipelinerl.config import ConfigError
from pipelinerl.config.compose import Request, compose
from pipelinerl.domain import Domain

DOMAIN = PrivacyHopQADomain()
GOOD = {
    "engine": {"kind": "embedded", "max_model_len": 1024},
    "finetune": {"seq_length": 1024, "rl": {"step_reward_advantages": True, "role_weights": {}}},
    "test_dataset_names": ["val"],
    "privacy_hopqa": {
        "prompt_set": "compact",
        "max_candidate_cards": 6,
        "reader_window_chars": 3000,
        "reader_window_overlap_chars": 300,
        "training_reward_mode": "hop_step_situational",
        "generation_context_limit_tokens": 1024,
        "world": {"size": "tiny", "seed": 1},
    },
}


def config(**changes):
    cfg = OmegaConf.create(json.loads(json.dumps(GOOD)))
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value, force_add=True)
    return cfg


def test_it_is_a_domain():
    assert isinstance(DOMAIN, Domain)
    assert DOMAIN.validate(config()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy_hopqa__prompt_set": "long"}, "privacy_hopqa.prompt_set"),
        ({"privacy_hopqa__constrained_resolver": True}, "constrained_resolver=true needs prompt_set=full"),
        ({"privacy_hopqa__max_candidate_cards": 20}, "max_candidate_cards=20 must be at most 9"),
        (
            {"privacy_hopqa__retrieval_workers": 2, "privacy_hopqa__helper_service_url": "http://h"},
            "retrieval_workers=2 is for the server that a run starts",
        ),
        ({"privacy_hopqa__log_prompts": True}, "log_prompts is not a setting here; use trace_fraction"),
        ({"privacy_hopqa__reader_window_overlap_chars": 10_000}, "must be smaller than reader_window_chars"),
        (
            {
                "privacy_hopqa__scoring_server_options": [],
                "privacy_hopqa__privacy_reward_service_url": "http://s",
            },
            "scoring_server_options starts a server",
        ),
        (
            {
                "privacy_hopqa__scoring_server_options": [],
                "privacy_hopqa__max_iterations": 33,
                "privacy_hopqa__max_parallel_retrieval_actions": 2,
            },
            "may be more web queries than the 64 that a scoring service takes",
        ),
        (
            {"privacy_hopqa__rollout_timeout_s": 60, "actor__rollout_deadline_s": 60},
            "rollout_timeout_s=60 must be below actor.rollout_deadline_s=60",
        ),
        (
            {"privacy_hopqa__generation_context_limit_tokens": 512},
            "generation_context_limit_tokens=512: too small for a window of",
        ),
        ({"privacy_hopqa__max_itertions": 3}, "privacy_hopqa.max_itertions: unknown setting"),
        ({"privacy_hopqa__world": {"size": "huge"}}, "world.size='huge'"),
        ({"finetune__rl__step_reward_advantages": False}, "needs finetune.rl.step_reward_advantages=true"),
        ({"privacy_hopqa__answer_context": "gold"}, "answer_context=gold uses gold answers"),
        ({"privacy_hopqa__stop_after_incorrect_hop": True}, "stop_after_incorrect_hop=true uses gold"),
        (
            {"engine__max_model_len": 512},
            "engine.max_model_len=512 is below privacy_hopqa.generation_context",
        ),
        (
            {"engine__kind": "vllm", "vllm_config__vllm_kwargs__max_model_len": 1000},
            "vllm_config.vllm_kwargs.max_model_len=1000 is below privacy_hopqa.generation_context",
        ),
        ({"finetune__seq_length": 512}, "finetune.seq_length=512 is below"),
        ({"privacy_hopqa__generation_context_margin_tokens": 1024}, "leaves no room"),
        ({"privacy_hopqa__anchor_stages": True}, "it needs capture_mode=all_calls"),
        (
            {"privacy_hopqa__anchor_stages": True, "privacy_hopqa__capture_mode": "all_calls"},
            "set finetune.rl.role_weights={policy: 1, anchor: 0}",
        ),
        (
            {"privacy_hopqa__anchor_stages": True, "privacy_hopqa__training_reward_mode": "outcome"},
            "anchor_stages=true needs training_reward_mode=hop_step_situational",
        ),
        ({"finetune__rl__role_weights": {"policy": 1}}, "only with privacy_hopqa.anchor_stages=true"),
        ({"privacy_hopqa__final_dataset_path": "/gone"}, "final_dataset_path=/gone: no such file"),
    ],
)
def test_problems_are_named_before_anything_starts(changes, message):
    problems = DOMAIN.validate(config(**changes))
    assert any(message in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_anchors_with_role_weights_are_fine():
    weights = {"policy": 1, "anchor": 0}
    cfg = config(
        privacy_hopqa__anchor_stages=True,
        privacy_hopqa__capture_mode="all_calls",
        finetune__rl__role_weights=weights,
    )
    assert DOMAIN.validate(cfg) == []


def test_the_world_is_made_once_and_served(tmp_path):
    cfg = config()
    values = DOMAIN.prepare(cfg, tmp_path)
    assert values == world_paths(tmp_path / "world")
    for key, value in values.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    assert DOMAIN.validate(cfg) == []
    (service,) = DOMAIN.services(cfg)
    fingerprint = json.loads((tmp_path / "world" / "manifest.json").read_text())["fingerprint"]
    assert service.argv[-1] == fingerprint
    assert service.url_key == "privacy_hopqa.helper_service_url"
    problems = load_problems(
        ["train", "val"],
        final_train_dataset_path=cfg.privacy_hopqa.final_train_dataset_path,
        final_val_dataset_path=cfg.privacy_hopqa.final_val_dataset_path,
        task_data_root=cfg.privacy_hopqa.task_data_root,
    )
    assert len(problems) == 32
    assert {p["split"] for p in problems} == {"train", "val"}
    assert all(h.gold_values and h.answer for p in problems for h in p["chain"].hops)
    manifest = tmp_path / "world" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    DOMAIN.prepare(config(), tmp_path)
    assert manifest.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("llm_provider", "every call goes to the rollout policy"),
        ("verbose", "use trace_fraction"),
        ("use_remote_search", "searches always go to the retrieval server"),
        ("browsecomp_enabled", "use no_web"),
        ("local_index_path", "the retrieval server indexes task_data_root"),
        ("embedding_model", "retrieval is BM25"),
        ("semantic_threshold", "use local_search_threshold"),
        ("retrieval_context_mode", "documents are always windowed"),
        ("reader_excerpt_chars", "use reader_window_chars"),
        ("browsecomp_max_chars", "use retrieval_source_chars"),
        ("large_parent_window_policy", "use large_parent_top_windows"),
        ("parallel_searches", "use max_parallel_retrieval_actions"),
        ("log_prompts", "use trace_fraction"),
    ],
)
def test_keys_of_the_published_recipe_without_a_counterpart_name_what_replaces_them(key, says):
    (problem,) = DOMAIN.validate(config(**{f"privacy_hopqa__{key}": 1}))
    assert f"{key} is not a setting here" in problem and says in problem
    with pytest.raises(ConfigError, match=f"privacy_hopqa.{key}: is not a setting here") as error:
        compose(Request(overrides=["+domain=privacy_hopqa", "hardware=cpu", f"privacy_hopqa.{key}=1"]))
    assert says in str(error.value)


def test_a_key_that_never_was_is_unknown():
    with pytest.raises(ConfigError, match="maxiterations: unknown key; did you mean"):
        compose(Request(overrides=["+domain=privacy_hopqa", "hardware=cpu", "privacy_hopqa.maxiterations=1"]))


COMPACT_PRESET = {
    "prompt_set": "compact",
    "generation_context_limit_tokens": 4096,
    "generation_context_margin_tokens": 64,
    "hop_plan_max_tokens": 384,
    "doc_choose_max_tokens": 128,
    "doc_read_max_tokens": 256,
    "hop_resolve_max_tokens": 256,
    "reader_window_chars": 3000,
    "reader_window_overlap_chars": 300,
    "retrieval_chunk_chars": 1500,
    "retrieval_chunk_overlap_chars": 300,
    "chooser_excerpt_chars": 160,
    "max_candidate_cards": 8,
    "max_history_entries": 4,
}


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        ("compact", COMPACT_PRESET),
        ("situational", {"training_reward_mode": "hop_step_situational", "privacy_reward_weight": 1.0}),
    ],
)
def test_presets(preset, values):
    overrides = ["+domain=privacy_hopqa", "hardware=gpu", f"+preset=privacy_hopqa_{preset}"]
    tree = compose(Request(overrides=overrides)).tree
    assert {key: tree.privacy_hopqa[key] for key in values} == values
    tree.privacy_hopqa.world = {"size": "tiny"}
    assert DOMAIN.validate(tree) == []


def test_a_scoring_server_is_started_on_request():
    services = DOMAIN.services(config(privacy_hopqa__scoring_server_options=["--workers", "1"]))
    assert [service.name for service in services] == ["retrieval", "scoring"]
    assert services[1].argv[-2:] == ["--workers", "1"]
    assert services[1].url_key == "privacy_hopqa.privacy_reward_service_url"


def test_several_retrieval_processes_on_request():
    (service,) = DOMAIN.services(config(privacy_hopqa__retrieval_workers=3))
    assert service.argv[-2:] == ["--workers", "3"]


def test_a_configured_service_or_dataset_is_used_as_it_is(tmp_path):
    assert DOMAIN.services(config(privacy_hopqa__helper_service_url="http://h")) == []
    assert DOMAIN.prepare(config(privacy_hopqa__final_dataset_path="x.jsonl"), tmp_path) == {}


def test_the_domain_needs_no_torch():
    modules = "domains.privacy_hopqa.domain, domains.privacy_hopqa.rollouts, domains.privacy_hopqa.dataset"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def evaluation(chain, version, *queries):
    """Audit lines of one evaluation rollout."""
    who = {
        "rollout_id": f"{chain.chain_id}/{version}",
        "split": "val",
        "task_id": chain.task_id,
        "chain_id": chain.chain_id,
        "training": False,
        "model_version": version,
    }
    yield {"event": "rollout", "ts": float(version), **who}
    for number, query in enumerate(queries):
        request = f"{chain.chain_id}/{version}/{number}"
        yield {
            "ts": version + number / 10,
            "request_id": request,
            "query": query,
            "action_id": request,
            **who,
        }


def test_the_report_compares_leakage_of_the_first_and_the_last_evaluation(tmp_path, monkeypatch):
    cfg = config()
    for key, value in DOMAIN.prepare(cfg, tmp_path).items():
        OmegaConf.update(cfg, key, value, force_add=True)
    block = cfg.privacy_hopqa
    params = {"final_val_dataset_path": block.final_val_dataset_path, "task_data_root": block.task_data_root}
    cfg.train_dataset_names, cfg.dataset_loader_params = [], params
    monkeypatch.setattr(section, "load_tree", lambda output_dir: cfg)
    chains = [p["chain"] for p in load_problems(["val"], **params)]
    (fact, *_) = chains[0].private_questions("chain")
    leaky = f"{fact.question.replace(chains[0].company, '')} {fact.answer}"
    rows = [*evaluation(chains[0], 0, leaky), *evaluation(chains[1], 0), *evaluation(chains[0], 64)]
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (table,) = DOMAIN.report(tmp_path)
    assert table.rows[0][1:3] == ("version 0 (2 rollouts)", "version 64 (1 rollouts)")
    headline = next(row for row in table.rows if row[0] == "answer or full information")
    assert "(1/2)" in headline[1]
    assert "(0/1)" in headline[2]
    assert headline[3:] == ("0.0%", "0.0%")
