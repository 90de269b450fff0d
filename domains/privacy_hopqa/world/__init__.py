"""Synthetic enterprise worlds: private documents, a public web, and chains of questions over both.

    python -m domains.privacy_hopqa.world --size small --seed 0 --out DIR

`generate` writes a checked world to disk; `build` makes one in memory, without checks in milliseconds.
"""

from .build import build
from .config import WorldError, world_config
from .model import World, chains_of, world_store
from .words import keyword_query
from .write import generate

__all__ = ["World", "WorldError", "build", "chains_of", "generate", "keyword_query"]
__all__ += ["world_config", "world_store"]
