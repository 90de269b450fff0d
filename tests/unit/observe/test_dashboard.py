"""The committed wandb view: its keys exist, and it is published or written."""

import asyncio
import json
import re
import sys

import pytest

from domains.guessing.stepwise import GuessingMetrics
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.reward.evaluate import evaluate_episode
from domains.privacy_hopqa.reward.scoring import score_here
from domains.raro.metrics import CRITIC_RATES, PREFIX
from domains.reputation_hacking.language.log import ReputationMetrics
from pipelinerl.observe import dashboard
from pipelinerl.observe.dashboard import Dashboard, Panel, PanelGroup, load_dashboard, main
from tests.support.metric_tables import unknown
from tests.support.privacy_hopqa.agent import TWO_HOPS, play, settings, solving


async def measured_privacy():
    """What a rollout of the privacy agent reports."""
    episode = await play(solving())
    return (await evaluate_episode(episode, Judge(TWO_HOPS), settings(), score_here))[1].model_dump()


DOMAINS = {
    "guessing": set(GuessingMetrics.model_fields),
    "privacy_hopqa": set(asyncio.run(measured_privacy())),
    "raro": {
        PREFIX + name
        for name in (
            *(f"{source}/{rate}" for source in ("fresh", "replay") for rate in CRITIC_RATES),
            *("replay_size", "replay_age", "eval_accuracy", "eval_accuracy_greedy"),
        )
    },
    "reputation_hacking": set(ReputationMetrics.model_fields),
}


def bad_keys(shown: Dashboard) -> list[str]:
    return [
        key
        for section in shown.sections
        for panel in section.panels
        for key in panel.metrics
        if unknown(key, DOMAINS[section.domain] if section.domain else ())
    ]


def test_every_key_of_every_panel_is_a_metric():
    shown = load_dashboard()
    assert bad_keys(shown) == []
    assert {section.domain for section in shown.sections if section.domain} == set(DOMAINS)
    titles = [panel.title for section in shown.sections for panel in section.panels]
    assert len(set(titles)) == len(titles) > 30


@pytest.mark.parametrize(
    "misspelt",
    [
        "actor/rewrd_mean",
        "actor/hop_accuracy_mean",  # of a domain, in a section of none
        "actor/reward",
        "stats/lags",
        "weights/parity_s",
        "actor/requests/engine_idle",
        "adv/situations/<family>/count",
        "adv/situation/<familie>/count",
        "discarded/<why>",
    ],
)
def test_a_misspelt_key_is_found(misspelt):
    panels = (Panel(title="t", metrics=("rl/loss", misspelt)),)
    assert bad_keys(Dashboard(name="n", x="texts", sections=(PanelGroup(name="s", panels=panels),))) == [
        misspelt
    ]


def test_what_the_issue_of_a_run_needs_is_shown_without_a_domain():
    panels = [panel for one in load_dashboard().sections if not one.domain for panel in one.panels]
    assert {key for panel in panels for key in panel.metrics} >= {
        *("actor/reward_mean", "actor/success_mean", "stats/lag", "stats/samples"),
        *("actor/output_tokens_per_second", "throughput/tokens_per_sec"),
        *("adv/situation/<family>/abs_mean", "actor/requests/engine_idle_share"),
    }


def test_placeholders_become_a_pattern_of_whole_keys():
    panel = Panel(title="t", metrics=("adv/situation/<family>/mean", "rl/loss"))
    assert panel.pattern is not None
    for key in ("adv/situation/hop:plan/mean", "rl/loss"):
        assert re.search(panel.pattern, key)
    for key in ("adv/situation/hop:plan/abs_mean", "rl/max_loss", "rl/loss_x"):
        assert not re.search(panel.pattern, key)
    assert Panel(title="t", metrics=("rl/loss",)).pattern is None


def test_offline_the_view_is_written_to_the_file_that_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["--project", "p"]) == 1
    said = "dashboard: wandb is offline; set WANDB_API_KEY to publish, or give --out FILE for a copy\n"
    assert capsys.readouterr().err == said and not list(tmp_path.iterdir())
    assert main(["--project", "p", "--domain", "guessing", "--out", "view.json"]) == 0
    assert capsys.readouterr().out == "dashboard: wrote view.json\n"
    data = json.loads((tmp_path / "view.json").read_text())
    assert data["project"] == "p" and data["x"] == "texts"
    assert {section["domain"] for section in data["sections"]} == {None, "guessing"}
    situations = next(one for one in data["sections"] if one["name"] == "Situations")
    assert situations["panels"][0]["pattern"] == "^(adv/situation/.+/abs_mean)$"


def test_with_a_key_the_same_panels_are_published(monkeypatch, capsys):
    workspaces = pytest.importorskip("wandb_workspaces.workspaces")
    saved = []
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(workspaces.Workspace, "save", lambda self: saved.append(self))
    monkeypatch.setattr(workspaces.Workspace, "url", "https://example.org/team/p?nw=1")
    assert main(["--entity", "team", "--project", "p"]) == 0
    assert capsys.readouterr().out == "dashboard: https://example.org/team/p?nw=1\n"
    (view,) = saved
    assert (view.entity, view.project, view.settings.x_axis) == ("team", "p", "texts")
    expected = load_dashboard()
    assert [one.name for one in view.sections] == [one.name for one in expected.sections]
    for section, shown in zip(view.sections, expected.sections, strict=True):
        for panel, one in zip(section.panels, shown.panels, strict=True):
            assert (panel.title, panel.x, panel.metric_regex) == (one.title, "texts", one.pattern)
            assert one.pattern or list(panel.y) == list(one.metrics)


@pytest.mark.parametrize(
    ("error", "expected"), [(ValueError("no such\nproject"), "no such project"), (OSError("down"), "down")]
)
def test_a_refusal_is_one_line(error, expected, monkeypatch, capsys):
    workspaces = pytest.importorskip("wandb_workspaces.workspaces")
    monkeypatch.setenv("WANDB_MODE", "online")

    def save(_):
        raise error

    monkeypatch.setattr(workspaces.Workspace, "save", save)
    assert main(["--entity", "team"]) == 1
    assert capsys.readouterr().err == f"dashboard: wandb refused the view: {expected}\n"


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "online")
    assert main([]) == 1
    assert "--entity is empty" in capsys.readouterr().err
    assert main(["--domain", "chess", "--out", str(tmp_path / "d.json")]) == 1
    assert "domain chess has no section; choose among guessing" in capsys.readouterr().err
    bad = tmp_path / "bad.yaml"
    for content, expected in (
        ("name: n\nx: texts\nsections:\n- name: s\n  panel: []\n", "sections.0.panels: Field required"),
        ("{", "cannot be read"),
    ):
        bad.write_text(content)
        assert main(["--definition", str(bad), "--out", str(tmp_path / "d.json")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert main(["--entity", "team"]) == 1
    assert "pip install 'pipelinerl[dashboard]'" in capsys.readouterr().err
    assert dashboard.DEFINITION.is_file()
