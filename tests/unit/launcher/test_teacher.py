"""Teachers, recordings and engines that run already are compared with the policy before anything starts, by
what each id stands for."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from pipelinerl.config import Config
from pipelinerl.launcher.checks import partial, teacher
from tests.support.engine_harness import build_model, running_engine
from tests.support.text_model import build_text_model
from tests.support.tiny_model import hub_snapshot


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_text_model(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text model, but for two ids that have changed places."""
    folder = build_text_model(tmp_path_factory.mktemp("foreign"))
    described = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


def said(policy: Path, **given: str) -> list[str]:
    cfg = Config.model_validate({"model_path": str(policy), "teacher": given})
    return list(teacher.check(cfg, dry_run=False))


def test_a_folder_with_the_policys_tokenizer_is_a_teacher(policy: Path) -> None:
    assert said(policy, model_path=str(policy)) == []


def test_a_folder_with_another_tokenizer_is_refused_by_its_first_other_id(
    policy: Path, foreign: Path
) -> None:
    first = json.loads((policy / "tokenizer.json").read_text())["model"]["vocab"]["a"]
    (line,) = said(policy, model_path=str(foreign))
    assert line.startswith(f"teacher.model_path={foreign}: 2 of the policy's ")
    assert f"such as {first} for 'b' instead of 'a'; give a teacher with the policy's tokenizer" in line


def test_a_model_with_fewer_ids_than_the_tokenizer_is_refused(policy: Path, tmp_path: Path) -> None:
    folder = build_text_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    (line,) = said(policy, model_path=str(folder))
    assert "it has 100 ids, the policy's tokenizer goes to" in line


def test_a_teacher_s_field_of_another_type_is_refused_under_its_own_key(policy: Path, tmp_path: Path) -> None:
    folder = build_text_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "64"}))
    line = said(policy, model_path=str(folder))[0]
    assert line.startswith(f'teacher.model_path={folder}: config.json says hidden_size="64", which has to be')


async def asked(policy: Path, url: str) -> list[str]:
    return await asyncio.to_thread(said, policy, url=url)


async def test_an_engine_is_a_teacher_where_it_tokenises_as_the_policy_does(
    policy: Path, foreign: Path
) -> None:
    async with running_engine(policy, max_model_len=4096) as engine:
        assert await asked(policy, engine.url) == []
        (line,) = await asked(foreign, engine.url)
    assert line.startswith(f"teacher.url={engine.url}: its tokenizer gives other ids than the policy's to")


def replayed(policy: Path, recording: Path) -> tuple[list[str], list[str]]:
    debug = {"mode": "finetune", "streams_from": str(recording)}
    cfg = Config.model_validate({"model_path": str(policy), "debug": debug})
    return list(partial.of_another_model(cfg, 0)), list(partial.remarks(cfg))


def test_a_recording_of_another_tokenizer_is_refused(policy: Path, foreign: Path, tmp_path: Path) -> None:
    """Its ids would be trained on as text that nobody sampled."""
    first = json.loads((policy / "tokenizer.json").read_text())["model"]["vocab"]["a"]
    (tmp_path / "conf").mkdir()
    for model, other in ((policy, False), (foreign, True)):
        (tmp_path / "conf/exp_config.yaml").write_text(f"model_path: {model}\n")
        problems, remarks = replayed(policy, tmp_path)
        assert remarks == [] and len(problems) == other
    assert f"debug.streams_from={tmp_path}: recorded with another tokenizer: 2 of its " in problems[0]
    assert f"in {policy}, such as {first} for 'a' instead of 'b'; give that run's model_path" in problems[0]
    larger = shutil.copytree(policy, tmp_path / "larger")
    described = json.loads((larger / "tokenizer.json").read_text())
    described["model"]["vocab"]["zzz"] = 9_999
    (larger / "tokenizer.json").write_text(json.dumps(described))
    (tmp_path / "conf/exp_config.yaml").write_text(f"model_path: {larger}\n")
    assert "such as 9999 for None instead of 'zzz'" in replayed(policy, tmp_path)[0][0]
    shutil.copytree(policy, tmp_path / "finetune/current")  # what the run itself has trained counts first
    assert replayed(policy, tmp_path) == ([], [])


def test_a_recording_without_a_tokenizer_is_remarked(policy: Path, tmp_path: Path) -> None:
    problems, (remark,) = replayed(policy, tmp_path)
    assert problems == [] and "no tokenizer of that run can be read" in remark


async def test_running_engines_have_the_policys_tokenizer_or_are_refused(
    policy: Path, foreign: Path, unused_tcp_port: int
) -> None:
    def found(model: Path, port: int) -> list[str]:
        debug, engine = {"mode": "actor", "use_existing_llms": True}, {"port": port}
        cfg = Config.model_validate({"model_path": str(model), "debug": debug, "engine": engine})
        return list(partial.of_another_model(cfg, 1))

    async with running_engine(policy, max_model_len=4096) as engine:
        port = int(engine.url.rpartition(":")[2])
        assert await asyncio.to_thread(found, policy, port) == []
        (line,) = await asyncio.to_thread(found, foreign, port)
    assert line.startswith("debug.use_existing_llms=true: engine http://127.0.0.1:") and "other ids" in line
    (line,) = await asyncio.to_thread(found, policy, unused_tcp_port)
    assert "does not answer" in line and f"model_path={policy}" in line


async def test_running_engines_that_are_sent_nothing_have_the_models_weights_or_are_refused(
    policy: Path, tmp_path: Path
) -> None:
    """Its tokenizer is the same. Where the trainer sends weights, it does not matter which there were."""
    other = shutil.copytree(policy, tmp_path / "other")

    def found(model: Path, port: int, mode: str = "evaluate", loss: str = "ppo") -> list[str]:
        debug, engine = {"mode": mode, "use_existing_llms": True}, {"port": port}
        given = {"model_path": str(model), "debug": debug, "engine": engine}
        cfg = Config.model_validate(given | {"finetune": {"rl": {"policy_loss": loss}}})
        return list(partial.of_another_model(cfg, 1))

    async with running_engine(policy, max_model_len=4096) as engine:
        port = int(engine.url.rpartition(":")[2])
        for mode in ("evaluate", "actor", "open_loop"):
            assert await asyncio.to_thread(found, policy, port, mode) == []
            (line,) = await asyncio.to_thread(found, other, port, mode)
            assert f"has the model of {policy}; start there an engine with model_path={other}" in line
        assert await asyncio.to_thread(found, other, port, "") == []
        assert await asyncio.to_thread(found, other, port, "open_loop", "sft") == [], "it may imitate another"
        for version, problems in (("0", 0), ("512", 1)):
            await engine.post("/update_weight_version", {"weight_version": version})
            lines = await asyncio.to_thread(found, policy, port)
            assert len(lines) == problems and all("version 512 of another run" in one for one in lines)
        assert await asyncio.to_thread(found, policy, port, "") == []


async def test_running_engines_of_another_hub_s_model_are_refused(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of its own calls its model as it was asked to, by the name or by the folder in the cache."""
    snapshot = hub_snapshot(monkeypatch, tmp_path, "somebody/policy")
    shutil.copytree(policy, snapshot, dirs_exist_ok=True)
    shutil.copytree(policy, hub_snapshot(monkeypatch, tmp_path, "other/policy"), dirs_exist_ok=True)

    def found(model: str, port: int) -> list[str]:
        debug, engine = {"mode": "evaluate", "use_existing_llms": True}, {"port": port}
        cfg = Config.model_validate({"model_path": model, "debug": debug, "engine": engine})
        return list(partial.of_another_model(cfg, 1))

    async with running_engine(snapshot, max_model_len=4096) as engine:
        port = int(engine.url.rpartition(":")[2])
        for root in (str(snapshot), "somebody/policy"):
            card = {"root": root}
            monkeypatch.setattr("pipelinerl.engines.serving.server.card", lambda *_, card=card: card)
            assert await asyncio.to_thread(found, "somebody/policy", port) == []
            for other in ("other/policy", str(policy)):
                (line,) = await asyncio.to_thread(found, other, port)
                assert f"has the model of {root}; start there an engine with model_path={other}" in line


async def test_running_engines_whose_model_was_overwritten_are_refused(policy: Path, tmp_path: Path) -> None:
    """Also by a copy that keeps the time of its source; other files of the folder do not matter."""
    model = shutil.copytree(policy, tmp_path / "model")

    def found(port: int, mode: str = "evaluate") -> list[str]:
        debug, engine = {"mode": mode, "use_existing_llms": True}, {"port": port}
        cfg = Config.model_validate({"model_path": str(model), "debug": debug, "engine": engine})
        return list(partial.of_another_model(cfg, 1))

    async with running_engine(model, max_model_len=4096) as engine:
        port = int(engine.url.rpartition(":")[2])
        await asyncio.sleep(0.1)  # the kernel's clock of files goes in steps
        (model / "README.md").write_text("what nobody loads")
        assert await asyncio.to_thread(found, port) == []
        shutil.copy2(policy / "model.safetensors", model)
        (line,) = await asyncio.to_thread(found, port)
        assert "has started at" in line and "and model.safetensors of its model was written at" in line
        assert await asyncio.to_thread(found, port, "") == [], "the trainer sends its own"


async def test_an_engine_without_text_is_refused(policy: Path, tmp_path: Path) -> None:
    async with running_engine(build_model(tmp_path, tied=True)) as engine:
        (line,) = await asked(policy, engine.url)
    assert "refuses /tokenize (HTTP 400" in line and "no tokenizer.json" in line


@pytest.fixture
async def elsewhere() -> AsyncIterator[tuple[str, web.Application]]:
    """A server that is no engine."""
    app = web.Application()
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", app
    await runner.cleanup()


async def test_a_server_that_is_no_engine_is_refused(
    policy: Path, elsewhere: tuple[str, web.Application]
) -> None:
    (line,) = await asked(policy, elsewhere[0])
    assert line.endswith("has no /tokenize; serve the teacher with vLLM 0.26 or later")


async def test_a_dry_run_asks_nobody(policy: Path) -> None:
    cfg = Config.model_validate({"model_path": str(policy), "teacher": {"url": "http://127.0.0.1:9"}})
    assert list(teacher.check(cfg, dry_run=True)) == []


@pytest.mark.parametrize("answer", ["[]", "nothing", '{"tokens": "many"}'])
async def test_an_answer_that_is_none_is_refused(policy: Path, answer: str) -> None:
    app = web.Application()

    async def tokenize(_: web.Request) -> web.Response:
        return web.Response(text=answer)

    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        (line,) = await asked(policy, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert "cannot be read" in line or "gives other ids" in line
