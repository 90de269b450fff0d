"""The tiny model of the trainer's tests."""

from tests.unit.finetune.conftest import model, one_thread

__all__ = ["model", "one_thread"]
