"""What the core knows of this domain: settings, checks, the buffer's backups, report, demonstrations.

Named by `domain_hooks`; the launcher, the actor and the report call it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.raro import demonstrations
from domains.raro.checks import problems
from domains.raro.config import KEY, RaroSettings, settings_of
from domains.raro.data import DOMAIN
from domains.raro.notes import verdict_notes
from domains.raro.parser import ANSWER_CLOSE, ANSWER_OPEN, VERDICTS
from domains.raro.prompts import policy_prompt
from domains.raro.replay import BackupWriter, recover, remove
from domains.raro.report import sections
from domains.raro.runtime import FOLDER, backup_path, clear_server, open_buffer, replay_path
from pipelinerl.domain import BaseDomain, NotesOf, ReportFocus, ReportSection


class RaroDomain(BaseDomain):
    """Hooks of `raro`."""

    policy_keys = ()

    settings = RaroSettings
    settings_key = KEY
    folders = (FOLDER,)
    report_focus = ReportFocus(headline=("raro/eval_accuracy", "raro/eval_accuracy_greedy", "no_answer"))

    def __init__(self) -> None:
        self._backups: BackupWriter | None = None

    def start_over(self, cfg: DictConfig, output_dir: Path) -> None:
        """Empty a replay buffer that lies outside of the run's folder, in a file or in a server."""
        settings = settings_of(cfg)
        if settings.reward != "critic" or not settings.replay.path:
            return
        if settings.replay.backend == "redis":
            clear_server(settings, output_dir)
        else:
            remove(replay_path(settings, output_dir))

    def prepare(self, cfg: DictConfig, output_dir: Path) -> Mapping[str, Any]:
        """Make the replay buffer's file good: the live one if it is intact, else the checkpoint's copy."""
        settings = settings_of(cfg)
        if settings.reward == "critic" and settings.replay.backend == "sqlite":
            recover(replay_path(settings, output_dir), backup_path(output_dir))
        return {}

    def makes_data(self, cfg: DictConfig) -> bool:
        """No: the loader does not read the buffer."""
        return False

    def validate(self, cfg: DictConfig) -> list[str]:
        """Problems of the domain's block and of its fit with the rest, one line each."""
        try:
            settings = settings_of(cfg)
        except ValueError as error:
            return [str(error)]
        return list(problems(cfg, settings))

    def attach(self, cfg: DictConfig, output_dir: Path) -> None:
        """Open the buffer that the snapshots back up."""
        settings = settings_of(cfg)
        if settings.reward == "critic":
            buffer = open_buffer(settings, output_dir)
            self._backups = BackupWriter(buffer, backup_path(output_dir), settings.replay.checkpoint_every_s)

    def checkpoint(self) -> dict[str, Any]:
        """Back the buffer up, at most once in `raro.replay.checkpoint_every_s`."""
        if self._backups is not None:
            self._backups.checkpoint()
        return {}

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """What the policy reads."""
        if problem.get("domain") != DOMAIN:
            return None
        return policy_prompt(settings_of(cfg).prompt_set, problem["task"], problem["question"]).messages

    def report(self, output_dir: Path) -> list[ReportSection]:
        """The game's table, the sanity checks and the warnings; writes `report/raro.png`."""
        return sections(output_dir)

    def rollout_notes(self, output_dir: Path) -> NotesOf:
        """The order of each pair and every verdict."""
        return verdict_notes

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterable[Any]:
        """Noisy play of both roles, for the bootstrap recipe."""
        return demonstrations.demonstrations(cfg, seed, phase)

    def vocabulary(self) -> Sequence[str]:
        """The tags of answers and verdicts."""
        return (ANSWER_OPEN, ANSWER_CLOSE, *VERDICTS)
