"""Where the server may listen and what a token is."""

from pathlib import Path

import pytest

from retrieval_server.access import AccessError, Gate, check_binding, is_loopback, read_token
from retrieval_server.arguments import parse_arguments

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    check_binding(host, allow_remote=False, token=None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_other_addresses_need_a_flag_and_a_token(host: str) -> None:
    with pytest.raises(AccessError, match="--allow-remote"):
        check_binding(host, allow_remote=False, token=TOKEN)
    with pytest.raises(AccessError, match="set a token"):
        check_binding(host, allow_remote=True, token=None)
    check_binding(host, allow_remote=True, token=TOKEN)


def test_a_token_comes_from_a_file_of_its_owner_or_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    environment = {"RETRIEVAL_TOKEN": "fedcba9876543210"}
    assert read_token(None, {}) is None
    assert read_token(None, environment) == "fedcba9876543210"
    assert read_token(path, environment) == TOKEN
    path.chmod(0o640)
    with pytest.raises(AccessError, match="chmod 600"):
        read_token(path, environment)


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "naïve-naïve-naïve-naïve"])
def test_what_is_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(AccessError, match="RETRIEVAL_TOKEN holds no token") as error:
        read_token(None, {"RETRIEVAL_TOKEN": token})
    assert not token or token not in str(error.value)


def test_only_the_whole_token_is_admitted() -> None:
    gate = Gate(TOKEN)
    assert gate.admits(f"Bearer {TOKEN}")
    wrong = ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN} ", f"Bearer {TOKEN[:-1]}", "Bearer \udce9")
    assert not any(gate.admits(header) for header in (None, *wrong))
    assert Gate(None).admits(None)


def test_arguments_choose_the_back_end(tmp_path: Path) -> None:
    web = tmp_path / "web.jsonl"
    web.write_text("")
    small = parse_arguments(["--web", str(web)])
    assert (small.backend, small.index) == ("rank_bm25", None)
    asked = parse_arguments(["--web", str(web), "--index", str(tmp_path / "i")])
    assert (asked.backend, asked.index) == ("bm25s", tmp_path / "i")
    with web.open("wb") as file:
        file.truncate(33 << 20)
    large = parse_arguments(["--web", str(web)])
    assert (large.backend, large.index) == ("bm25s", tmp_path / "web.jsonl.bm25s")
    assert parse_arguments(["--web", str(web), "--backend", "rank_bm25"]).index is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--web", "{web}", "--backend", "rank_bm25", "--index", "i"], "--index i is for --backend bm25s"),
        (["--web", "{web}", "--workers", "0"], "--workers 0 is not at least 1"),
        (["--web", "{web}", "--max-waiting", "0"], "--max-waiting 0 is not at least 1"),
        ([], "nothing to serve"),
        (["--web", "/nowhere/web.jsonl"], "--web /nowhere/web.jsonl is not a file"),
        (["--tasks", "/nowhere"], "--tasks /nowhere is not a directory"),
        (["--web", "{web}", "--port", "-1"], "--port -1 is not between 0 and 65535"),
        (["--web", "{web}", "--backend", "fast"], "invalid choice: 'fast'"),
    ],
)
def test_contradictions_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "web.jsonl").write_text("")
    with pytest.raises(SystemExit, match="2"):
        parse_arguments([argument.format(web=tmp_path / "web.jsonl") for argument in arguments])
    assert message in capsys.readouterr().err.splitlines()[-1]
