"""New weights for an engine: read and checked in a thread of the caller's, switched to between two steps.

`prepare` does the slow part while tokens are still sampled and keeps the result; `update`, which belongs in a
pause, then only switches. Without a `prepare`, or with another file, `update` does both. One version at most
is kept; a failure, a newer `prepare` and a change of the transport drop it. How weights are read and switched
is the back end's (`Weights`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipelinerl.base import faults
from pipelinerl.engines.received import Announced
from pipelinerl.engines.serving.backend import Weights, WeightsUnfit
from pipelinerl.engines.serving.update_state import OutOfOrder, State, UpdateState
from pipelinerl.engines.wire import lacks_memory

# Longest wait for another read of weights to end.
READ_DEADLINE_S = 60.0

# Runs a function in the engine thread between two steps; waits for its result.
BetweenSteps = Callable[[Callable[[], Any]], Any]


class WeightUpdates:
    """`prepare` and `update` block, for a thread of the caller's; the rest is for the engine thread."""

    def __init__(
        self,
        weights: Weights,
        state: UpdateState,
        between_steps: BetweenSteps,
        on_switch: Callable[[], None],
    ) -> None:
        """`on_switch` is called in the engine thread when other weights are in force."""
        self._on_switch = on_switch
        self.loader = weights
        self._state = state
        self._between_steps = between_steps
        self._reading = threading.Lock()
        # What was announced, and what the back end read of it.
        self._prepared: tuple[Announced, Any] | None = None

    def prepare(self, info: Announced) -> None:
        """Read and check the announced weights, and keep them for `update`.

        Raises OutOfOrder, WeightsRefused or WeightsUnfit; nothing is kept then.
        """
        with self._alone():
            self._prepared = None
            # Before the read: a call out of order is refused without touching the file.
            self._between_steps(lambda: self._state.preparing(info.version))
            with self._memory():
                faults.hit("engine:mid_prepare")
                self._prepared = info, self.loader.read(info)
            # An update that did not wait for the read, or the end of the transport, makes it useless. This
            # only looks at the state, from this thread: between two steps it would answer when a step begins,
            # and the pause that follows would have to wait for all of it.
            try:
                self._state.preparing(info.version)
            except OutOfOrder:
                self._prepared = None
                raise

    def update(self, info: Announced) -> None:
        """Put the announced weights in the place of those in use.

        Raises OutOfOrder, WeightsRefused or WeightsUnfit when nothing was changed.
        """
        # From here on another update, a pause and a resume are out of order, until the read has ended.
        self._between_steps(lambda: self._state.loading(info.version))
        try:
            with self._memory():
                faults.hit("engine:mid_update")
                version = self._take(info)
        # Whatever hindered the read, nothing has changed. An engine that stayed in LOADING could be neither
        # resumed nor updated again.
        except BaseException:
            self._between_steps(lambda: self._state.loaded(State.REFUSED))
            raise
        self._between_steps(lambda: self._switch(version))

    def init(self) -> None:
        """A publisher agrees on the transport; what an earlier one had prepared is dropped."""
        self._state.init()
        self._prepared = None

    def leave(self) -> None:
        """The transport is given up."""
        self._state.leave()
        self._prepared = None

    @property
    def prepared_version(self) -> str | None:
        """The version that waits for its update, if any."""
        return None if self._prepared is None else self._prepared[0].version

    def _take(self, info: Announced) -> Any:
        """What was prepared if it is this very file, else what is read now."""
        with self._alone():
            prepared, self._prepared = self._prepared, None
            # All of the announcement is compared: another file of the same version holds other weights.
            if prepared is not None and prepared[0] == info:
                return prepared[1]
            del prepared  # its memory is needed for the read
            return self.loader.read(info)

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """A version lies beside the weights in use; WeightsUnfit where this host has no room for it."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            size = self.loader.bytes / 2**30
            raise WeightsUnfit(
                f"the host has no memory for a second copy of the weights ({size:.2g} GiB, while it is read "
                "twice that); lower engine.count or engine.max_num_seqs, or choose a smaller model_path"
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One read at a time, so that there is memory of one version beside the weights in use."""
        if not self._reading.acquire(timeout=READ_DEADLINE_S):
            raise TimeoutError(f"another read of weights did not end within {READ_DEADLINE_S:g} s")
        try:
            yield
        finally:
            self._reading.release()

    def _switch(self, version: Any) -> None:
        try:
            self.loader.switch(version)
        # Some tensors may be new and others old. Nothing may be sampled from such a mixture.
        except BaseException:
            self._state.loaded(State.BROKEN)
            raise
        self._on_switch()
        self._state.loaded(State.LOADED)
