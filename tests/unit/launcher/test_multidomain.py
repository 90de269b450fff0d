"""Several domains in one run: datasets by domain, policies by domain, domains of other packages."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from domains.dispatcher import domain_of, generate_multidomain_rollout, register_domain_rollout, rollout_of
from domains.guessing import generate_guessing_rollout
from domains.multidomain.loader import DatasetSpec, load_datasets
from domains.tir.domain import TirDomain
from pipelinerl.config import ConfigError
from pipelinerl.config import installed as installed_module
from pipelinerl.config.compose import compose
from pipelinerl.domain import BaseDomain, ServiceSpec, load_domain
from pipelinerl.launcher.validate import domain_problems
from pipelinerl.rollouts import RolloutResult
from tests.support.toy_domain import load, result
from tests.unit.launcher.conftest import DryRun

HERE = "tests.unit.launcher.test_multidomain"


def split_letters(names: list[str], split: str) -> list[dict[str, Any]]:
    return [{"id": split, "dataset": "own"}]


def subset_letters(names: list[str], subset: str = "train", **others: Any) -> list[dict[str, Any]]:
    """As upstream's loaders name the part."""
    return [{"id": subset, "dataset": "own"}]


def of_two_domains(names: list[str]) -> list[dict[str, Any]]:
    return [
        {"answer": 3, "dataset": name, "domain": domain}
        for name in names
        for domain in ("guessing", "letters")
    ]


async def play_letters(cfg: Any, llm: Any, problem: Any, session: Any) -> RolloutResult:
    return result([], 1.0)


def play_plain(cfg: Any, llm: Any, problem: Any, session: Any) -> RolloutResult:
    return result([], 2.0)


def tree(**actor: object) -> DictConfig:
    section = {"domain_rollouts": {}, "llm_max_rollouts": 4, **actor}
    return OmegaConf.create(
        {"actor": section, "environment": None, "environments": None, "environment_key": None}
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("math::gsm8k", ("math", "gsm8k", None)),
        ("math::data/train.jsonl@test", ("math", "data/train.jsonl", "test")),
        ("math::a@b@all", ("math", "a@b", "all")),
        ("math::a@beta", ("math", "a@beta", None)),
        ("math::c::d@train", ("math", "c::d", "train")),
    ],
)
def test_an_entry_names_domain_dataset_and_part(entry: str, expected: tuple[str, str, str | None]) -> None:
    spec = DatasetSpec.parse(entry)
    assert (spec.domain, spec.dataset, spec.split) == expected


@pytest.mark.parametrize("entry", ["gsm8k", "::x", "math::", " ::a", "math:gsm8k"])
def test_an_entry_without_domain_or_dataset_is_refused_with_itself(entry: str) -> None:
    with pytest.raises(ValueError, match=f"dataset '{entry}': write <domain>::<dataset>"):
        DatasetSpec.parse(entry)


def test_problems_of_all_domains_carry_their_labels_and_arguments() -> None:
    problems = load_datasets(
        ["numbers::small", "letters::a"],
        per_domain_params={"numbers": {"count": 3, "highest": 9}, "letters": {"count": 2}},
        domain_loaders={
            "numbers": "domains.guessing.stepwise.load_problems",
            "letters": "tests.support.toy_domain.load",
        },
    )
    assert [problem["domain"] for problem in problems] == ["numbers"] * 3 + ["letters"] * 2
    assert [problem["dataset"] for problem in problems] == ["small"] * 3 + ["a"] * 2
    assert all(problem["highest"] == 9 for problem in problems[:3])


def test_parts_of_a_dataset_are_disjoint_complete_and_the_same_every_time() -> None:
    loaders = {"letters": lambda names: load(names, count=20)}

    def ids(part: str) -> list[str]:
        return [problem["id"] for problem in load_datasets([f"letters::a{part}"], domain_loaders=loaders)]

    train, test = ids("@train"), ids("@test")
    assert len(test) == 2 and sorted(train + test) == sorted(ids("@all")) == sorted(ids(""))
    assert (train, test) == (ids("@train"), ids("@test"))
    for loader in (split_letters, subset_letters):
        asked = load_datasets(["letters::a@test", "letters::a@all"], domain_loaders={"letters": loader})
        assert [(problem["id"], problem["dataset"]) for problem in asked] == [("test", "own"), ("all", "own")]


def test_parts_of_bundled_files_are_those_of_their_own_loaders(tmp_path: Path) -> None:
    tests = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    for name, count in (("taco", 40), ("livecode", 20)):
        rows = [{"question": f"{name} {number}", "input_output": tests} for number in range(count)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    truth = "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]"
    prompts = [
        {"messages": [{"role": "user", "content": f"prompt {n}"}], "ground_truth": truth} for n in range(30)
    ]
    (tmp_path / "ifeval.json").write_text(json.dumps(prompts))
    folder = {"data_dir": str(tmp_path)}
    params = {"coding": {**folder, "subset": "train"}, "ifeval": {**folder, "test_size": 12}}

    def asked(entry: str) -> list[str]:
        return [problem["task"] for problem in load_datasets([entry], per_domain_params=params)]

    for dataset, count, held_out in (
        ("coding::taco", 40, 4),
        ("coding::livecode", 20, 2),
        ("ifeval::ifeval", 30, 12),
    ):
        train, test = asked(f"{dataset}@train"), asked(f"{dataset}@test")
        assert (len(train), len(test)) == (count - held_out, held_out)
        assert sorted(train + test) == sorted(asked(f"{dataset}@all")) and len({*train, *test}) == count
    assert len(asked("coding::taco")) == 36 and len(asked("coding::livecode")) == 20
    parts = [asked(f"coding::tiny_train@{part}") for part in ("train", "test", "all")]
    assert list(map(len, parts)) == [900, 100, 1000] and sorted(parts[0] + parts[1]) == sorted(parts[2])


def test_parts_of_generated_calls_share_no_problem() -> None:
    """Upstream's README names `fn_calling::fn_calling@train` and `@test`; a part in the name goes before."""
    params = {"fn_calling": {"count": 400, "test_count": 40}}

    def asked(*entries: str) -> list[str]:
        problems = load_datasets(entries, per_domain_params=params)
        return [json.dumps([problem["task"], problem["extra_info"]]) for problem in problems]

    train, test = asked("fn_calling::fn_calling@train"), asked("fn_calling::fn_calling@test")
    assert (len(train), len(test)) == (5 * 400, 5 * 40) and not {*train} & {*test}
    validation = asked("fn_calling::fn_calling@validation")
    assert len(validation) == 5 * 40 and not {*validation} & {*train, *test}


@pytest.mark.parametrize(
    ("entries", "options", "message"),
    [
        (["gessing::a"], {}, "domain 'gessing': not bundled and not installed; set .*did you mean guessing"),
        (["guessing::a"], {"per_domain_params": {"guessing": {"higest": 3}}}, "guessing.higest: its loader"),
        (
            ["x::a"],
            {"domain_loaders": {"x": "domains.guessing.load"}},
            "domains.guessing has no load; allowed here",
        ),
        (["x::a"], {"domain_loaders": {"x": "domains.guessing.guessing"}}, "a module is no function"),
        (
            ["x::a"],
            {"domain_loaders": {"x": lambda names: 5}},
            "dataset x::a: its loader .*must return a list of dicts, got int",
        ),
        (["reputation_hacking::a"], {}, "has no load_problems or load_datasets; set dataset_loader_params"),
        (["reasoning_gym::train"], {}, "per_domain_params.reasoning_gym.tasks: its loader has no default"),
        (
            ["x::a", "x::b@test"],
            {"domain_loaders": {"x": lambda names, split=None: [] if split else [{"task": "1"}]}},
            "dataset x::b@test: its loader found no problems",
        ),
    ],
)
def test_what_cannot_be_loaded_is_named(entries: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_datasets(entries, **options)


async def test_each_problem_goes_to_the_policy_of_its_domain() -> None:
    cfg = tree(domain_rollouts={"letters": f"{HERE}.play_letters", "plain": f"{HERE}.play_plain"})
    for domain, reward in (("letters", 1.0), ("plain", 2.0)):
        result = await generate_multidomain_rollout(cfg, None, {"domain": domain}, None)  # type: ignore[arg-type]
        assert result.metrics is not None and (result.metrics.reward, result.domain) == (reward, domain)
    assert rollout_of(cfg, "guessing") is generate_guessing_rollout


def test_a_registered_policy_goes_before_the_configured_one_as_upstream() -> None:
    configured = tree(domain_rollouts={"drawn": f"{HERE}.play_plain"})
    assert rollout_of(configured, "drawn").__name__ == "play_plain"
    register_domain_rollout(" drawn ", play_letters)
    assert rollout_of(tree(), "drawn") is play_letters and rollout_of(configured, "drawn") is play_letters
    with pytest.raises(ValueError, match="the domain's name is empty"):
        register_domain_rollout(" ", play_letters)
    with pytest.raises(ValueError, match="'play_letters' is not a dotted path"):
        register_domain_rollout("drawn", "play_letters")


def test_a_problem_without_domain_takes_the_environment_s_key() -> None:
    cfg = tree()
    with pytest.raises(ValueError, match="problem 7: has no 'domain' and no environment key"):
        domain_of(cfg, {"id": 7})
    cfg.environment_key = "maze"
    assert domain_of(cfg, {"id": 7}) == "maze" and domain_of(cfg, {"domain": "math"}) == "math"
    with pytest.raises(ConfigError, match=r"domain 'maze': not bundled.*set actor\.domain_rollouts\.maze"):
        rollout_of(cfg, "maze")


async def test_a_policy_that_returns_something_else_is_named_with_its_domain() -> None:
    async def wrong(*_: Any) -> int:
        return 5

    register_domain_rollout("wrong", wrong)
    with pytest.raises(TypeError, match="policy of wrong returned a int"):
        await generate_multidomain_rollout(tree(), None, {"domain": "wrong"}, None)  # type: ignore[arg-type]


MULTI = (
    "dataset_loader=pipelinerl.domains.multidomain.loader.load_datasets",
    "actor.rollout_policy=pipelinerl.domains.dispatcher.generate_multidomain_rollout",
    "actor.domain_mix={guessing: 1}",
    "train_dataset_names=['guessing::train@train']",
    "test_dataset_names=['guessing::test@test']",
    "validate=true",
)


@pytest.mark.usefixtures("forked")  # its loader is no single domain's, so a rehearsal looks at it
def test_a_run_of_several_domains_is_composed(dry_run: DryRun) -> None:
    loaders = "+dataset_loader_params.domain_loaders={guessing: domains.guessing.load_problems}"
    status, out, err = dry_run("hardware=cpu", *MULTI, loaders)
    assert (status, err) == (0, "") and "the configuration is valid" in out


@pytest.mark.usefixtures("forked")
def test_a_loader_of_its_own_may_give_problems_of_other_domains(
    dry_run: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As upstream's loader of livecodebench gives problems of coding; a validation loads them."""
    monkeypatch.delenv("DRY_RUN")
    mixed = (
        f"+dataset_loader_params.domain_loaders={{mine: {HERE}.of_two_domains}}",
        "train_dataset_names=['mine::train']",
        "test_dataset_names=['mine::test']",
        "actor.domain_rollouts={letters: domains.guessing.generate_guessing_rollout}",
    )
    status, out, err = dry_run("hardware=cpu", *MULTI, *mixed, "actor.domain_mix={guessing: 1, letters: 1}")
    assert (status, err) == (0, "")
    assert "datasets mine::...: problems are of the domain guessing, letters, as their loader says" in out
    status, _, err = dry_run("hardware=cpu", *MULTI, *mixed, "actor.domain_mix={mine: 1}")
    assert status == 2 and "actor.domain_mix.mine: no problem has that domain" in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "actor.domain_mix={gesing: 1}",
            "actor.domain_mix.gesing: no dataset is of that domain; did you mean",
        ),
        (
            "train_dataset_names=['guessing::train@train','math::sums']",
            "actor.domain_mix: no weight for math, a domain of train_dataset_names; give it one",
        ),
        ("train_dataset_names=[numbers]", "dataset numbers: names no domain; write <domain>::<dataset>"),
        (
            "+dataset_loader_params.per_domain_params={maths: {a: 1}}",
            "per_domain_params.maths: no dataset is of that domain",
        ),
    ],
)
def test_a_domain_that_no_dataset_has_is_refused(dry_run: DryRun, override: str, message: str) -> None:
    status, _, err = dry_run("hardware=cpu", *MULTI, override)
    assert status == 2 and message in err


class Clocked(BaseDomain):
    """A domain that prepares a value and has a service and a state."""

    name = "clocked"

    def __init__(self) -> None:
        self.count = 0

    def prepare(self, cfg: DictConfig, output_dir: Path) -> dict[str, Any]:
        return {f"{self.name}.ready": [str(key) for key in cfg]}

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        return [ServiceSpec(name=self.name, argv=[], url_key=f"{self.name}.url")]

    def checkpoint(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Settings(BaseModel):
    model_config = {"extra": "forbid"}
    speed: int = 1


class Second(Clocked):
    name = "second"
    settings, settings_key = Settings, "second"


def test_the_hooks_of_several_domains_work_side_by_side(tmp_path: Path) -> None:
    paths = [f"{HERE}.Clocked", f"{HERE}.Second"]
    both = load_domain(paths)
    assert both.prepare(OmegaConf.create({}), tmp_path) == {"clocked.ready": [], "second.ready": ["clocked"]}
    assert [spec.name for spec in both.services(tree())] == ["clocked", "second"]
    both.restore({paths[1]: {"count": 5}, "gone": {}})
    assert both.checkpoint() == {paths[0]: {"count": 0}, paths[1]: {"count": 5}}
    assert list(domain_problems(OmegaConf.create({"second": {"sped": 3}}), both)) == [
        "second.sped: unknown key; did you mean second.speed?"
    ]
    with pytest.raises(ConfigError, match="no module named nothing"):
        load_domain([*paths, "nothing.at.all"])


@pytest.fixture
def chess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed distribution with a domain of its own."""
    package = tmp_path / "site/chess_rl"
    (package / "conf/domain").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "async def generate_chess_rollout(cfg, llm, problem, session): ...\n"
        "def load_problems(names): return [{'name': name} for name in names]\n"
    )
    (package / "conf/domain/chess.yaml").write_text(
        "# @package _global_\nactor: {rollout_policy: pipelinerl.domains.chess.generate_chess_rollout}\n"
    )
    metadata = tmp_path / "site/chess_rl-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: chess-rl\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pipelinerl.domains]\nchess = chess_rl\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    caches = (installed_module.installed_domains, installed_module.installed_conf_dirs)
    for cache in caches:
        cache.cache_clear()
    yield "chess_rl"
    for cache in caches:
        cache.cache_clear()
    for name in ("chess_rl", "pipelinerl.domains.chess"):
        sys.modules.pop(name, None)


def test_a_domain_of_another_package_is_found_by_its_entry_point(chess: str) -> None:
    assert compose(["+domain=chess", "hardware=cpu"]).tree.domain_name == "chess"
    found = importlib.import_module("pipelinerl.domains.chess")
    assert found is importlib.import_module(chess)
    assert rollout_of(tree(), "chess") is found.generate_chess_rollout
    assert load_datasets(["chess::openings"]) == [
        {"dataset": "openings", "name": "openings", "domain": "chess", "id": 0}
    ]


def test_parameters_beside_those_of_a_domain_go_to_each_loader_that_takes_them() -> None:
    asked: dict[str, Any] = {}

    def seeded(names: list[str], seed: int) -> list[dict[str, Any]]:
        asked[names[0]] = seed
        return [{}]

    def plain(names: list[str]) -> list[dict[str, Any]]:
        return [{}]

    loaders = {"one": seeded, "two": seeded, "three": plain}
    entries = [f"{name}::{name}" for name in loaders]
    load_datasets(entries, {"two": {"seed": 7}}, loaders, seed=3)
    assert asked == {"one": 3, "two": 7}
    with pytest.raises(
        ValueError, match=r"dataset_loader_params\.cache: no loader of one, three, two has such"
    ):
        load_datasets(entries, None, loaders, seed=3, cache=True)


def test_a_loader_is_asked_once_for_its_datasets_of_a_part_and_what_it_gives_is_kept() -> None:
    """As by upstream's loader: one call a domain and part; `domain`, `id`, `dataset` are set if missing."""
    asked: list[tuple[str, list[str], str | None]] = []

    def first(names: list[str], subset: str | None = None) -> list[dict[str, Any]]:
        asked.append(("first", names, subset))
        return [{"id": number, "dataset": name} for number, name in enumerate(names)]

    def second(names: list[str]) -> list[dict[str, Any]]:
        asked.append(("second", names, None))
        return [{"dataset": "own", "domain": "elsewhere"}, {"dataset": "own"}, {"dataset": "other"}]

    loaders = {"one": first, "two": second}
    entries = ["one::a", "two::x", "one::b@test", "one::c"]
    problems = load_datasets(entries, domain_loaders=loaders)
    assert asked == [("first", ["a", "c"], None), ("second", ["x"], None), ("first", ["b"], "test")]
    assert [(row["domain"], row["dataset"], row["id"]) for row in problems] == [
        ("one", "a", 0),
        ("one", "c", 1),
        ("elsewhere", "own", 0),
        ("two", "own", 0),
        ("two", "other", 0),
        ("one", "b", 0),
    ]
    assert load_datasets("one::a", domain_loaders=loaders) == [problems[0]]
    assert load_datasets(None) == []


def test_a_part_goes_before_that_of_the_parameters_and_the_start_says_where_none_is_declared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As `@test` goes before `subset` in upstream's loader; its loaders read it from any parameters."""

    def declared(names: list[str], split: str = "", subset: str = "") -> list[dict[str, Any]]:
        return [{"dataset": names[0], "got": (split, subset)}]

    params = {"mine": {"subset": "all"}}
    loaders = {"mine": declared, "any": lambda names, **_: load(names, count=20)}
    caplog.set_level("INFO", "domains")
    for entry, got in (("mine::x", ("", "all")), ("mine::x@test", ("test", ""))):
        (problem,) = load_datasets([entry], params, loaders)
        assert problem["got"] == got
    assert len(load_datasets(["any::x", "any::y@all"], domain_loaders=loaders)) == 40 and not caplog.messages
    assert len(load_datasets(["any::x@test"], domain_loaders=loaders)) == 2
    assert caplog.messages == [
        "datasets any::...@test: their loader declares neither split nor subset, so that a tenth of each is "
        "@test and the rest is @train"
    ]


def test_problems_without_labels_have_the_names_of_their_datasets() -> None:
    def plain(names: list[str]) -> list[dict[str, Any]]:
        return [{"task": name} for name in names]

    problems = load_datasets(["x::a", "x::b", "x::a"], domain_loaders={"x": plain})
    assert [(row["task"], row["dataset"], row["id"]) for row in problems] == [
        ("a", "a", 0),
        ("b", "b", 0),
        ("a", "a", 1),
    ]


def test_evaluations_under_upstreams_names_are_played_by_their_domains(tmp_path: Path) -> None:
    """Its loaders of `livecodebench` and `google_ifeval` give problems of `coding` and `ifeval`."""
    tests = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    row = {"question_content": "Add one.", "public_test_cases": tests, "private_test_cases": "[]"}
    (tmp_path / "livecodebench_v5.json").write_text(json.dumps([row]))
    prompt = {"key": 1, "prompt": "Say it.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    (tmp_path / "google_ifeval.json").write_text(json.dumps([prompt]))
    folder = {"data_dir": str(tmp_path)}
    problems = load_datasets(
        ["livecodebench::livecodebench_v5", "google_ifeval::google_ifeval"],
        per_domain_params={"livecodebench": folder, "google_ifeval": folder},
    )
    assert [row["domain"] for row in problems] == ["coding", "ifeval"]


def test_questions_of_tir_are_played_by_tir() -> None:
    """They are those of math, whose loader says math."""
    problems = load_datasets(["tir::arithmetic_train"])
    assert {row["domain"] for row in problems} == {"tir"}
    first = TirDomain().first_messages(compose(["+domain=tir", "hardware=cpu"]).tree, problems[0])
    assert first is not None and first[-1] == {"role": "user", "content": problems[0]["task"]}
