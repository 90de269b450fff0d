"""What the core is told about the domain: settings and checks before a run; named by `domain_hooks`."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.verifiers.environments import EnvironmentRefused, configured, has_tools, taskset_of
from domains.verifiers.settings import KEY, VerifiersSettings, settings_of
from pipelinerl.domain import BaseDomain, ReportFocus

LOADER = "verifiers.load_problems"


class VerifiersDomain(BaseDomain):
    """Checks before the start; everything else is the rollout's."""

    settings = VerifiersSettings
    settings_key = KEY
    policy_keys = ()
    report_focus = ReportFocus(headline=("success", "reward", "truncated", "no_answer"))

    def validate(self, cfg: DictConfig) -> list[str]:
        """The package and the taskset are there, settings fit, tools have a renderer, tasks an end."""
        if not str(cfg.dataset_loader).endswith(LOADER):
            return []
        given: Any = OmegaConf.to_container(cfg.dataset_loader_params, resolve=True)
        try:
            for block in filter(None, (given.get("env") or {}, given.get("test_env"))):
                if has_tools(configured(block)) and settings_of(cfg).renderer is None:
                    return [
                        f"verifiers.renderer is null and {block['taskset']['id']} has tools: a chat template "
                        "does not say how calls are read; name your model's renderer, such as qwen3"
                    ]
            if given.get("count") is None and "train" in (cfg.train_dataset_names or ()):
                taskset_of(configured(given.get("env") or {}), None)
        except EnvironmentRefused as error:
            return [str(error)]
        return []
