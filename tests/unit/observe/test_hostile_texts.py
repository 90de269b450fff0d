"""Texts of programs, models and files steer no terminal and no page, and say what a reader can act on."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from domains.privacy_hopqa.validate import __main__ as validate
from pipelinerl import new_domain
from pipelinerl.base.errors import CommandParser, ConfigError, printable
from pipelinerl.base.logs import setup_logging
from pipelinerl.domain import ReportSection
from pipelinerl.launcher.run import failure_line
from pipelinerl.launcher.supervision import ChildFailed
from pipelinerl.modeling.loading import DamagedModel, load_causal_lm
from pipelinerl.modeling.value_head import load_tensors
from pipelinerl.observe import dashboard
from pipelinerl.observe.progress import Output, ProgressDisplay
from pipelinerl.observe.report import write_report
from pipelinerl.streams import SingleStreamSpec, write_to_streams
from pipelinerl.streams import __main__ as streams
from retrieval_server import __main__ as serve
from retrieval_server import arguments, index

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("pipelinerl", "domains", "retrieval_server", "benchmarks")
STEERING = "\x1b[2J\x1b]0;owned\x07 \x9b31m \x00 \x7f \u202eevil \u2066"


def steers(text: str) -> list[str]:
    """Characters that a terminal or a page acts on, but for ends of lines and tabs."""
    return [one for one in text if one not in "\n\t" and (one < " " or "\x7f" <= one <= "\x9f")] + [
        one for one in text if one in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    ]


def test_what_steers_is_written_out_and_the_rest_stays() -> None:
    assert printable("a\x1b[31mb") == "a\\x1b[31mb"
    for text in ("o\udcff", "\ud83d", "\u061c", "\u206a"):  # a file name that is no UTF-8, half a pair, marks
        assert printable(text).encode().isascii() and printable(text) != text
    kept = "Zeile 1\n\tä 日本 🙂 \u00a0é"
    assert printable(kept) == kept
    assert steers(printable(STEERING)) == []


def test_lines_of_the_launcher_steer_nothing(tmp_path: Path) -> None:
    assert steers(failure_line(ChildFailed("actor", "exit status 1", f": {STEERING}", tmp_path))) == []
    assert steers(str(ConfigError(f"key={STEERING}: no such key"))) == []


def test_logs_steer_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log is read with `tail` and `cat`, and quotes what policies and servers wrote."""
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    path = setup_logging(tmp_path, "actor")
    logging.root.error("a rollout failed: %s", STEERING)
    try:
        raise ValueError(STEERING)
    except ValueError:
        logging.root.exception("a stack")
    for text in (path.read_text(), capsys.readouterr().err):
        assert text.count("owned") == 2 and "Traceback" in text and steers(text) == []


def test_what_python_remarks_of_a_policys_program_is_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        setup_logging(tmp_path, "actor")
        for file in ("<unknown>", "domain.py"):  # which has the first one by `ast.parse`
            warnings.warn_explicit(r"invalid escape sequence '\s'", SyntaxWarning, file, 1)
    assert [one.filename for one in shown] == ["domain.py"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("more", [(), ("validate=true",)])
def test_the_launcher_names_its_folder_without_steering(tmp_path: Path, more: tuple[str, ...]) -> None:
    given = (f"output_dir='{tmp_path}/\x1b]0;owned\x07'", "+domain=counting", "hardware=cpu", *more)
    command = [sys.executable, "-m", "pipelinerl.launch", *given]
    env = {**os.environ, "DRY_RUN": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0 and "owned" in done.stdout and steers(done.stdout + done.stderr) == []


def test_a_progress_line_steers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(tmp_path, 10, plain=True) as display:
        display.say(f"actor: {STEERING}")
    assert "owned" in (out := capsys.readouterr().out) and steers(out) == []


def test_a_report_steers_nothing(tmp_path: Path) -> None:
    said = io.StringIO()
    section = ReportSection(title="Mine", rows=[("a", "b"), (STEERING, "2")], text=STEERING)
    folder = write_report(tmp_path, None, [section], Console(file=said))
    for text in (said.getvalue(), *((folder / name).read_text() for name in ("report.md", "index.html"))):
        assert "owned" in text and steers(text) == []


def test_a_table_shows_brackets_and_colons_as_they_are() -> None:
    said, table = io.StringIO(), Table("a")
    table.add_row("[red]x [/y] :smile:")
    Output(file=said).print(table)
    assert "[red]x [/y] :smile:" in said.getvalue()
    assert [path for path in (ROOT / "pipelinerl").rglob("*.py") if "Console(" in path.read_text()] == []


def test_what_nobody_reads_is_an_error_that_the_launcher_names() -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Output(file=Left()).print("a line")


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "command",
    [
        *("pipelinerl.report", "pipelinerl.view", "pipelinerl.new_domain", "pipelinerl.streams"),
        *("pipelinerl.engines.cpu", "benchmarks", "domains.privacy_hopqa.leakage"),
    ],
)
def test_what_a_command_says_of_a_path_steers_nothing(command: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/o\udcff\x1b[2J"
    given = {
        "pipelinerl.streams": [path, "topic"],
        "pipelinerl.engines.cpu": ["--model", path],
        "benchmarks": ["run", path],
    }.get(command, [path])
    done = subprocess.run(
        [sys.executable, "-m", command, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "\\x1b" in done.stderr and steers(done.stderr) == []


def test_a_stream_is_shown_as_json_that_steers_nothing_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SingleStreamSpec(tmp_path, "stats")
    with write_to_streams(spec) as writer:
        writer.write({"text": STEERING})
    assert streams.main([str(tmp_path), "stats"]) == 0
    shown = capsys.readouterr().out
    assert steers(shown) == [] and json.loads(shown) == {"text": STEERING}


def test_commands_name_what_they_wrote_and_what_is_wrong_without_steering(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / STEERING.replace("\x00", "")
    assert new_domain.main(["juggling", "--into", str(folder)]) == 0
    assert dashboard.main(["--out", str(folder / "wandb.json")]) == 0
    assert dashboard.main(["--domain", STEERING, "--out", str(folder / "wandb.json")]) == 1
    (folder / "chains.jsonl").write_text(json.dumps({"id": STEERING}) + "\n")
    assert validate.main([str(folder)]) == 1
    said = capsys.readouterr()
    assert said.out.count("owned") >= 8 and "owned" in said.err and steers(said.out + said.err) == []


def test_no_parser_repeats_an_argument_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    own = {ROOT / "pipelinerl/base/errors.py", ROOT / "retrieval_server/arguments.py"}
    reads_itself = ROOT / "pipelinerl/launcher/arguments.py"  # and turns what is wrong into a ConfigError
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    plain = {path for path in files if re.search(r"argparse\.ArgumentParser(\(|\):)", path.read_text())}
    assert own <= plain and plain - own == {reads_itself}
    for parser in (CommandParser(prog="one"), arguments.Parser(prog="two")):
        parser.add_argument("--number", type=int, choices=[1])
        for given in ([STEERING], [f"--{STEERING}"], ["--number", STEERING]):
            with pytest.raises(SystemExit):
                parser.parse_args(given)
            assert "owned" in (said := capsys.readouterr().err) and steers(said) == []


def test_the_retrieval_server_repeats_no_path_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (named := tmp_path / STEERING.replace("\x00", "")).mkdir()
    (web := named / "web.jsonl").write_text("no JSON\n")
    for program, given in ((serve, ["--port", "0"]), (index, [])):
        assert program.main(["--web", str(web), *given]) != 0
        assert "owned" in (said := capsys.readouterr().err) and steers(said) == []


class Runs:
    """A pickle that does something when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.mkdir, ("unpickled",))


@pytest.mark.parametrize("kind", ["code", "cut", "no file of torch"])
def test_a_refused_pickle_repeats_no_advice_to_load_it_anyway(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "value_head.pt"
    torch.save({"weight": Runs() if kind == "code" else torch.zeros(3)}, path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:200])
    if kind == "no file of torch":
        path.write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"value_head.pt: damaged, or it holds more than tensors") as refused:
        load_tensors(path)
    assert "weights_only" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_model_saved_as_a_pickle_that_runs_code_is_refused_without_advice(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Runs()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DamagedModel, match="more than tensors and would run code") as refused:
        load_causal_lm(tmp_path)
    said = str(refused.value)
    assert (
        "weights_only" not in said and "two options" not in said and steers(said) == [] and "\n" not in said
    )
    assert not Path("unpickled").exists()
