"""The fixtures of the trainer's tests."""

from tests.unit.finetune.conftest import model, one_thread  # noqa: F401
