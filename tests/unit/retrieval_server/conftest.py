"""A small data folder with a canary in every private document and every answer file."""

import json
from pathlib import Path

import pytest


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """`tasks/` with two tasks and `web.jsonl` with three pages and one empty one."""
    for task in ("DR90001", "DR90002"):
        files = tmp_path / "tasks" / task / "files"
        _write(
            files / "IN001_pdf" / "report.md", f"# Audit report\ncold chain audit canary{task}report shared"
        )
        (files / "IN001_pdf" / "report.pdf").write_bytes(b"%PDF canarybinary")
        _write(files / "IN002_chat" / "log.csv", f"who,what\nstaff,canary{task}log shared")
        _write(files / "IN002_chat" / "empty.txt", "  \n")
        for name in ("qa_dict.json", "file_dict.json", "eval.json", "dr_question.json", "qa_dict.md"):
            _write(files / "IN001_pdf" / name, '{"answer": "canaryanswer shared", "qa_type": "insight"}')
        entry = {
            "source": "files/IN002_chat/log.xlsx",
            "destination": "x",
            "app": "mail",
            "qa_type": "canarytype",
        }
        _write(tmp_path / "tasks" / task / "config" / "env.json", json.dumps({"env_files": [entry]}))
        _write(tmp_path / "tasks" / task / "config" / "eval.json", "canaryanswer shared")
    _write(tmp_path / "secret.md", "canaryoutside shared")
    pages = [
        {"docid": "10", "url": "https://a.example/10", "text": "cold chain audit in retail. " * 500},
        {"docid": "web/9", "url": "https://a.example/9", "text": "public cold storage market naïve shared"},
        {"docid": 8, "text": "weather"},
        {"docid": "7", "url": "u", "text": ""},
    ]
    _write(tmp_path / "web.jsonl", "\n".join(json.dumps(page, ensure_ascii=False) for page in pages) + "\n\n")
    return tmp_path
