"""Synthetic enterprise worlds: private documents, a public web, and chains of questions over both.

    python -m domains.privacy_hopqa.world --size small --seed 0 --out DIR

`generate` writes a checked world to disk; `build` makes one in memory, without checks in milliseconds.
"""

from .build import build
from .config import WorldConfig, WorldError, world_config
from .model import World
from .words import keyword_query
from .write import generate

__all__ = ["World", "WorldConfig", "WorldError", "build", "generate", "keyword_query", "world_config"]
