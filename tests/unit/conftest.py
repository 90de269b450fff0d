"""What all unit tests share."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from omegaconf import DictConfig

from pipelinerl.config import compose as compose_module
from pipelinerl.config.installed import conf_dir

# A property is tried with the same examples each time, however long one takes: what a run says depends on the
# code, not on chance or on what else the machine does.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


@pytest.fixture(scope="session", autouse=True)
def _compositions_are_remembered() -> Iterator[None]:
    """hydra's part of a composition, a tenth of a second, is done once for each choice of bundled files."""
    from_files, bundled, known = compose_module._compose, [conf_dir()], dict[str, DictConfig]()

    def remembered(roots: Sequence[Path], config_name: str, overrides: list[str]) -> DictConfig:
        if list(roots) != bundled:
            return from_files(roots, config_name, overrides)
        key = " ".join([config_name, *overrides])
        if key not in known:
            known[key] = from_files(roots, config_name, overrides)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose_module, "_compose", remembered)
        yield
