"""Composition: its order, its two spellings, its defaults."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from pipelinerl.config import Config, ConfigError, files, load, load_tree, save, typed
from pipelinerl.config.compose import Composition
from pipelinerl.config.keys import leaves

Compose = Callable[..., Composition]
ROOT = Path(__file__).resolve().parents[3]
CONF = Path(__file__).resolve().parents[3] / "conf"

DOMAINS = sorted(path.stem for path in (CONF / "domain").glob("*.yaml"))


@pytest.mark.parametrize("domain", DOMAINS)
def test_domain_and_config_name_compose_to_the_same_tree(composed: Compose, domain: str) -> None:
    by_group = composed(f"+domain={domain}", "seed=7")
    by_name = composed("seed=7", config_name=domain)
    assert by_group.tree == by_name.tree
    assert by_group.tree.domain_name == domain and len(DOMAINS) >= 5


def test_a_domain_without_plus_is_answered_with_the_right_spelling(composed: Compose) -> None:
    with pytest.raises(ConfigError, match=r"domain=guessing: write \+domain=guessing"):
        composed("domain=guessing")
    with pytest.raises(ConfigError, match=r"no such domain; did you mean guessing"):
        composed("+domain=gessing")


def test_what_a_run_uses_equals_the_defaults_of_the_models(composed: Compose) -> None:
    """One default per key, however it is reached: the bundled files and the classes agree."""
    tree = composed("hardware=gpu").tree
    run = typed(tree).model_dump(by_alias=True)
    plain = Config().model_dump(by_alias=True)
    plain["finetune"]["config_name"] = plain["model_path"]
    plain["finetune"]["rl"] |= {"final_kl_coef": 0.0, "final_entropy_bonus": 0.0}  # null: as the first one
    assert run == plain


def test_the_base_files_say_only_what_the_schema_does_not(composed: Compose, tmp_path: Path) -> None:
    """So that a key and its default are written once; what the files leave out is composed all the same."""
    base = OmegaConf.load(CONF / "base.yaml")
    base.finetune = OmegaConf.load(CONF / "finetune/base.yaml")
    del base["defaults"]
    defaults = leaves(OmegaConf.create(Config.defaults()))
    stated = leaves(base)  # type: ignore[arg-type]
    assert stated and all(value != defaults[key] for key, value in stated.items())
    assert list(leaves(composed("hardware=gpu").tree)) == list(defaults)


def test_every_key_is_documented() -> None:
    def undocumented(model: Any) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            if not model.meanings().get(name):
                found.append(f"{model.__name__}.{name}")
            nested = field.annotation
            if isinstance(nested, type) and hasattr(nested, "model_fields"):
                found += undocumented(nested)
        return found

    assert undocumented(Config) == []


def test_the_order_is_base_then_hardware_then_domain_then_both_then_user(
    composed: Compose, tmp_path: Path
) -> None:
    for folder, value in (("hardware/cpu", 2), ("domain/x", 3), ("domain_hardware/x_cpu", 4)):
        path = tmp_path / f"{folder}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package _global_\nseed: {value}\n")
    assert composed("hardware=gpu", config_dir=tmp_path).tree.seed == 42
    assert composed(config_dir=tmp_path).tree.seed == 2
    assert composed("+domain=x", config_dir=tmp_path).tree.seed == 4
    (tmp_path / "domain_hardware/x_cpu.yaml").unlink()
    assert composed("+domain=x", config_dir=tmp_path).tree.seed == 3
    assert composed("+domain=x", "seed=5", config_dir=tmp_path).tree.seed == 5


def test_values_of_a_users_file_that_the_domain_replaces_are_said(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/p.yaml").write_text("max_iterations: 7\nmax_examples: null\n")
    (tmp_path / "mine.yaml").write_text(
        "defaults: [base, part@privacy_hopqa: p, _self_]\nseed: 5\n"
        "dataset_loader: domains.privacy_hopqa.dataset.load_problems\n"
    )
    options: dict[str, Any] = {"config_dir": tmp_path, "config_name": "mine"}
    made = composed("+domain=privacy_hopqa", "hardware=gpu", **options)
    assert (made.tree.privacy_hopqa.max_iterations, made.tree.seed) == (14, 5)
    (line,) = (one for one in made.notices if "lies over" in one)
    hooks = "domains.privacy_hopqa.domain.PrivacyHopQADomain"
    assert line == (
        "+domain=privacy_hopqa lies over mine.yaml and replaces its values of privacy_hopqa.max_iterations; "
        f"to keep these, leave it out and give domain_hooks={hooks}"
    )
    made = composed("+domain=privacy_hopqa", "privacy_hopqa.max_iterations=7", **options)
    assert not any("lies over" in one for one in made.notices)
    made = composed(f"domain_hooks={hooks}", **options)
    assert made.tree.privacy_hopqa.max_iterations == 7 and made.tree.domain_hooks == hooks
    assert not any("lies over" in one for one in made.notices)


def test_a_chosen_group_wins_over_the_domain_and_loses_to_a_key(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "domain").mkdir()
    (tmp_path / "domain/x.yaml").write_text(
        "# @package _global_\nfinetune: {attempts: 3, rl: {policy_loss: reinforce}}\n"
    )
    tree = composed("+domain=x", "finetune=grpo", config_dir=tmp_path).tree
    assert tree.finetune.rl.policy_loss == "ppo"
    tree = composed(
        "+domain=x", "finetune=grpo", "finetune.rl.policy_loss=reinforce", config_dir=tmp_path
    ).tree
    assert tree.finetune.rl.policy_loss == "reinforce"


@pytest.mark.parametrize("preset", ["mine", "on_mine"])
def test_a_chosen_file_wins_also_where_it_writes_the_usual_value(
    composed: Compose, tmp_path: Path, preset: str
) -> None:
    """The schema's seed, the profile's length and a schedule of its own, over a domain that has others."""
    files = {
        "domain/x": "seed: 3\nfinetune: {seq_length: 512, lr_scheduler_type: constant, learning_rate: 0.1}",
        "domain_hardware/x_cpu": "finetune: {seq_length: 1024}\nactor: {llm_max_rollouts: 7}",
        "preset/mine": "seed: 42\nfinetune: {seq_length: 2048, lr_scheduler_type: cosine}",
        "preset/on_mine": "defaults: [/preset/mine, _self_]\nfinetune: {lr_scheduler_type: cosine}",
    }
    for name, content in files.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# @package _global_\n{content}\n")
    given = ("+domain=x", "hardware=cpu", f"+preset={preset}")
    tree = composed(*given, config_dir=tmp_path).tree
    assert (tree.seed, tree.finetune.seq_length, tree.finetune.lr_scheduler_type) == (42, 2048, "cosine")
    assert (tree.actor.llm_max_rollouts, tree.finetune.learning_rate) == (7, 0.1)  # not written in it
    assert composed(*given, "finetune.seq_length=96", config_dir=tmp_path).tree.finetune.seq_length == 96


def test_a_chosen_group_of_the_base_wins_over_the_domain_and_the_profile(
    composed: Compose, tmp_path: Path
) -> None:
    (tmp_path / "finetune").mkdir()
    mine = "defaults: [base, _self_]\nattempts: 4\nseq_length: 12000\nrl:\n  epsilon_low: ${.epsilon_high}\n"
    (tmp_path / "finetune/mine.yaml").write_text(mine)
    tree = composed("+domain=guessing", "finetune=mine", "hardware=cpu", config_dir=tmp_path).tree
    assert (tree.attempts, tree.finetune.seq_length) == (4, 12000)
    assert leaves(tree)["finetune.rl.epsilon_low"] == "${.epsilon_high}"
    assert composed("finetune=mine", "hardware=cpu", config_dir=tmp_path).tree.finetune.seq_length == 12000
    assert composed("+domain=raro", "finetune=grpo").tree.attempts == 8


def test_a_group_that_builds_on_the_base_leaves_what_the_domain_sets_over_it(composed: Compose) -> None:
    given = ("+domain=reputation_hacking", "hardware=cpu")
    assert composed(*given, "finetune=grpo").tree.finetune.rl.final_kl_coef == 0.0  # base: as kl_coef
    assert composed(*given, "finetune=base").tree.finetune.rl.final_kl_coef == 0.15


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        (
            "+domain=reasoning_gym +preset=reasoning_gym_small",
            {
                "finetune.lr_scheduler_type": "constant",
                "actor.llm_max_rollouts": 32,
                "finetune.seq_length": 1024,
            },
        ),
        (
            "+domain=privacy_hopqa +preset=privacy_hopqa_pretrained",
            {"llm.parameters.max_tokens": 256, "finetune.seq_length": 16384, "finetune.max_train_steps": 100},
        ),
    ],
)
def test_a_preset_is_the_same_on_a_cpu_whatever_its_profile_sets(
    composed: Compose, words: str, measured: dict[str, Any]
) -> None:
    found = leaves(composed(*words.split(), "hardware=cpu").tree)
    assert {key: found[key] for key in measured} == measured


def test_a_user_s_folder_is_searched_first_and_may_build_on_base(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [base, _self_]\nseed: 9\n")
    tree = composed(config_name="mine", config_dir=tmp_path).tree
    assert tree.seed == 9 and tree.finetune.attempts == 8
    with pytest.raises(ConfigError, match="did you mean mine"):
        composed(config_name="mien", config_dir=tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        composed(config_dir=tmp_path / "absent")


def test_a_domain_may_bring_keys_but_no_near_miss_of_a_core_key(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "domain").mkdir()
    path = tmp_path / "domain/x.yaml"
    path.write_text("# @package _global_\nsandbox_endpoint: null\nactor: {agent_max_loops: 3}\n")
    composition = composed("+domain=x", "actor.agent_max_loops=5", config_dir=tmp_path)
    assert composition.tree.domain_keys == ["sandbox_endpoint", "actor.agent_max_loops"]
    assert typed(composition.tree).actor.agent_max_loops == 5  # type: ignore[attr-defined]
    path.write_text("# @package _global_\nactor: {llm_max_rollout: 3}\n")
    with pytest.raises(ConfigError, match=r"did you mean actor\.llm_max_rollouts"):
        composed("+domain=x", config_dir=tmp_path)


def test_interpolations_follow_the_user_s_value(composed: Compose) -> None:
    tree = composed("finetune.attempts=5", "llm.parameters.temperature=0.7", "finetune.rl.kl_coef=0.1").tree
    assert (tree.attempts, tree.finetune.rl.temperature, tree.finetune.rl.final_kl_coef) == (5, 0.7, 0.1)


@pytest.mark.parametrize(("given", "expected"), [("true", True), ("selective", "selective"), ("3", 3)])
def test_recomputation_is_a_switch_a_word_or_a_number(
    composed: Compose, given: str, expected: object
) -> None:
    found = typed(composed(f"finetune.gradient_checkpointing={given}").tree).finetune.gradient_checkpointing
    assert found == expected and isinstance(found, bool) == isinstance(expected, bool)


def test_the_engine_takes_the_older_spelling_of_its_context(composed: Compose) -> None:
    cfg = typed(composed("hardware=gpu", "vllm_config.vllm_kwargs.max_model_len=4096").tree)
    assert cfg.engine.max_model_len == 4096


def test_a_bundled_model_is_found_from_any_directory(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(composed("+domain=privacy_hopqa").tree.model_path)
    assert path.is_absolute() and path.parts[-3:] == ("domains", "privacy_hopqa", "checkpoint")


def test_gpu_profiles_of_the_domains_ask_for_a_model(composed: Compose) -> None:
    with pytest.raises(ConfigError, match="model_path: missing; set model_path=VALUE"):
        typed(composed("+domain=privacy_hopqa", "hardware=gpu").tree)


ODD_TEXTS = [
    *(
        "",
        " a ",
        "a: b",
        "# a",
        "- a",
        "'a'",
        '"a"',
        "a\nb\n",
        "a\r\nb",
        "\t",
        "\x07",
        "é",
        "👩‍👩‍👧",
        "x" * 300,
    ),
    *("word " * 60, "[1]", "{a: 1}", "&a", "*a", "!a", "%a", "@a", "=", "<<", "y", "No", "ON", "true", "~"),
    *("null", "1", "-1", "1_000", "1e5", "1e-06", "1.", ".5", "nan", "+.inf", "0x1f", "0o7", "1:30"),
    *("2024-01-01", "2024-01-01 10:00:00"),
]


@pytest.mark.parametrize("with_libyaml", [True, False])
def test_values_that_are_written_are_read_as_they_were(
    with_libyaml: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_libyaml:
        slow = type("Slow", (yaml.Dumper,), {})
        slow.add_representer(str, files._text)
        monkeypatch.setattr(files, "_Dumper", slow)
    for text in ODD_TEXTS:
        values = {"text": text, "of_list": [text, {"a": text}], text or "empty": 1e-06, "none": None}
        assert OmegaConf.create(files.as_yaml(values)) == values, repr(text)


def test_saving_and_loading_keeps_the_tree_and_says_who_reads_it(composed: Compose, tmp_path: Path) -> None:
    tree = composed("+domain=guessing").tree
    tree.jobs = [
        {"kind": "actor_llm", "idx": 0, "url": "http://127.0.0.1:1", "port": 1, "name": "actor_vllm_0"},
        {"kind": "actor", "idx": 1, "name": "actor"},
        {"kind": "actor_llm", "idx": 2, "url": "http://127.0.0.1:3", "port": 3, "name": "actor_vllm_1"},
    ]
    tree.jobs = [job.model_dump() for job in typed(tree).jobs]
    save(tree, tmp_path)
    with pytest.raises(ConfigError, match="has no section derived; start the run again"):
        load(tmp_path)
    tree.derived = {"trainer_ranks": 1, "texts_per_step": 4, "texts_per_update": 4}
    save(tree, tmp_path)
    loaded = load(tmp_path)
    assert loaded.model_dump() == typed(tree).model_dump()
    with pytest.raises(ValueError, match="frozen"):
        loaded.seed = 1  # type: ignore[misc]
    me = load_tree(tmp_path, job=1).me
    # Upstream's launcher joins the addresses so, and its policies split them.
    assert str(me.llm_urls).split("+") == ["http://127.0.0.1:1", "http://127.0.0.1:3"]
    assert me.kind == "actor"
    with pytest.raises(ConfigError, match="no such job"):
        load_tree(tmp_path, job=5)
    with pytest.raises(ConfigError, match="not found"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("domain", ["coding", "counting"])
def test_keys_of_a_loader_that_the_domain_s_page_lists_are_set_like_others(
    composed: Compose, domain: str
) -> None:
    page = (ROOT / "domains" / domain / "README.md").read_text(encoding="utf-8")
    table = page.partition("| key of `dataset_loader_params` |")[2].partition("\n\n")[0]
    first = (line.split("|")[1] for line in table.splitlines()[2:])
    listed = [key for cell in first for key in re.findall(r"`(\w+)`", cell)]
    assert len(listed) > 2
    composed(f"+domain={domain}", *(f"dataset_loader_params.{key}=null" for key in listed))


def test_the_difficulties_that_leave_out_published_puzzles_are_set_like_other_keys(composed: Compose) -> None:
    made = composed(
        "+domain=logic",
        "dataset_loader_params.min_difficulty=0.2",
        "dataset_loader_params.max_difficulty=0.8",
    )
    params = made.tree.dataset_loader_params
    assert (params.min_difficulty, params.max_difficulty) == (0.2, 0.8)
