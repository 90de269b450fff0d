"""math-verify is an extra (`pip install 'pipelinerl[math]'`); without it nothing here can run."""

from importlib.util import find_spec

from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches

collect_ignore_glob = [] if find_spec("math_verify") else ["test_*.py"]
