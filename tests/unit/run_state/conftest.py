"""Announcements travel over streams, so they are tried on every backend."""

from tests.unit.streams.conftest import choose, redis_port, spec  # noqa: F401
