"""What the core is told about the domain: settings, checks, demonstrations; named by `domain_hooks`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from domains.loading import loading_problems
from domains.math.domain import MathDomain
from domains.math.notes import judge_notes
from domains.prompts import check_bare, first_question
from domains.tir import demonstrations as dialogues
from domains.tir.datasets import load_datasets
from domains.tir.settings import KEY, TirSettings, settings_of
from pipelinerl.base.errors import first_line
from pipelinerl.domain import NotesOf, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration
from pipelinerl.extras.sandbox.host import SandboxUnavailable, mechanism

LOADER = "tir.datasets.load_datasets"


class TirDomain(MathDomain):
    """The checks of `math`, and of the sandbox."""

    settings = TirSettings
    settings_key = KEY
    report_focus = ReportFocus(headline=("success", "reward", "no_answer", "no_error", "num_python_calls"))

    def rollout_notes(self, output_dir: Path) -> NotesOf:
        """What the judge read in the last answer."""
        return judge_notes

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question, also of one that the loader of `math` gave."""
        own = first_question(cfg, problem, KEY, lambda row: str(row["task"]))
        return super().first_messages(cfg, problem) if own is None else own

    def validate(self, cfg: DictConfig) -> list[str]:
        """The machine has a sandbox and the judge, the data can be read, the prompt holds the question."""
        problems = super().validate(cfg)
        try:
            mechanism(settings_of(cfg).packages)
        except (SandboxUnavailable, ValueError) as error:
            problems.append(first_line(error))
        return [*problems, *loading_problems(cfg, LOADER, load_datasets)]

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Answers in dialogues about generated arithmetic, most of which end wrong."""
        check_bare(cfg, KEY)
        return dialogues.demonstrations(seed, cfg.dataset_loader_params.highest, list(cfg.test_dataset_names))
