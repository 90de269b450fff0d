"""How a version reaches an engine of `serving/`: a type of announcement for each transport of weights.

`serving/server.py` reads the body of `/update_weights` as the type of the engine's `weight_transport`; the
back end's `Weights.read` asks it for the tensors. A new transport is a subclass of `Announced` and its line
in RECEIVED; the trainer's side of it is in `weights/transports/`. Kinds of engines ask here too, so torch is
imported when tensors are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    import torch


class Announced(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One version on its way: `StagedUpdate.info` of the transport, whose keys are these fields."""

    version: str
    adapter_scale: float | None = None
    """The tensors are adapters alone, whose products are multiplied by this."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by their names in the trainer, checked; in a thread beside the steps.

        Raises ValueError with what is wrong: the version is refused, and no tensor has changed.
        """
        raise NotImplementedError


class FileUpdateInfo(Announced, forbid_unknown_fields=True, kw_only=True):
    """Where the weights of one version lie and how to recognise them."""

    path: str
    bytes: int
    checksum: str

    def tensors(self) -> dict[str, torch.Tensor]:
        from pipelinerl.engines.version_file import HostMemory, read_tensors

        try:
            # From the bytes that were checked: the file is not looked at again, so it may not change in
            # between. Their memory is let go with the tensors.
            return read_tensors(Path(self.path), self.bytes, self.checksum, HostMemory())
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error}") from None


Info = TypeVar("Info", bound=Announced)


class UpdateFields(msgspec.Struct, Generic[Info], forbid_unknown_fields=True):
    """Body of `POST /update_weights` and `/prepare_weights`."""

    update_info: Info


RECEIVED: dict[str, type[UpdateFields[Any]]] = {"file": UpdateFields[FileUpdateInfo]}
"""The body by values of `weights.transport`."""
DEFAULT = "file"
"""What an engine receives that was told nothing else."""
