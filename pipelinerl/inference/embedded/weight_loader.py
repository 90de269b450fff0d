"""Reading a weight file, checking all of it, and copying it over the weights in use, for `weight_updates`."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from xxhash import xxh3_64_hexdigest

from pipelinerl.inference.embedded.protocol import FileUpdateInfo
from pipelinerl.weights.wire import read_checked


class WeightsRefused(ValueError):
    """The file is not what was announced or does not fit the model; no tensor has changed."""


@dataclass(frozen=True, slots=True)
class PreparedWeights:
    """One version, checked, in memory of its own and laid out as the model's storages are."""

    info: FileUpdateInfo
    storages: list[torch.Tensor]
    """uint8, in the order of the loader's own."""


class WeightLoader:
    """Knows the distinct parameters of a model; a tied head is one parameter and is sent once.

    Parameters may be views of storages that they share in any layout. A version is therefore laid out in
    copies of the storages as it is read, so that the switch copies whole storages, at the speed of memory.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """Afterwards no parameter may move to another storage."""
        self._module = module
        # named_parameters names each distinct tensor once, under its first name.
        self._parameters = dict(module.named_parameters())
        storages = {one.untyped_storage().data_ptr(): one for one in self._parameters.values()}
        self._places = {address: index for index, address in enumerate(storages)}
        self._storages = [_bytes(one) for one in storages.values()]

    def read(self, info: FileUpdateInfo) -> PreparedWeights:
        """All weights of the file, checked against size, checksum, names, shapes and dtypes.

        Raises WeightsRefused with the first mismatch.
        """
        path = Path(info.path)
        try:
            # From the bytes that were checked: the file is not looked at again, so it may not change in
            # between.
            tensors = load_safetensors(read_checked(path, info.bytes, info.checksum))
        except OSError as error:
            raise WeightsRefused(f"{path} cannot be read: {error}") from None
        except SafetensorError as error:
            raise WeightsRefused(f"{path} is not a safetensors file: {error}") from None
        except ValueError as error:
            raise WeightsRefused(str(error)) from None
        self._check(tensors)
        return PreparedWeights(info, self._lay_out(tensors))

    @torch.no_grad()
    def switch(self, weights: PreparedWeights) -> None:
        """Overwrite every parameter in place and restore ties; call between two steps only."""
        for mine, new in zip(self._storages, weights.storages, strict=True):
            mine.copy_(new)
        # In-place copies keep ties; this repairs a model whose head is a copy that should be tied.
        self._module.tie_weights()

    def checksums(self) -> dict[str, str]:
        """XXH3 of the bytes of every distinct parameter, by name; call between two steps only."""
        return {
            name: f"xxh3:{xxh3_64_hexdigest(one.detach().contiguous().view(-1).view(torch.uint8).numpy())}"
            for name, one in self._parameters.items()
        }

    def _check(self, tensors: dict[str, torch.Tensor]) -> None:
        missing = sorted(self._parameters.keys() - tensors.keys())
        extra = sorted(tensors.keys() - self._parameters.keys())
        if missing or extra:
            raise WeightsRefused(
                f"names differ from the model's: missing {_some(missing)}, not in the model {_some(extra)}"
            )
        for name, parameter in self._parameters.items():
            tensor = tensors[name]
            if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                raise WeightsRefused(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, "
                    f"the model has {parameter.dtype} {tuple(parameter.shape)}"
                )

    @torch.no_grad()
    def _lay_out(self, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the storages with `tensors`, which are used up, in the places of the parameters."""
        copies = [one.clone() for one in self._storages]
        for name, parameter in self._parameters.items():
            place = copies[self._places[parameter.untyped_storage().data_ptr()]]
            view = torch.empty(0, dtype=parameter.dtype).set_(
                place.untyped_storage(), parameter.storage_offset(), parameter.shape, parameter.stride()
            )
            # Popped, so that memory falls with each tensor that has its copy.
            view.copy_(tensors.pop(name))
        return copies


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """uint8: all of the storage that `tensor` lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _some(names: list[str]) -> str:
    return (
        "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    )
