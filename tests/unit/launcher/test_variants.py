"""A variant is one object: an engine and a transport of this file run with nothing else changed."""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pipelinerl.config import Config
from pipelinerl.config.staleness import Staleness
from pipelinerl.config.variants import ENGINE_KINDS, REGISTRIES, TRANSPORTS, Variants
from pipelinerl.engines.cpu.kind import EMBEDDED
from pipelinerl.engines.kind import EngineKind, EngineStart, Why, engine_kind
from pipelinerl.engines.serving import command
from pipelinerl.engines.vllm.kind import VLLM
from pipelinerl.observe.balance import remedies
from pipelinerl.weights.transports.base import TransportKind, transport_kind, weights_ahead
from tests.unit.config.test_every_key import KEYS
from tests.unit.launcher.conftest import ON_GPUS, ROOT, Placed, Refused


class Toy(EngineKind):
    name = "toy"
    length_key = "engine.toy_length"
    ignores = {"vllm_config": "a toy has no options"}  # noqa: RUF012
    transports = ("pigeon",)
    other_transport = "a toy reads what pigeons bring; set pigeon"
    ahead = True
    stages = (("unpacking", "unpacking it"),)

    def dtype(self, cfg: Config) -> str:
        return "bfloat16"

    def ranks(self, cfg: Config) -> int:
        return cfg.engine.threads

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        if cfg.engine.max_waiting == 13:
            yield "engine.max_waiting=13: a toy is superstitious; set another number"

    def command(self, start: EngineStart) -> tuple[list[str], dict[str, str]]:
        flag = "--ahead" if start.ahead else "--paused"
        return ["toy-serve", start.model, str(start.job.port), flag], {"TOY_GPUS": ",".join(start.gpus)}

    def choice(self, cfg: Config, shown: str, why: Why) -> tuple[str, str, str]:
        return f"{shown}, wound up", why("engine.threads", "a child has one"), "engine.threads=N"

    def remedies(self, cfg: Config, spare_cores: bool) -> Iterator[str]:
        yield "winding it up"


class Pigeon(TransportKind):
    name = "pigeon"
    ahead = True
    ignores = {"weights.buffer_mb": "a pigeon has no buffer"}  # noqa: RUF012
    into_several_cards = "pigeons into several lofts"

    def sender(self, cfg: Config, elements: int, dtype: Any, device: Any) -> Any:
        return "pigeon", cfg.weights.directory, elements, dtype, device


class Snail(TransportKind):
    """What a new transport is that says nothing of itself."""

    name = "snail"


TOY, PIGEON, SNAIL = Toy(), Pigeon(), Snail()
KINDS = list(ENGINE_KINDS.places)
CHOSEN = ("hardware=cpu", "engine.kind=toy", "weights.transport=pigeon", "wandb.use_wandb=false")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that each of them adds to a registry."""
    monkeypatch.setitem(ENGINE_KINDS.places, "toy", f"{__name__}.TOY")
    monkeypatch.setitem(TRANSPORTS.places, "pigeon", f"{__name__}.PIGEON")


@pytest.mark.usefixtures("registered")
def test_a_run_with_variants_of_another_file_is_planned(placed: Placed, tmp_path: Any) -> None:
    cfg, said = placed(*CHOSEN)
    script = (tmp_path / "run" / "actor_vllm_0" / "start.sh").read_text()
    port = cfg.jobs_of("actor_llm")[0].port
    assert f"toy-serve {tmp_path / 'model'} {port} --ahead" in script and "TOY_GPUS=" in script
    assert "1 x toy" in said and "wound up" in said and "a child has one" in said
    assert "pigeon, received" in said
    assert engine_kind(cfg).dtype(cfg) == "bfloat16"
    assert transport_kind(cfg).sender(cfg, 10, "type", "place") == ("pigeon", None, 10, "type", "place")
    assert remedies(cfg, "engines")[0] == "winding it up"


def test_the_kind_of_the_page_starts_its_server(
    placed: Placed, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """`docs/engine.md`: a back end of one's own behind the project's server."""
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"^```python\n(from pipelinerl.engines.kind .*?)^```", page, re.MULTILINE | re.DOTALL
    )
    module = ModuleType("mine")
    exec(block, vars(module))  # the page's own code
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setitem(ENGINE_KINDS.places, "mine", "mine.MINE")
    placed("hardware=cpu", "engine.kind=mine", "engine.max_waiting=77", "engine.max_num_seqs=5")
    script = (tmp_path / "run" / "actor_vllm_0" / "start.sh").read_text()
    (said,) = re.findall(r"-m pipelinerl\.engines\.mine (.*)", script.replace("\\\n", " "))
    parser = command.parser("", "")
    options = parser.parse_args(shlex.split(said))
    assert (options.max_waiting, options.max_num_seqs) == (77, 5)
    assert options.return_tokens_as_token_ids  # as every engine of a run
    # Its command hands over none of these.
    for key in (
        "engine.threads=2",
        "engine.dtype=bfloat16",
        "engine.prefix_cache=false",
        "vllm_config.version=0.32.0",
    ):
        assert f"{key}: has no effect here: this engine" in refused("hardware=cpu", "engine.kind=mine", key)


@pytest.mark.usefixtures("registered")
def test_an_engine_of_another_file_is_placed_on_gpus(placed: Placed, tmp_path: Any) -> None:
    cfg, said = placed(*CHOSEN[1:], *ON_GPUS[:3], "hardware.devices=2")
    assert cfg.jobs_of("actor_llm")[0].gpus == [0] and cfg.jobs_of("finetune")[0].gpus == [1]
    assert "TOY_GPUS=0" in (tmp_path / "run" / "actor_vllm_0" / "start.sh").read_text()
    assert "not planned" in said and "HTTP processes" not in said  # what only vLLM has


@pytest.mark.usefixtures("registered")
def test_what_engine_and_transport_cannot_do_together_is_off(placed: Placed, tmp_path: Any) -> None:
    """Whether weights are received ahead is said by both: this engine's ranks, this transport's reach."""
    cfg, said = placed(*CHOSEN, "engine.threads=2")
    assert not weights_ahead(cfg) and "received ahead" not in said
    assert "--paused" in (tmp_path / "run" / "actor_vllm_0" / "start.sh").read_text()


@pytest.mark.usefixtures("registered")
def test_an_engine_of_this_project_is_told_its_transport(
    placed: Placed, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(EMBEDDED, "transports", ("file", "pigeon"))
    script = tmp_path / "run" / "actor_vllm_0" / "start.sh"
    placed("hardware=cpu", "weights.transport=pigeon")
    assert "--weight-transport pigeon" in script.read_text()
    placed("hardware=cpu", "weights.transport=file")
    assert "--weight-transport" not in script.read_text()


@pytest.fixture
def snail(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transport that is received in the pause alone, and engines that have a place for it."""
    monkeypatch.setitem(TRANSPORTS.places, "snail", f"{__name__}.SNAIL")
    for engine in (TOY, VLLM):
        monkeypatch.setattr(engine, "transports", ("pigeon", "snail"))


@pytest.mark.usefixtures("snail")
def test_what_a_transport_does_not_declare_arrives_in_the_pause(
    placed: Placed, refused: Refused, tmp_path: Any
) -> None:
    chosen = (*CHOSEN[:2], "weights.transport=snail", CHOSEN[3])
    cfg, said = placed(*chosen)
    assert not weights_ahead(cfg) and "received ahead" not in said
    assert "--paused" in (tmp_path / "run" / "actor_vllm_0" / "start.sh").read_text()
    expected = (
        "weights.ahead=true: has no effect here: nothing is received ahead over weights.transport=snail"
    )
    assert expected in refused(*chosen, "weights.ahead=true")


@pytest.mark.usefixtures("snail")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["pigeon"],
            "weights.transport=pigeon: vLLM has no back end 'pigeon_ahead'; set weights.ahead=false",
        ),
        (["pigeon", "weights.ahead=false"], "vLLM has no back end 'pigeon'; set file"),
        (["snail"], "weights.transport=snail: vLLM has no back end 'snail'; set file"),
    ],
)
def test_a_transport_that_nobody_in_vllm_receives_is_refused(
    refused: Refused, overrides: list[str], expected: str
) -> None:
    transport, *others = overrides
    assert expected in refused(*ON_GPUS, f"weights.transport={transport}", *others)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["engine.max_waiting=13"], "engine.max_waiting=13: a toy is superstitious; set another number"),
        (["weights.transport=file"], "weights.transport=file: a toy reads what pigeons bring; set pigeon"),
        (["engine.kind=embedded"], "weights.transport=pigeon: the embedded engine reads files; set file"),
        (["vllm_config.version=0.32.0"], "has no effect here: a toy has no options"),
        (["weights.buffer_mb=9"], "weights.buffer_mb=9: has no effect here: a pigeon has no buffer"),
        (["llm.parameters.max_tokens=1024"], "leaves no room for a prompt in engine.toy_length="),
        (["engine.kind=doll"], f"engine.kind='doll': input should be {', '.join(map(repr, KINDS))} or 'toy'"),
    ],
)
def test_what_is_wrong_is_said_by_the_variant(refused: Refused, overrides: list[str], expected: str) -> None:
    assert expected in refused(*CHOSEN, *overrides)


def test_a_variant_that_is_not_registered_is_refused(refused: Refused) -> None:
    said = refused("hardware=cpu", "engine.kind=toy")
    assert f"engine.kind='toy': input should be {', '.join(map(repr, KINDS[:-1]))} or {KINDS[-1]!r}" in said


@pytest.mark.parametrize("variants", REGISTRIES, ids=lambda variants: variants.key)
def test_registered_variants_are_named_as_they_say_and_ignore_keys_that_exist(variants: Variants) -> None:
    assert variants.key in KEYS
    for name in variants.places:
        found = variants.find(name)
        assert found.name == name
        unknown = [key for key in found.ignores if not any(f"{one}.".startswith(f"{key}.") for one in KEYS)]
        assert unknown == []


def code_with(*words: str) -> Iterator[tuple[Path, str]]:
    """Files of the core and of domains, and their texts, with one of these words."""
    for path in [*(ROOT / "pipelinerl").rglob("*.py"), *(ROOT / "domains").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield path, text


def test_nobody_compares_the_name_of_a_variant() -> None:
    """What depends on one is asked of its object."""
    objective = ("rl.policy_loss", "rl.advantage_estimator", "rl.estimator")
    keys = (*(variants.key for variants in REGISTRIES), *objective)
    found = []
    for path, text in code_with(*(key.rpartition(".")[2] for key in keys)):
        for node in ast.walk(ast.parse(text)):
            for side in [node.left, *node.comparators] if isinstance(node, ast.Compare) else []:
                if ast.unparse(side).endswith(keys) or ast.unparse(side).endswith('("engine.kind")'):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize(("given", "lag", "admitted"), [(0, 0, 64), (1, 64, 128), (3, 192, 256)])
def test_the_unit_of_the_bound_is_one_method(
    placed: Placed, monkeypatch: pytest.MonkeyPatch, given: int, lag: int, admitted: int
) -> None:
    """Read as a number of updates, the key bounds the actor, the trainer and what is shown alike."""
    in_updates = property(lambda self: None if self.given is None else self.given * self.update)
    monkeypatch.setattr(Staleness, "samples", in_updates)
    cfg, said = placed("hardware=cpu", f"max_lag={given}", "finetune.gradient_accumulation_passes=64")
    assert cfg.staleness.update == 64 and cfg.staleness.admitted == admitted
    assert cfg.staleness.too_old(np.array([lag, lag + 1])).tolist() == [False, True]
    assert f"at most {lag} samples when trained" in said
    assert cfg.staleness.synchronous == (given == 0)


def test_only_the_configuration_knows_how_the_bound_on_age_is_given() -> None:
    """Everyone else asks `Config.staleness`, so that another key for the bound is a change of that file."""
    found = []
    for path, text in code_with("max_lag"):
        if path.parent != ROOT / "pipelinerl" / "config":
            tree = ast.walk(ast.parse(text))
            names = [node for node in tree if isinstance(node, ast.Attribute) and node.attr == "max_lag"]
            found += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in names]
    assert found == []
