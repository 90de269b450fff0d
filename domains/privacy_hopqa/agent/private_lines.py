"""Files of JSON lines that only their owner may read, for what must stay on the machine.

The log of outbound queries, sampled traces and the replies kept by the leakage evaluation are written here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelinerl.base.line_file import LineFile


class PrivateLines:
    """Appends to one file, which is made with its folder on the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: LineFile | None = None

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line, whole or not at all for other readers. Raises OSError that names the file."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(mode=0o600)  # before LineFile, whose new files others may read
            self._file = LineFile(self.path)
        # A model may write half a surrogate pair; it is replaced, so that one query cannot fail a rollout.
        self._file.append(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace"))

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
