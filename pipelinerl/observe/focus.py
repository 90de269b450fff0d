"""What a domain wants its reader to see first in the report of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ReportFocus:
    """What a domain wants shown first; by default success, reward and the yes/no metrics."""

    headline: tuple[str, ...] = ()
    """Evaluation metrics of the printed table, in order."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Label -> evaluation metric, for the figure of the stages of an agent."""
