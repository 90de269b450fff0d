"""How old what is trained may be: all that follows from the key `max_lag`.

`Config.staleness` has it. The actor admits rollouts by it (`actor/budget.py`), preprocess drops samples by it
(`preprocess/loop.py`), the trainer leaves out tokens by it (`finetune/rl/targets.py`), the launcher checks
and shows it. None of them knows how the bound is given: that is `Staleness.samples`. Another unit of the key,
or another key, is a change of this class and of the key's field in `config/tree.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from pipelinerl.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Staleness:
    """The bound on the age of a trained token. Versions, ages and updates are counts of samples."""

    KEY: ClassVar[str] = "max_lag"
    UNIT: ClassVar[str] = "SAMPLES"
    """Of the key, for the table of choices."""
    given: int | None
    """Samples between the version that drew a token and the last one when it is trained; None: any number."""
    placed: int | None = None
    """Samples between two versions; None before the trainer is placed."""

    def __str__(self) -> str:
        return f"{self.KEY}={'null' if self.given is None else self.given}"

    @property
    def samples(self) -> int | None:
        """The bound in samples, whatever the unit of the key: all else follows from it.

        Only `UNIT`, `looser` and `problems` also write values of the key.
        """
        return self.given

    @property
    def update(self) -> int:
        """Samples between two versions. Raises ConfigError in a tree that no launcher has placed."""
        if self.placed is None:
            raise ConfigError("derived: missing; start the run again with python -m pipelinerl.launch")
        return self.placed

    @property
    def bounded(self) -> bool:
        """Whether there is a bound at all."""
        return self.given is not None

    @property
    def synchronous(self) -> bool:
        """Whether rollouts take turns with updates, so that a run can be repeated bit for bit."""
        return self.given == 0

    @property
    def waiting(self) -> int:
        """Samples that may wait to be trained; 0 without a bound, where nobody knows."""
        return self.samples or 0

    @property
    def admitted(self) -> int | None:
        """Samples that may exist or be under way beyond the last version; None without a bound."""
        # One update more than the lag: what is trained between two versions has the lag of the first of them,
        # so with max_lag=0 the weights of one version may sample all that is trained until the next one.
        # Versions come in steps of an update, so a bound between two of them admits no more than the lower.
        if (lag := self.samples) is None:
            return None
        return (lag // self.update + 1) * self.update

    def too_old(self, lag: Any) -> Any:
        """Whether a token may not be trained that is so many samples behind the last version; also of arrays.

        Preprocess asks it of a sample's newest token, the trainer of each token.
        """
        return lag > (inf if (most := self.samples) is None else most)

    def problems(self, asked: int, ranks: int) -> Iterator[str]:
        """What is wrong with updates of `asked` samples that `ranks` trainer ranks round up to `update`."""
        if (lag := self.samples) is not None and asked <= lag < self.update:
            yield (
                f"{self}: {ranks} trainer ranks round an update up to {self.update} samples, so that nothing "
                f"would be sampled ahead; set {self.update} or more, or 0 for taking turns"
            )

    def shown(self) -> tuple[str, str]:
        """For the table of choices: what the bound means with such updates, and why it is not `max_lag`."""
        if (admitted := self.admitted) is None:
            return "not bounded", ""
        ahead = admitted - self.update  # beside the update that these weights sample
        turns = f"rollouts are admitted for {ahead}" if ahead else "rollouts take turns with updates"
        because = f"an update of {self.update} samples is " + ("not cut" if ahead else "more than that")
        return (
            f"at most {self.samples} samples when trained; {turns}",
            because if ahead != self.samples else "",
        )

    def looser(self) -> str:
        """The override that lets one update more be sampled ahead."""
        return f"{self.KEY}={self.admitted}"
