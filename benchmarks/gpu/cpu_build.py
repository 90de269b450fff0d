"""What a CPU build of vLLM lacks for its own command, which starts several HTTP processes."""

from __future__ import annotations

from pathlib import Path


def named_vllm(folder: Path, version: str) -> None:
    """Make a folder for PYTHONPATH name a package `vllm`: that of a CPU build has another name.

    The command asks for its version, and finds the CPU by the `cpu` in it.
    """
    about = folder / "vllm.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
