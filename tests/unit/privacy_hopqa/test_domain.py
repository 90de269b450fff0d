"""What the domain tells the core: its world, its server, its checks."""

import json

import pytest
from omegaconf import OmegaConf

from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.domain import PrivacyHopQADomain, world_paths
from domains.privacy_hopqa.leakage import section
from domains.privacy_hopqa.world import generate, world_config
from pipelinerl.config import ConfigError
from pipelinerl.config.compose import compose
from pipelinerl.domain import Domain
from pipelinerl.launcher.validate import domain_problems
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import SingleStreamSpec
from retrieval_server.arguments import parse_arguments
from retrieval_server.corpus import CorpusError
from tests.support.one_line import check_one_line
from tests.support.privacy_hopqa.leakage import audit_line, ended, write_chains, write_lines
from tests.unit.streams.conftest import fill

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


def config(changes=""):
    """The good configuration with changes; a key without one of its other sections is one of the domain's."""
    cfg, given = OmegaConf.create(json.loads(json.dumps(GOOD))), changes.split()
    sections = ("engine", "finetune", "actor", "vllm_config")
    dotted = [item if item.startswith(sections) else f"privacy_hopqa.{item}" for item in given]
    return OmegaConf.merge(cfg, OmegaConf.from_dotlist(dotted))


def test_it_is_a_domain():
    assert isinstance(DOMAIN, Domain)
    assert DOMAIN.validate(config()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("prompt_set=long", "privacy_hopqa.prompt_set"),
        ("constrained_resolver=true", "constrained_resolver=true needs prompt_set=full"),
        ("max_candidate_cards=20", "max_candidate_cards=20 must be at most 9"),
        (
            "retrieval_workers=2 helper_service_url=http://h",
            "retrieval_workers=2 is for the server",
        ),
        (
            "retrieval_replicas=2 helper_service_url=http://h",
            "retrieval_replicas=2 is for the server",
        ),
        ("helper_service_url=[]", "helper_service_url=[]: no address; leave it out"),
        ("helper_service_url=[http://h,h]", "helper_service_url=h: no address of a service"),
        ("helper_service_url=[http://h,http://h]", "http://h is named twice"),
        ("log_prompts=true", "log_prompts is not a setting here; use trace_fraction"),
        ("reader_window_overlap_chars=10000", "must be smaller than reader_window_chars"),
        ("scoring_server_options=[] privacy_reward_service_url=http://s", "scoring_server_options starts a"),
        (
            "scoring_server_options=[] max_iterations=33 max_parallel_retrieval_actions=2",
            "may be more web queries than the 64 that a scoring service takes",
        ),
        (
            "rollout_timeout_s=60 actor.rollout_deadline_s=60",
            "rollout_timeout_s=60 must be below actor.rollout_deadline_s=60",
        ),
        ("generation_context_limit_tokens=512", "limit_tokens=512 leaves 384 tokens for a prompt and its"),
        ("max_itertions=3", "privacy_hopqa.max_itertions: unknown setting"),
        ("max_iterations=0", "privacy_hopqa.max_iterations: "),
        ("world.size=huge", "world.size='huge'"),
        ("finetune.rl.step_reward_advantages=false", "needs finetune.rl.step_reward_advantages=true"),
        ("answer_context=gold", "answer_context=gold uses gold answers"),
        ("stop_after_incorrect_hop=true", "stop_after_incorrect_hop=true uses gold"),
        ("engine.max_model_len=512", "engine.max_model_len=512 is below privacy_hopqa.generation_context"),
        (
            "engine.kind=vllm vllm_config.vllm_kwargs.max_model_len=1000",
            "vllm_config.vllm_kwargs.max_model_len=1000 is below privacy_hopqa.generation_context",
        ),
        ("finetune.seq_length=512", "finetune.seq_length=512 is below"),
        ("generation_context_margin_tokens=1024", "leaves no room"),
        ("anchor_stages=true", "it needs capture_mode=all_calls"),
        ("anchor_stages=true capture_mode=all_calls", "set finetune.rl.role_weights={policy: 1, anchor: 0}"),
        (
            "anchor_stages=true training_reward_mode=outcome",
            "anchor_stages=true needs training_reward_mode=hop_step_situational",
        ),
        (
            "training_reward_mode=outcome privacy_reward_weight=1",
            "privacy_reward_weight=1 lowers the rewards of plans, which have none of their own",
        ),
        ("finetune.rl.role_weights.policy=1", "only with privacy_hopqa.anchor_stages=true"),
        ("helper_service_url=localhost:8700", "helper_service_url=localhost:8700: no address of a service"),
        ("helper_service_url=http://h:x", "helper_service_url=http://h:x: no address"),
        ("privacy_reward_service_url=ftp://h", "privacy_reward_service_url=ftp://h: no address of a service"),
        ("final_dataset_path=/gone", "final_dataset_path=/gone: no such file"),
        ("task_data_root=tasks", "task_data_root=tasks: no chain file is named, so the run would serve"),
        ("web_corpus_path=web.jsonl", "web_corpus_path=web.jsonl: no chain file is named"),
    ],
)
def test_problems_are_named_before_anything_starts(changes, message):
    problems = DOMAIN.validate(config(changes))
    assert any(message in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_anchors_with_role_weights_are_fine():
    roles = "finetune.rl.role_weights.policy=1 finetune.rl.role_weights.anchor=0"
    assert DOMAIN.validate(config(f"anchor_stages=true capture_mode=all_calls {roles}")) == []


def test_the_world_is_made_once_and_served(tmp_path):
    cfg = config()
    values = DOMAIN.prepare(cfg, tmp_path)
    assert values == world_paths(tmp_path / "world")
    for key, value in values.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    assert DOMAIN.validate(cfg) == []
    (service,) = DOMAIN.services(cfg)
    fingerprint = json.loads((tmp_path / "world" / "manifest.json").read_text())["fingerprint"]
    argv = [word.format(host="127.0.0.1", port=0) for word in service.argv[3:]]
    assert parse_arguments(argv).fingerprint == fingerprint
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
    with (tmp_path / "world/web.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(CorpusError, match=r"web\.jsonl is missing or was changed since"):
        parse_arguments(argv)


def test_the_server_of_a_run_gives_what_the_run_asks_for():
    (bounded,) = DOMAIN.services(config("retrieval_source_chars=2000000"))
    assert bounded.argv[-4:] == ["--max-hit-chars", "2000000", "--max-answer-chars", "2000000"]
    (default,) = DOMAIN.services(config("retrieval_source_chars=4000"))
    assert "--max-hit-chars" not in default.argv


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
    (problem,) = DOMAIN.validate(config(f"{key}=1"))
    assert f"{key} is not a setting here" in problem and says in problem
    with pytest.raises(ConfigError, match=f"privacy_hopqa.{key}: is not a setting here") as error:
        compose(["+domain=privacy_hopqa", "hardware=cpu", f"privacy_hopqa.{key}=1"])
    assert says in str(error.value)
    # As in a configuration file, where no override is looked at.
    forced = compose(["+domain=privacy_hopqa", "hardware=cpu", f"+privacy_hopqa.{key}=1"])
    (problem,) = domain_problems(forced.tree, DOMAIN)
    assert f"privacy_hopqa.{key}: is not a setting here" in problem and says in problem


@pytest.mark.parametrize("preset", ["pretrained", "situational", "situational_padded"])
def test_presets_are_valid_as_they_are(preset):
    overrides = ["+domain=privacy_hopqa", "hardware=gpu", f"+preset=privacy_hopqa_{preset}"]
    tree = compose(overrides).tree
    assert tree.privacy_hopqa.prompt_set == "full"
    rewards = tree.privacy_hopqa.training_reward_mode, tree.privacy_hopqa.privacy_reward_weight
    assert rewards == ("hop_step_situational", 1.0)
    assert tree.finetune.rl.pad_step_rewards_for_advantage == (preset == "situational_padded")
    tree.privacy_hopqa.world = {"size": "tiny"}
    assert DOMAIN.validate(tree) == []


def test_a_scoring_server_is_started_on_request():
    services = DOMAIN.services(config("scoring_server_options=[--workers,'1']"))
    assert [service.name for service in services] == ["retrieval", "scoring"]
    assert services[1].argv[-2:] == ["--workers", "1"]
    assert services[1].url_key == "privacy_hopqa.privacy_reward_service_url"


def test_a_large_corpus_is_searched_through_files_and_may_take_longer_to_start(tmp_path):
    corpus = tmp_path / "web.jsonl"
    corpus.write_text("")
    cfg = config(f"web_corpus_path={corpus} final_dataset_path=x.jsonl")
    (small,) = DOMAIN.services(cfg)
    assert small.argv[small.argv.index("--backend") + 1] == "rank_bm25"
    with corpus.open("wb") as file:
        file.truncate(3_000_000_000)
    (large,) = DOMAIN.services(cfg)
    assert large.argv[large.argv.index("--backend") + 1] == "bm25s"
    assert (small.start_deadline_s, large.start_deadline_s) == (60, 1560)
    assert large.health == "/ready"
    assert large.note == f"bm25s, 3,000.0 MB of web text, index {corpus}.bm25s"


def test_several_retrieval_processes_on_request():
    (service,) = DOMAIN.services(config("retrieval_workers=3 retrieval_replicas=2"))
    assert service.argv[-2:] == ["--workers", "3"]
    assert service.replicas == 2


def test_a_configured_service_or_dataset_is_used_as_it_is(tmp_path):
    assert DOMAIN.services(config("helper_service_url=http://h")) == []
    assert DOMAIN.prepare(config("final_dataset_path=x.jsonl"), tmp_path) == {}


def test_datasets_named_by_their_files_are_asked_and_served_without_a_generated_world(tmp_path):
    """As in `train_dataset_names: [PATH]` of the pull request's configurations."""
    world = generate(world_config(size="tiny", seed=3), tmp_path / "theirs")
    cfg = config(f"task_data_root={world}/tasks web_corpus_path={world}/web.jsonl")
    cfg.train_dataset_names, cfg.test_dataset_names = (
        [f"{world}/chains_{one}.jsonl"] for one in ("train", "val")
    )
    assert DOMAIN.validate(cfg) == []
    assert DOMAIN.prepare(cfg, tmp_path / "run") == {}
    (service,) = DOMAIN.services(cfg)
    assert f"{world}/tasks" in service.argv and service.note.startswith("rank_bm25")
    cfg.privacy_hopqa.task_data_root = str(tmp_path / "gone")
    (problem,) = DOMAIN.validate(cfg)
    check_one_line(problem, f"privacy_hopqa.task_data_root={tmp_path}/gone: no such folder")
    cfg.privacy_hopqa.task_data_root = str(tmp_path)
    (problem,) = DOMAIN.validate(cfg)
    check_one_line(problem, f"{world}/chains_train.jsonl:1: task_id='DR90000': no such folder")


def evaluation(chain, version, *queries):
    """Audit lines of one evaluation rollout."""
    who = {"task_id": chain.task_id, "chain_id": chain.chain_id, "model_version": version}
    name = f"{chain.chain_id}/{version}"
    yield audit_line(name, version, event="rollout", **who)
    for query in queries:
        yield audit_line(name, version, query=query, **who)


@pytest.mark.parametrize(
    ("log", "said"), [(None, None), ('{"event": \n{}\n', "not known, the audit log is damaged: ")]
)
def test_a_run_without_an_audit_log_or_with_a_damaged_one_has_a_report(tmp_path, monkeypatch, log, said):
    """A replay of recorded streams (`debug.mode=finetune+preprocessor`) plays no rollouts, so has no log."""
    monkeypatch.setattr(section, "load_tree", lambda output_dir: config())
    if log is not None:
        (tmp_path / "audit").mkdir()
        (tmp_path / "audit" / "1.jsonl").write_text(log)
    sections = DOMAIN.report(tmp_path)
    if said is None:
        assert sections == []
    else:
        (found,) = sections
        check_one_line(found.text, f"{said}{tmp_path / 'audit' / '1.jsonl'}:1: not JSON")


@pytest.mark.parametrize("test_chain", ["c1", "c2", None], ids=["ambiguous", "unknown", "gone"])
def test_a_run_whose_chains_are_not_known_any_more_has_a_report(tmp_path, monkeypatch, test_chain):
    train, test = write_chains(tmp_path / "train.jsonl", "c3"), tmp_path / "test.jsonl"
    if test_chain is not None:
        write_chains(test, test_chain)
    if test_chain == "c1":
        train.write_text(test.read_text().replace("15%", "16%"))
    cfg = config(f"final_train_dataset_path={train} final_test_dataset_path={test}")
    cfg.train_dataset_names, cfg.test_dataset_names = ["train"], ["test"]
    monkeypatch.setattr(section, "load_tree", lambda output_dir: cfg)
    write_lines(tmp_path / "audit" / "1.jsonl", ended([audit_line("a", 1, event="rollout")]))
    (found,) = DOMAIN.report(tmp_path)
    said = {
        "c1": f"{test}:1: chain_id='c1' of task 'DR90001' is another chain in {train}:1",
        "c2": "chain 'c1' of task 'DR90001' is in no dataset file",
        None: f"final_test_dataset_path={test}: no such file",
    }
    check_one_line(found.text, said[test_chain])


def test_one_identity_for_two_chains_of_train_and_test_is_refused_at_the_start(tmp_path):
    train, test = (write_chains(tmp_path / f"{split}.jsonl", "c1", "c2") for split in ("train", "test"))
    cfg = config(f"final_train_dataset_path={train} final_test_dataset_path={test}")
    cfg = OmegaConf.merge(
        cfg, OmegaConf.create({"privacy_hopqa": {"helper_service_url": "http://127.0.0.1:9"}})
    )
    cfg.train_dataset_names, cfg.test_dataset_names = ["train"], ["test"]
    assert DOMAIN.validate(cfg) == []  # the same chain in both is the user's choice
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    write_lines(test, [rows[0], rows[1] | {"company": "Alpine Retail"}])
    (problem,) = DOMAIN.validate(cfg)
    check_one_line(problem, f"{test}:2: chain_id='c2' of task 'DR90001' is another chain in {train}:2")


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
    tries = [
        row | {"rollout_id": f"{version}#try"}
        for version in (0, 32)
        for row in evaluation(chains[0], version)
    ]
    write_lines(tmp_path / "audit" / "1.jsonl", [*ended(rows), *tries])
    (table,) = DOMAIN.report(tmp_path)
    assert table.rows[0][1:3] == ("version 0 (2 rollouts)", "version 64 (1 rollouts)")
    headline = next(row for row in table.rows if row[0] == "answer or full information")
    assert "(1/2)" in headline[1]
    assert "(0/1)" in headline[2]
    assert headline[3:] == ("0.0%", "0.0%")
    # A resume undid version 64: of version 0 the earlier pass stands.
    begins = max(row["ts"] for row in rows) + 0.5
    ResumePoint(0, 0, attempt=1, time=begins).write(tmp_path)
    (undone,) = DOMAIN.report(tmp_path)
    assert undone.rows[0][1:-2] == ("version 0 (2 rollouts)",) and "(1/2)" in undone.rows[1][1]
    # It evaluated version 0 again.
    later = [row | {"rollout_id": "again", "ts": row["ts"] + 1} for row in evaluation(chains[0], 0)]
    write_lines(tmp_path / "audit" / "2.jsonl", ended(later))
    fill(SingleStreamSpec(tmp_path, "stats_test"), {"version": 0, "values": {"success": [1.0, 1.0]}})
    (now,) = DOMAIN.report(tmp_path)
    assert now.rows[0][1:-2] == ("version 0 (2 rollouts)",) and "(0/2)" in now.rows[1][1]
    assert table.text.endswith(
        "did not finish (failed, given up or still going on) and are not rated: 1, with 0 web queries."
    )
