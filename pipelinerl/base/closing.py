"""What is closed at the end of a `with` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that is itself, and closes itself."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
