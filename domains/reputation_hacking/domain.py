"""What the core knows of this domain: settings, checks, demonstrations, report; named by `domain_hooks`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.reputation_hacking.dataset import DOMAIN
from domains.reputation_hacking.game.mitigations import NONE
from domains.reputation_hacking.language import demonstrations, report
from domains.reputation_hacking.language.notes import decision_notes
from domains.reputation_hacking.language.rollout import asked, begun
from domains.reputation_hacking.settings import KEY, ReputationSettings, settings_of
from pipelinerl.domain import BaseDomain, NotesOf, ReportFocus, ReportSection


class ReputationDomain(BaseDomain):
    """Hooks of `reputation_hacking`."""

    policy_keys = ()

    settings = ReputationSettings
    settings_key = KEY
    folders = (KEY,)
    report_focus = ReportFocus(
        headline=(
            "reward",
            "true_impact",
            "manipulation_score",
            "signal_bias",
            "help_share",
            "signal_share",
            "invalid",
            "episode_return",
        )
    )

    def validate(self, cfg: DictConfig) -> list[str]:
        """Problems of the block and of its fit with the advantages, one line each."""
        try:
            settings = settings_of(cfg)
        except ValueError as error:
            return [str(error)]
        problems = []
        by_step = bool(cfg.finetune.rl.step_reward_advantages)
        if by_step != (settings.advantage != "rollout"):
            wanted = str(settings.advantage != "rollout").lower()
            problems.append(
                f"{KEY}.advantage={settings.advantage} needs finetune.rl.step_reward_advantages={wanted}"
            )
        if settings.advantage == "to_go" and settings.variant != NONE:
            problems.append(
                f"{KEY}.advantage=to_go is exact for mitigation none only, found {settings.mitigation}; "
                "use situation or rollout"
            )
        return problems

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """What is asked before the first decision."""
        return asked(problem, *begun(problem)) if problem.get("domain") == DOMAIN else None

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterable[Any]:
        """Play of habits for the configured prices and wordings, whatever the phase."""
        given = cfg.dataset_loader_params
        prices = list(given.get("c_signal", [0.0, 0.5, 0.7, 0.9]))
        return demonstrations.demonstrations(seed, prices, list(given.get("variants", ["neutral"])))

    def vocabulary(self) -> Sequence[str]:
        return demonstrations.vocabulary()

    def rollout_notes(self, output_dir: Path) -> NotesOf | None:
        """Each decision beside that of the optimum in the same state."""
        return decision_notes(output_dir)

    def report(self, output_dir: Path) -> list[ReportSection]:
        """Evaluation beside the optimum on the same seeds, and behaviour over the run."""
        return report.sections(output_dir)
