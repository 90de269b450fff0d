"""Which engines the launcher is told to replace."""

from pathlib import Path

from pipelinerl.run_state.replacements import Replacements, ask_for_replacement


def test_replacements_are_taken_once_and_those_of_an_earlier_start_never(tmp_path: Path) -> None:
    ask_for_replacement(tmp_path, ["http://old"], "long ago")
    replacements = Replacements(tmp_path)
    assert replacements.take() == {}
    ask_for_replacement(tmp_path, ["http://a", "http://b"], "half a model")
    assert replacements.take() == {"http://a": "half a model", "http://b": "half a model"}
    assert replacements.take() == {}


def test_the_file_that_another_host_appends_to_is_there_from_the_beginning(tmp_path: Path) -> None:
    replacements = Replacements(tmp_path, shared=True)
    assert (tmp_path / "finetune" / "broken_engines.jsonl").read_bytes() == b""
    ask_for_replacement(tmp_path, ["http://a"], "half a model")
    assert replacements.take() == {"http://a": "half a model"}


def test_a_request_that_is_still_being_written_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    replacements = Replacements(tmp_path)
    assert replacements.take() == {}
    ask_for_replacement(tmp_path, ["http://a"], "half a model")
    path = tmp_path / "finetune" / "broken_engines.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert replacements.take() == {"http://a": "half a model"}
    path.write_bytes(whole + whole)
    assert replacements.take() == {"http://a": "half a model"}
