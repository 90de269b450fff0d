"""Every release of vLLM that was read has what the project relies on; constants about versions are right."""

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks import _vllm_facts as uses
from benchmarks import vllm_releases
from benchmarks._vllm_wheel import RemoteFile, Wheel
from benchmarks.vllm_releases import RECORD, disagreements, facts_of, record
from pipelinerl.engines.vllm import options as vllm
from pipelinerl.engines.vllm.options import DEFAULT_VERSION, OLDEST
from tests.support.fake_vllm import FakeVllm, Meeting

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
RELEASES: list[str] = RECORDED["releases"]


def facts(release: str) -> dict[str, Any]:
    return dict(facts_of(RECORDED, release))


def test_the_record_goes_from_the_oldest_release_to_the_one_that_flags_are_written_for() -> None:
    assert RELEASES[0].startswith(".".join(map(str, OLDEST)) + ".")
    assert RELEASES[-1] == DEFAULT_VERSION


@pytest.mark.parametrize("release", RELEASES)
def test_the_project_and_a_release_agree(release: str) -> None:
    assert disagreements(release, facts(release)) == []


@pytest.mark.parametrize("release", RELEASES)
def test_the_stand_in_has_the_rules_of_a_release(release: str) -> None:
    has, fake = facts(release), FakeVllm(release, Meeting(), scale_out=False)
    assert (
        fake.labels == bool(has["route GET /weight_info"]) == has["query finish_weight_update weight_version"]
    )
    assert fake.packs_at_init == ("packed" in has["fields NCCLWeightTransferInitInfo"])
    assert fake.reports_versions == has["field answer.weight_versions"]
    assert fake.reports_versions == has["field answer.logprobs.token_id"]
    assert (fake.closed != 200) == bool(has["flag --enable-scale-out"])


@pytest.mark.parametrize(
    ("constant", "wrong", "release"),
    [
        ("SCALE_OUT_SINCE", (0, 32), "0.30.0"),
        ("SCALE_OUT_SINCE", (0, 29), "0.29.0"),
        ("PACKED_AT_INIT_SINCE", (0, 32), "0.28.0"),
        ("SPANS_SINCE", (0, 31), "0.31.0"),
    ],
)
def test_a_constant_that_is_wrong_about_a_release_is_named(
    monkeypatch: pytest.MonkeyPatch, constant: str, wrong: tuple[int, int], release: str
) -> None:
    monkeypatch.setattr(vllm, constant, wrong)
    assert f"{constant} says " in " ".join(disagreements(release, facts(release)))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("flag --logprobs-mode", None, "lacks: flag --logprobs-mode"),
        ("route POST /wake_up", None, "lacks: route POST /wake_up"),
        ("field SamplingParams.flat_logprobs", False, "lacks: field SamplingParams.flat_logprobs"),
        ("metric vllm:prompt_tokens_total", False, "lacks: metric vllm:prompt_tokens_total"),
        ("name vllm.config.set_current_vllm_config", None, "lacks: name vllm.config.set_current_vllm_config"),
        ("value RequestOutputKind.FINAL_ONLY", 3, "FINAL_ONLY is 3"),
        ("keys trainer_init", ["master_port"], "trainer_init reads ['master_port']"),
        ("fields NCCLWeightTransferUpdateInfo", ["names"], "fields NCCLWeightTransferUpdateInfo are"),
        ("abstract WeightTransferEngine", ["drain"], "NcclAheadEngine lacks the abstract method drain"),
        ("the worker calls", ["drain"], "FileAheadEngine lacks drain, which the worker calls"),
        ("parameters WeightTransferEngine.update_weights", ["update_info", "rank"], "takes ['update_info']"),
        ("parameters PyNcclCommunicator.broadcast", ["tensor"], "broadcast takes ['tensor']"),
    ],
)
def test_a_release_that_lacks_something_is_told_apart(name: str, value: Any, said: str) -> None:
    has = facts(DEFAULT_VERSION)
    assert has[name] != value
    assert said in " ".join(disagreements(DEFAULT_VERSION, has | {name: value}))


def test_a_record_gives_back_what_was_read() -> None:
    read = {"1.0.0": {"a": 1, "b": None}, "1.1.0": {"a": 1, "b": "x"}, "1.2.0": {"a": 2, "b": "x"}}
    kept = record(read)
    assert kept["facts"] == {"a": {"1.0.0": 1, "1.2.0": 2}, "b": {"1.0.0": None, "1.1.0": "x"}}
    assert {release: facts_of(kept, release) for release in read} == read


def test_what_the_project_imports_and_defines_is_read_from_its_sources() -> None:
    assert "vllm.distributed.weight_transfer.base.WeightTransferEngine" in uses.imported()
    own = uses.defined("NcclAheadEngine")
    assert own["update_weights"] == ["update_info"] and "trainer_send_weights" not in own
    assert "vllm:generation_tokens_total" in uses.counters()
    assert "/sleep" in " ".join(uses.routes()) and "output_kind" in uses.sampling_fields()


@pytest.fixture
def served() -> Iterator[tuple[str, bytes]]:
    """Address and content of a wheel behind a server that answers ranges."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("p/kernels.so", b"\x00" * 200_000)
        archive.writestr("p/api.py", 'FLAG = "--x"\nclass A:\n    a: int\n    def f(self, b): self.c = 1\n')
        archive.writestr("p-1.dist-info/METADATA", "Name: p\nRequires-Dist: torch==2.0\n")
    wheel = content.getvalue()

    class Ranges(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            part = wheel[int(first) : int(last) + 1]
            self.send_response(206 if self.path == "/p.whl" else 200)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(wheel)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", wheel
    finally:
        server.shutdown()
        server.server_close()


def test_a_wheel_is_read_in_parts(served: tuple[str, bytes]) -> None:
    url, wheel = served
    remote = RemoteFile(f"{url}/p.whl")
    found = Wheel(zipfile.ZipFile(io.BufferedReader(remote, 1024)))
    assert found.metadata("Requires-Dist") == ["torch==2.0"]
    module = found.module("p.api")
    assert module is not None and module.texts() == {"--x"} and found.module("p.missing") is None
    one = module.classes()["A"]
    assert (one.fields, list(one.methods), one.attributes) == (["a"], ["f"], {"c"})
    assert remote.fetched < len(wheel) / 10


def test_an_index_without_ranges_is_said_so(served: tuple[str, bytes]) -> None:
    with pytest.raises(RuntimeError, match="sends whole files only"):
        RemoteFile(f"{served[0]}/whole")


def test_a_run_over_some_releases_keeps_the_record_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr(Wheel, "remote", lambda package, release: release)
    lacking = {"0.26.0": {}, "0.27.0": {"route GET /health": None}}
    monkeypatch.setattr(uses, "read", lambda release: (facts(release) | lacking[release]).items())
    monkeypatch.setattr(vllm_releases, "RECORD", tmp_path / "all.json")
    assert vllm_releases.main(["--versions", "0.26.0"]) == 0
    assert not (tmp_path / "all.json").exists()
    out = tmp_path / "some.json"
    assert vllm_releases.main(["--versions", "0.26.0", "0.27.0", "--out", str(out)]) == 1
    assert "  vLLM 0.27.0 lacks: route GET /health\n" in capsys.readouterr().out
    assert json.loads(out.read_text())["releases"] == ["0.26.0", "0.27.0"]
