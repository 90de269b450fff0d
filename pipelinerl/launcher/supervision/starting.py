"""What a child is at while it starts, by what it adds to its log; for the progress line and failures."""

from typing import Any

from pipelinerl.base.line_file import LineTail
from pipelinerl.launcher.supervision.spec import ChildSpec

FIRST_STAGE = "starting"


class StartLog:
    """Follows one start of a child that has `stages`; made before the process, so that it misses nothing.

    The log lies in the run's folder, which all hosts of a run share.
    """

    def __init__(self, spec: ChildSpec, now: float) -> None:
        self._spec, self._since = spec, now
        self._tail = LineTail(spec.stdout, from_end=True)
        self.stage = FIRST_STAGE

    def look(self, now: float) -> dict[str, Any]:
        """Read what is new; who starts, at what stage it is and for how many seconds."""
        for line in self._tail.news():
            text = line.decode(errors="replace")
            said = next((stage for part, stage in self._spec.stages if part in text), self.stage)
            if said != self.stage:
                self.stage, self._since = said, now
        return {"who": self._spec.name, "stage": self.stage, "for_s": round(now - self._since, 1)}
