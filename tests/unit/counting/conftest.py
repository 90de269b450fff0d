"""Launches that start nothing."""

from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches
