"""How old what is trained may be: all that follows from the key `max_lag`.

`Config.staleness` has it. The actor admits rollouts by it, preprocess drops samples by it, the trainer leaves
out tokens by it, the launcher checks and shows it; none of them knows how the bound is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Staleness:
    """The bound on the age of a trained token. Versions, ages and updates are counts of samples."""

    max_lag: int | None
    """Samples between the version that drew a token and the last one when it is trained; None: any number."""

    def __str__(self) -> str:
        return "max_lag=null" if self.max_lag is None else f"max_lag={self.max_lag}"

    @property
    def bounded(self) -> bool:
        """Whether there is a bound at all."""
        return self.max_lag is not None

    @property
    def waiting(self) -> int:
        """Samples that may wait to be trained; 0 without a bound, where nobody knows."""
        return self.max_lag or 0

    @property
    def synchronous(self) -> bool:
        """Whether rollouts take turns with updates, so that a run can be repeated bit for bit."""
        return self.max_lag == 0

    def admitted(self, update: int) -> int | None:
        """Samples that may exist or be under way beyond the last version; None without a bound.

        `update` are the samples between two versions.
        """
        # One update more than the lag: what is trained between two versions has the lag of the first of them,
        # so with max_lag=0 the weights of one version may sample all that is trained until the next one.
        # Versions come in steps of an update, so a bound between two of them admits no more than the lower.
        return None if self.max_lag is None else (self.max_lag // update + 1) * update

    def too_old(self, lag: Any) -> Any:
        """Whether a token may not be trained that is so many samples behind the last version; also of arrays.

        Preprocess asks it of a sample's newest token, the trainer of each token.
        """
        return lag > (inf if self.max_lag is None else self.max_lag)

    def problems(self, asked: int, update: int, ranks: int) -> Iterator[str]:
        """What is wrong with an update of `asked` samples that `ranks` trainer ranks round up to `update`."""
        if self.max_lag is not None and asked <= self.max_lag < update:
            yield (
                f"{self}: {ranks} trainer ranks round an update up to {update} samples, so that nothing "
                f"would be sampled ahead; set {update} or more, or 0 for taking turns"
            )

    def shown(self, update: int) -> tuple[str, str]:
        """For the table of choices: what the bound means with such updates, and why it is not `max_lag`."""
        if (admitted := self.admitted(update)) is None:
            return "not bounded", ""
        ahead = admitted - update  # beside the update that these weights sample
        turns = f"rollouts are admitted for {ahead}" if ahead else "rollouts take turns with updates"
        because = f"an update of {update} samples is " + ("not cut" if ahead else "more than that")
        return (
            f"at most {self.max_lag} samples when trained; {turns}",
            because if ahead != self.max_lag else "",
        )

    def looser(self, update: int) -> str:
        """The override that lets one update more be sampled ahead."""
        return f"max_lag={self.admitted(update)}"
