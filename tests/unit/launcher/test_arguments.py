"""The launcher's own options, and what it keeps of its table."""

import json
from pathlib import Path

import pytest

from pipelinerl.base.errors import ConfigError
from pipelinerl.config import Config
from pipelinerl.config.machine import Job
from pipelinerl.domain import ServiceSpec
from pipelinerl.launcher.arguments import parse
from pipelinerl.launcher.choices import Row, _servers, keep_choices
from pipelinerl.observe.report_page import CHOICES


def test_plain_progress_is_asked_for_among_the_keys() -> None:
    given = parse(["+domain=guessing", "--plain", "seed=7"])
    assert (given.plain, given.overrides) == (True, ["+domain=guessing", "seed=7"])
    assert not parse([]).plain
    with pytest.raises(ConfigError, match="--plan: unknown option; did you mean --plain"):
        parse(["--plan"])
    assert parse(["--config-path", "conf", "--config-name", "math"]).config_dir == Path("conf")


def test_the_table_names_the_key_of_a_service_s_address() -> None:
    urls = {"search": "http://127.0.0.1:7000", "redis": "redis://127.0.0.1:11000"}
    cfg = Config(jobs=[Job(kind="service", idx=i, name=n, url=u) for i, (n, u) in enumerate(urls.items())])
    spec = ServiceSpec(name="search", argv=[], url_key="mine.search_url", note="an index")
    rows = [(row.chosen, row.change) for row in _servers(cfg, [spec], "world.backend=ray", lambda *_: "")]
    assert rows == [
        ("http://127.0.0.1:7000, an index", "mine.search_url=URL"),
        ("redis://127.0.0.1:11000", "streams.host=HOST"),
    ]


def test_the_table_of_choices_is_kept_for_the_report(tmp_path: Path) -> None:
    keep_choices(tmp_path, [Row("engines", "1", "given", "engine.count=N")])
    kept = json.loads((tmp_path / CHOICES).read_text())
    assert kept == [{"subject": "engines", "chosen": "1", "because": "given", "change": "engine.count=N"}]
