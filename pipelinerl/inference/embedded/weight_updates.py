"""New weights for an engine: read and checked in a thread of the caller's, switched to between two steps.

`prepare` does the slow part while tokens are still sampled and keeps the result; `update`, which belongs in a
pause, then only switches. Without a `prepare`, or with another file, `update` does both. One version at most
is kept; a failure, a newer `prepare` and a change of the transport drop it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipelinerl.base import faults
from pipelinerl.inference.embedded.protocol import FileUpdateInfo
from pipelinerl.inference.embedded.update_state import OutOfOrder, State, UpdateState
from pipelinerl.inference.embedded.weight_loader import PreparedWeights, WeightLoader

# Longest wait for another read of weights to end.
READ_DEADLINE_S = 60.0

# Runs a function in the engine thread between two steps; waits for its result.
BetweenSteps = Callable[[Callable[[], Any]], Any]


class WeightUpdates:
    """`prepare` and `update` block, for a thread of the caller's; the rest is for the engine thread."""

    def __init__(self, module: torch.nn.Module, state: UpdateState, between_steps: BetweenSteps) -> None:
        self._loader = WeightLoader(module)
        self._state = state
        self._between_steps = between_steps
        self._reading = threading.Lock()
        self._prepared: PreparedWeights | None = None

    def prepare(self, info: FileUpdateInfo) -> None:
        """Read and check the announced weights, and keep them for `update`.

        Raises OutOfOrder, or WeightsRefused; nothing is kept then.
        """
        with self._alone():
            self._prepared = None
            # Before the read: a call out of order is refused without touching the file.
            self._between_steps(lambda: self._state.preparing(info.version))
            faults.hit("engine:mid_prepare")
            self._prepared = self._loader.read(info)
            # An update that did not wait for the read, or the end of the transport, makes it useless. This
            # only looks at the state, from this thread: between two steps it would answer when a step begins,
            # and the pause that follows would have to wait for all of it.
            try:
                self._state.preparing(info.version)
            except OutOfOrder:
                self._prepared = None
                raise

    def update(self, info: FileUpdateInfo) -> None:
        """Put the announced weights in the place of those in use.

        Raises OutOfOrder, or WeightsRefused when nothing was changed.
        """
        # From here on another update, a pause and a resume are out of order, until the read has ended.
        self._between_steps(lambda: self._state.loading(info.version))
        faults.hit("engine:mid_update")
        try:
            weights = self._take(info)
        # Whatever hindered the read, nothing has changed. An engine that stayed in LOADING could be neither
        # resumed nor updated again.
        except BaseException:
            self._between_steps(lambda: self._state.loaded(State.REFUSED))
            raise
        self._between_steps(lambda: self._switch(weights))

    def init(self) -> None:
        """A publisher agrees on the transport; what an earlier one had prepared is dropped."""
        self._state.init()
        self._prepared = None

    def leave(self) -> None:
        """The transport is given up."""
        self._state.leave()
        self._prepared = None

    def checksums(self) -> dict[str, str]:
        """Checksum of every parameter in use, by name."""
        return self._loader.checksums()

    @property
    def prepared_version(self) -> str | None:
        """The version that waits for its update, if any."""
        return None if self._prepared is None else self._prepared.info.version

    def _take(self, info: FileUpdateInfo) -> PreparedWeights:
        """What was prepared if it is this very file, else what is read now."""
        with self._alone():
            prepared, self._prepared = self._prepared, None
            # All of the announcement is compared: another file of the same version holds other weights.
            if prepared is not None and prepared.info == info:
                return prepared
            del prepared  # its memory is needed for the read
            return self._loader.read(info)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One read at a time, so that there is memory of one version beside the weights in use."""
        if not self._reading.acquire(timeout=READ_DEADLINE_S):
            raise TimeoutError(f"another read of weights did not end within {READ_DEADLINE_S:g} s")
        try:
            yield
        finally:
            self._reading.release()

    def _switch(self, weights: PreparedWeights) -> None:
        try:
            self._loader.switch(weights)
        # Some tensors may be new and others old. Nothing may be sampled from such a mixture.
        except BaseException:
            self._state.loaded(State.BROKEN)
            raise
        self._state.loaded(State.LOADED)
