"""The order of a weight update: serving, paused, updating, paused, serving. Pure; no I/O.

Before the pause, or in it, the weights may be prepared, which changes no state.

A call out of order raises OutOfOrder (HTTP 409). A refused file leaves the old weights whole: the engine may
be resumed with them, and only then can another update start. A copy that fails half way breaks the engine for
good.
"""

from enum import StrEnum

UNVERSIONED = "default"


class OutOfOrder(RuntimeError):
    """The call does not fit the state of the engine (HTTP 409)."""


class State(StrEnum):
    """Where the engine stands; tokens are sampled in SERVING only."""

    SERVING = "serving"
    PAUSED = "paused"
    UPDATING = "updating"
    LOADING = "loading"
    LOADED = "loaded"
    REFUSED = "refused"
    BROKEN = "broken"


class UpdateState:
    """State and weight version; one method per call, each checks that it is in order."""

    def __init__(self) -> None:
        self.state = State.SERVING
        self.version = UNVERSIONED
        self.initialised = False
        self._loading_version = UNVERSIONED

    @property
    def serving(self) -> bool:
        """True while tokens may be sampled."""
        return self.state is State.SERVING

    def pause(self) -> None:
        """Serving or already paused; a refused update stays noted."""
        self._require("pause", State.SERVING, State.PAUSED, State.REFUSED)
        # REFUSED stays: only a resume leaves it, so that no update starts in the pause of a failed one.
        if self.state is State.SERVING:
            self.state = State.PAUSED

    def resume(self) -> None:
        """Back to serving; harmless when serving already."""
        self._require("resume", State.SERVING, State.PAUSED, State.REFUSED)
        self.state = State.SERVING

    def init(self) -> None:
        """The transport is agreed on; may be repeated by a new publisher."""
        self._require("init_weight_transfer_engine", State.SERVING, State.PAUSED)
        self.initialised = True

    def preparing(self, version: str) -> None:
        """The weights of `version` are read ahead of its update; nothing changes."""
        self._require_initialised("prepare_weights")
        self._require("prepare_weights", State.SERVING, State.PAUSED)
        self._require_growth(version)

    def start(self) -> None:
        """An update begins; needs a pause and the transport."""
        self._require_initialised("start_weight_update")
        self._require("start_weight_update", State.PAUSED)
        self.state = State.UPDATING

    def loading(self, version: str) -> None:
        """The weights of `version` are being read; versions only grow."""
        self._require("update_weights", State.UPDATING)
        self._require_growth(version)
        self.state, self._loading_version = State.LOADING, version

    def loaded(self, outcome: State) -> None:
        """The end of `loading`: every tensor is in place (LOADED), none (REFUSED), or only some (BROKEN)."""
        self.state = outcome

    def finish(self, version: str) -> None:
        """The weight version changes, after the last tensor and before resume."""
        self._require("finish_weight_update", State.LOADED)
        if version != self._loading_version:
            raise OutOfOrder(f"finish_weight_update {version}, but {self._loading_version} was loaded")
        self.state, self.version = State.PAUSED, version

    def relabel(self, version: str) -> None:
        """Another version number for the same weights, such as after a restore; versions only grow."""
        self._require("update_weight_version", State.SERVING, State.PAUSED)
        self._require_growth(version)
        self.version = version

    def leave(self) -> None:
        """The transport is given up; another update needs init_weight_transfer_engine first."""
        self._require("shutdown_weight_transfer_engine", State.SERVING, State.PAUSED, State.REFUSED)
        self.initialised = False

    def _require_initialised(self, call: str) -> None:
        if not self.initialised:
            raise OutOfOrder(f"{call} before init_weight_transfer_engine; call that first")

    def _require_growth(self, version: str) -> None:
        if self.version != UNVERSIONED and int(version) < int(self.version):
            raise OutOfOrder(f"weight version {version} is older than {self.version}; versions only grow")

    def _require(self, call: str, *states: State) -> None:
        if self.state not in states:
            allowed = " or ".join(states)
            raise OutOfOrder(f"{call} while {self.state}; allowed while {allowed}")
