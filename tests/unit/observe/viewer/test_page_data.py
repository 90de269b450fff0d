"""The page of rollouts as data: what is read, joined, selected and written."""

import json
import shutil
import subprocess
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from pipelinerl import view
from pipelinerl.base.tokenizing import encode, load_tokenizer
from pipelinerl.domain import ANSWER, GOLD, QUESTION, BaseDomain, Note, NotesOf
from pipelinerl.extras.viewer.join import HEAD_CHARACTERS, _pairs, question_of
from pipelinerl.extras.viewer.select import GroupFacts, evenly, select
from pipelinerl.extras.viewer.source import Evaluated, RunSource, evaluation_of
from pipelinerl.extras.viewer.tokens import TokenTexts
from pipelinerl.extras.viewer.write import (
    PARTS,
    _estimated_size,
    _evaluated_metrics,
    page_text,
    write_page,
)
from pipelinerl.report import report_run
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import KEPT_TOPIC, SingleStreamSpec, StreamError, write_to_streams
from tests.support.recorded_run import (
    FAILED,
    FILTERED,
    HOSTILE,
    MODEL,
    TRAINED,
    group,
    recorded_run,
    text,
    write_training,
)
from tests.support.text_model import byte_tokenizer
from tests.unit.observe.viewer.conftest import chunk_of, index_of


def test_a_text_has_what_training_made_of_it(built: Path) -> None:
    shown = next(one for one in chunk_of(built)["groups"] if one["id"] == TRAINED)
    turn = shown["attempts"][0]["turns"][1]
    assert (turn["adv"], turn["weight"], turn["step"], turn["at"]) == (-0.5, 0.5, 4, 24)
    assert turn["versions"] == [[8, 0, 1], [16, 1, 2]]
    assert turn["lp"] == [-250, -500]
    assert turn["ref"] == [-750, -1000]
    assert turn["parts"] == [["task", 0.0], ["length", -0.0]]
    assert ["note", "plain"] in turn["meta"]


def test_tokens_and_prompts_are_those_of_the_record(built: Path) -> None:
    chunk = chunk_of(built)
    vocabulary = dict(zip(*chunk["vocabulary"], strict=True))
    shown = next(one for one in chunk["groups"] if one["id"] == TRAINED)
    before = ""
    for turn in shown["attempts"][0]["turns"]:
        prompt = before[: turn["prompt"][0]] + turn["prompt"][1]
        before = prompt + "".join(turn["pieces"] or [vocabulary[token] for token in turn["ids"]])
    assert before == "<|user|>turn 0: guess 1-100<|assistant|>50<|user|>turn 1: guess 1-100<|assistant|>50"


def test_question_and_answer_stand_at_the_head_of_a_rollout(built: Path) -> None:
    shown = next(one for one in chunk_of(built)["groups"] if one["id"] == TRAINED)
    attempt = shown["attempts"][0]
    assert (attempt["question"], attempt["answer"]) == ("turn 0: guess 1-100", "50")
    assert "gold" not in attempt, "no domain says what is right"
    rows = {f"{row['group']}/{row['attempt']}": row for row in index_of(built)["rows"]}
    assert rows[f"{TRAINED}/0"]["question"] == "turn 0: guess 1-100"
    assert (rows[f"{FAILED}/0"]["question"], rows[f"{FAILED}/0"]["success"]) == ("", None)


@pytest.mark.parametrize(
    ("prompt", "sampled", "completion"),
    [
        ("q[THINK]", "or 5", "<think>or 5"),
        ("q[THINK]", "or[/THINK]5", "or</think>5"),
        ("q<think>\n", "or 5", "<think>or 5"),
        ("q", "[THINK]or[/THINK]5", "<think>or</think>5"),
        ("q", "5", "5"),
    ],
)
def test_notes_of_a_domain_read_what_its_judge_read(
    monkeypatch: pytest.MonkeyPatch, prompt: str, sampled: str, completion: str
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>", "[THINK]", "[/THINK]"]})
    monkeypatch.setattr("pipelinerl.extras.viewer.tokens.load_tokenizer", lambda _: tokenizer)
    told, said = (np.array(tokenizer(text).input_ids, np.int32) for text in (prompt, sampled))
    assert TokenTexts(str(MODEL)).completion(told, said) == completion


def test_a_domain_s_question_answer_and_gold_are_no_notes_beside_it(tmp_path: Path) -> None:
    class Asks(BaseDomain):
        def rollout_notes(self, output_dir: Path) -> NotesOf:
            said = {QUESTION: "Which\nnumber?  " + "x" * 5000, ANSWER: "50", GOLD: "51"}
            head = [Note(text=text, kind=kind) for kind, text in said.items()]
            return lambda _name, _records: [*head, Note(text="7", kind=ANSWER, turn=0)]

    page = write_page(recorded_run(tmp_path / "run"), Asks())
    attempt = chunk_of(page)["groups"][0]["attempts"][0]
    assert (attempt["answer"], attempt["gold"]) == ("50", "51")
    assert len(attempt["question"]) == HEAD_CHARACTERS + len(" …")
    assert [(note["kind"], note["turn"]) for note in attempt["notes"]] == [("answer", 0)]
    listed = index_of(page)["rows"][0]["question"]
    assert listed.startswith("Which number? xxx") and len(listed) == 160


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|><|im_start|>assistant",
            "1 + 1?",
        ),
        ("<s>[INST] 1 + 1? [/INST]", "1 + 1?"),
        ("<bos><start_of_turn>user\n1 + 1?<end_of_turn>\n<start_of_turn>model\n", "1 + 1?"),
        (
            "<|start_header_id|>user<|end_header_id|>\n\n1 + 1?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "1 + 1?",
        ),
        ("Q: 1 < 2? A:", "Q: 1 < 2? A:"),
    ],
)
def test_the_question_is_the_last_turn_of_a_user(prompt: str, question: str) -> None:
    assert question_of(prompt) == question


def test_the_list_says_how_each_rollout_ended(built: Path) -> None:
    rows = {f"{row['group']}/{row['attempt']}": row for row in index_of(built)["rows"]}
    assert (rows[f"{TRAINED}/2"]["fate"], rows[f"{TRAINED}/2"]["reward"]) == ("trained", 1.0)
    assert rows[f"{TRAINED}/2"]["advantage"] == 0.5
    assert (rows[f"{FILTERED}/0"]["fate"], rows[f"{FILTERED}/0"]["reason"]) == ("filtered", "zero_advantage")
    assert (rows[f"{FAILED}/0"]["fate"], rows[f"{FAILED}/0"]["reason"]) == ("failed", "timeout")
    assert (rows["0-eval16-0/0"]["evaluated"], rows["0-eval16-0/0"]["problem"]) == (16, 0)
    assert (rows["0-eval16-0/0"]["reward"], rows["0-eval16-0/0"]["success"]) == (1.0, 1)


def test_streams_that_a_resume_set_aside_are_read_too(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    (run / "streams").rename(run / "streams_0")
    assert len(index_of(write_page(run))["rows"]) == 11


def test_what_a_resume_undid_is_not_on_the_page(tmp_path: Path) -> None:
    """Step 4 of 6 texts was made; the resume went on at step 2, version 12, and evaluated version 0 again."""
    run = recorded_run(tmp_path / "run")
    early, late = group("0-000004", [0.0, 1.0], turns=1), group("0-000005", [0.0, 1.0], turns=3, version=24)
    again = group("1-000001", [0.0, 0.5, 1.0], version=12)
    with write_to_streams(SingleStreamSpec(run, "actor")) as stream:
        for records in (early, late):
            stream.write(records)
    (run / "streams").rename(run / "streams_0")
    ResumePoint(12, 2, attempt=1).write(run)
    # Killed before its first step: version 8 stands, but the step that trained on its group is gone; so are
    # versions 16 and 24.
    page = index_of(write_page(run))
    stands = {TRAINED: None, FILTERED: None, "0-000004": None, "0-eval0-0": None, "0-eval0-1": None}
    assert {row["group"]: row["step"] for row in page["rows"] if row["chunk"] >= 0} == stands
    (run / "streams").mkdir()
    (run / "streams").rename(run / "streams_1")
    ResumePoint(12, 2, attempt=2).write(run)
    with write_to_streams(SingleStreamSpec(run, "actor")) as stream:
        stream.write(again)
    write_training(run, again, [0.5] * 6, step=2)
    with write_to_streams(SingleStreamSpec(run, "stats_test")) as stream:
        stream.write({"version": 0, "start": "1", "values": {"reward": [0.25, 0.25]}})
    with write_to_streams(SingleStreamSpec(run, "actor_test")) as stream:
        stream.write([text("1-eval0-0", 0, 0, 0.25, "50")])
    page = write_page(run)
    shown = {row["group"]: row["step"] for row in index_of(page)["rows"] if row["chunk"] >= 0}
    assert shown == {TRAINED: None, FILTERED: None, "0-000004": None, "1-000001": 2, "1-eval0-0": None}


def test_versions_of_steps_of_another_size_count_from_the_resume(tmp_path: Path) -> None:
    """Steps had 100 samples until a resume at step 2 made them 6: step 3 began at 206, step 4 is undone."""
    for attempt, version, step in ((0, 0, 0), (1, 200, 2), (2, 212, 4)):
        ResumePoint(version, step, attempt=attempt).write(tmp_path)
    for step in (3, 4):
        write_training(tmp_path, group(f"1-{step}", [0.0, 0.5, 1.0]), [0.5] * 6, step=step)
    (tmp_path / "streams").rename(tmp_path / "streams_1")
    found = {(name, values.step, values.version) for (name, *_), values in RunSource(tmp_path).trained()}
    assert found == {("1-3", 3, 206)}


def test_a_page_of_two_runs_holds_both(tmp_path: Path, built: Path) -> None:
    first = built.parents[2]
    index = index_of(write_page(first, compare=recorded_run(tmp_path / "other"), folder=tmp_path / "page"))
    assert [run["name"] for run in index["runs"]] == ["recorded", "other"]
    assert {row["run"] for row in index["rows"]} == {0, 1}


def test_a_model_that_is_gone_leaves_texts_without_tokens(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    config = run / "conf" / "exp_config.yaml"
    config.write_text(config.read_text().replace(str(MODEL), str(tmp_path / "gone")))
    shown = next(one for one in chunk_of(write_page(run))["groups"] if one["id"] == TRAINED)
    assert shown["attempts"][0]["turns"][0]["pieces"] == ["50", ""]
    shutil.copytree(MODEL, run / "finetune/current", dirs_exist_ok=True)
    shown = next(one for one in chunk_of(write_page(run))["groups"] if one["id"] == TRAINED)
    assert shown["attempts"][0]["turns"][0].get("pieces") != ["50", ""], "what it trained has the tokenizer"


def test_characters_whose_bytes_are_split_belong_to_their_last_token() -> None:
    tokens, text = TokenTexts(str(MODEL)), "50 \U0001f600 é\u2028x"
    ids = encode(load_tokenizer(str(MODEL)), text).tolist()
    pieces = tokens.pieces(ids)
    assert pieces is not None
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokens.text(ids)
    assert tokens.pieces(encode(load_tokenizer(str(MODEL)), "50").tolist()) is None


def facts(number: int, **fields: float) -> GroupFacts:
    return GroupFacts(str(number), number, number * 8, None, 8, 1000, **fields)  # type: ignore[arg-type]


def test_everything_is_shown_while_it_fits() -> None:
    groups = [facts(number) for number in range(20)]
    assert select(groups, 160, 20_000) == {group.id for group in groups}


@pytest.mark.parametrize(("limit", "max_bytes"), [(400, 10**9), (10**9, 50_000)])
def test_a_selection_keeps_to_its_bounds_and_shows_ends_extremes_and_all_versions(
    limit: int, max_bytes: int
) -> None:
    groups = [facts(number) for number in range(1000)]
    groups[333].advantage, groups[555].penalty, groups[666].failed = 9.0, -3.0, 2
    chosen = select(groups, limit, max_bytes)
    assert len(chosen) <= 50
    assert {"0", "999", "333", "555", "666"} <= chosen
    numbers = sorted(map(int, chosen))
    assert max(np.diff(numbers)) < 200


def test_a_group_that_is_larger_than_a_page_may_be_is_shown_alone() -> None:
    groups = [facts(number) for number in range(3)]
    groups[1].size = 900
    assert select(groups, 7, 10**9) == select(groups, 1000, 500) == {"1"}


def test_of_many_evaluations_the_same_problems_of_first_middle_and_last_are_shown() -> None:
    groups = [
        GroupFacts(f"{version}-{problem}", problem, version, Evaluated("0", version, problem), 1, 10)
        for version in range(9)
        for problem in range(100)
    ]
    chosen = select(groups, 100, 10**6)
    assert {f"{version}-{problem}" for version in (0, 4, 8) for problem in range(8)} <= chosen


def test_every_beginning_of_an_even_order_is_spread() -> None:
    order = [group.order for group in evenly([facts(number) for number in range(100)])]
    assert sorted(order) == list(range(100))
    assert max(np.diff(sorted(order[:15]))) <= 13


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_built_page_asks_nobody_for_anything(built: Path) -> None:
    parsed = _Tags()
    parsed.feed(built.read_text())
    assert [attrs["src"] for tag, attrs in parsed.found if tag == "script" and "src" in attrs] == ["index.js"]
    assert not [attrs for _, attrs in parsed.found if any(name.startswith("on") for name in attrs)]
    assert "http:" not in built.read_text()
    assert "https:" not in built.read_text()


def test_a_name_of_a_run_is_no_markup() -> None:
    assert "<title>&lt;/title&gt;&lt;script&gt;" in page_text("</title><script>")


def test_no_text_of_a_model_lies_in_the_page_itself(built: Path) -> None:
    """They are values in the files of data, which no browser reads as markup."""
    assert "guess 1-100" in (built.parent / "chunk_0.js").read_text()
    assert "guess 1-100" not in built.read_text()
    assert HOSTILE not in built.read_text()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_code_of_the_page_can_be_parsed(tmp_path: Path) -> None:
    import pipelinerl.extras.viewer as package

    script = tmp_path / "page.js"
    folder = Path(package.__path__[0])
    script.write_text("\n".join((folder / name).read_text() for name in PARTS if name.endswith(".js")))
    subprocess.run(["node", "--check", str(script)], check=True, timeout=300)


def test_the_folder_is_as_private_as_the_run(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    run.chmod(0o700)
    assert write_page(run).parent.stat().st_mode & 0o777 == 0o700
    public = recorded_run(tmp_path / "public")
    public.chmod(0o755)
    assert write_page(public, compare=run).parent.stat().st_mode & 0o777 == 0o700, "it shows both runs"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone"], "there is no run in"),
        (["empty"], "there is no run, or none of its rollouts has ended"),
        (["run", "--limit", "0"], "--limit 0"),
        (["played", "--compare", "empty"], "empty: there is no run, or none of its rollouts has ended"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "run"):
        (tmp_path / name).mkdir()
    recorded_run(tmp_path / "played")
    assert view.main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_command_prints_where_the_page_is(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view.main([str(built.parents[2]), "--limit", "500"]) == 0
    assert capsys.readouterr().out.strip() == str(built)
    assert json.loads((built.parent / "index.js").read_text()[len("page.index(") : -3])["chunks"] == 1


@pytest.mark.usefixtures("undrawn")
def test_the_report_s_command_writes_the_page_unless_it_is_switched_off(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    report_run(run)
    assert 'href="rollouts/index.html"' in (run / "report" / "index.html").read_text()
    assert index_of(run / "report" / "rollouts" / "index.html")["report"]
    shutil.rmtree(run / "report")
    config = run / "conf" / "exp_config.yaml"
    config.write_text(config.read_text() + "observe: {rollout_page: false}\n")
    report_run(run)
    assert not (run / "report" / "rollouts").exists()
    assert "rollouts/index.html" not in (run / "report" / "index.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_damage_costs_the_page_and_not_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded_run(tmp_path / "run")
    segment = next((run / "streams" / "training_data").rglob("*.rec"))
    data = bytearray(segment.read_bytes())
    data[-9] ^= 255
    segment.write_bytes(data)
    report_run(run)
    said = capsys.readouterr().err
    assert said.startswith("report: no page of rollouts: record 0 of stream training_data/0/0 is corrupt")
    assert (run / "report" / "index.html").is_file()


def test_groups_that_were_kept_for_people_make_the_page_of_trimmed_streams(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    shutil.rmtree(run / "streams" / "actor")
    shutil.rmtree(run / "streams" / "training_data")
    with write_to_streams(SingleStreamSpec(run, KEPT_TOPIC)) as stream:
        stream.write({"texts": group(TRAINED, [0.0, 1.0])})
        stream.write({"step": 3, "version": 24, "samples": [[[TRAINED, 1, 0], 0.5, 1.0, None]]})
    page = write_page(run)
    shown = next(one for one in chunk_of(page)["groups"] if one["id"] == TRAINED)
    turns = [attempt["turns"][0] for attempt in shown["attempts"]]
    assert (turns[1]["adv"], turns[1]["step"], turns[1]["at"], turns[1]["ref"]) == (0.5, 3, 24, None)
    assert "adv" not in turns[0]
    assert index_of(page)["runs"][0]["all"] is False


def test_metadata_of_a_text_is_shown_whatever_a_domain_put_there() -> None:
    given = {"scores": np.array([0.5, 1.0]), "none": None, "no": "", "nothing": [], "zero": 0, "one": [1]}
    assert _pairs(given) == [["scores", "[0.5, 1.0]"], ["zero", "0"], ["one", "[1]"]]


def test_a_version_that_a_resume_evaluated_again_has_the_figures_of_each_pass(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path)
    with write_to_streams(SingleStreamSpec(folder, "stats_test")) as stream:
        for start, reward in (("0", 0.25), ("1", -3.0)):
            stream.write({"version": 32, "start": start, "values": {"reward": [reward]}})
    source = RunSource(folder)
    passes = [evaluation_of(f"{start}-eval32-0") for start in "01"]
    assert [_evaluated_metrics(source, one) for one in passes if one] == [
        {"reward": 0.25},
        {"reward": -3.0},
    ]
    before = evaluation_of("0-eval16-0")
    assert before and _evaluated_metrics(source, before)["reward"] == 1.0
    assert evaluation_of(TRAINED) is None


def test_a_log_for_inspect_has_attempts_as_epochs(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.eval"
    assert view.main([str(built.parents[2]), "--eval", str(path)]) == 0
    with zipfile.ZipFile(path) as log:
        assert log.testzip() is None
        header, summaries = (json.loads(log.read(f"{name}.json")) for name in ("header", "summaries"))
        sample = json.loads(log.read(f"samples/{TRAINED}_epoch_3.json"))
        assert json.loads(log.read("_journal/start.json"))["eval"] == header["eval"]
    assert (header["status"], header["results"]["total_samples"], len(summaries)) == ("success", 10, 10)
    assert (sample["id"], sample["epoch"], sample["scores"]["reward"]["value"]) == (TRAINED, 3, 1.0)
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant"] * 2
    assert sample["messages"][3]["content"] == HOSTILE
    assert sample["metadata"]["turns"][1]["advantage"] == 0.5
    assert sample["metadata"]["fate"] == "trained"


def test_a_log_for_inspect_is_named_as_one(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view.main([str(built.parents[2]), "--eval", "run.zip"]) == 1
    assert "name a file NAME.eval" in capsys.readouterr().err


def test_a_page_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    page = write_page(run)

    class Broken(BaseDomain):
        def rollout_notes(self, output_dir: Path) -> NotesOf:
            raise ValueError("the audit log is damaged")

    with pytest.raises(ValueError, match="damaged"):
        write_page(run, Broken())
    assert page.is_file()


def test_foreign_records_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    short = {
        key: value for key, value in group("foreign", [1.0])[0].items() if key not in ("role", "situation")
    }
    with write_to_streams(SingleStreamSpec(run, "actor")) as stream:
        stream.write([short, {"group_id": "foreign", "metadata": {}}])
    shown = next(one for one in chunk_of(write_page(run))["groups"] if one["id"] == "foreign")
    assert len(shown["attempts"][0]["turns"]) == 1


def test_a_page_is_no_larger_than_it_was_estimated(built: Path) -> None:
    groups = [*RunSource(built.parents[2]).groups()]
    estimated = sum(_estimated_size(group) for group in groups)
    assert (built.parent / "chunk_0.js").stat().st_size < estimated


def test_a_record_of_what_was_measured_that_is_another_one_is_named(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    with write_to_streams(SingleStreamSpec(run, "stats_rollouts")) as stream:
        stream.write({"group": "g", "problem": 1, "rollouts": [{"index": 0, "rewurd": 1.0}]})
    with pytest.raises(StreamError, match=r"stats_rollouts holds another record: .*reward"):
        write_page(run)
