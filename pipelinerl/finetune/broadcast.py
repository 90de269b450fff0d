"""Putting the trainer's weights into the engines, and comparing what both make of them.

The loop of the main rank calls `publish` after every update, and `refresh` while it waits for samples. The
loop knows `Broadcaster` alone: a run without engines has one that does nothing. `Publisher` does one attempt;
here failed attempts are repeated until a deadline, and engines are replaced in between.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.waits import ENGINES_READY, Wait
from pipelinerl.config import Config
from pipelinerl.engines.kind import eight_bits, engine_kind
from pipelinerl.finetune.rl.losses import declared
from pipelinerl.finetune.step import Learner
from pipelinerl.run_state.lost_engines import LostEngines
from pipelinerl.run_state.replacements import ask_for_replacement
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.parity import ParityLimits, check_loaded, check_parity, mean_limit
from pipelinerl.weights.publisher import RENDEZVOUS, Publisher, prompt_logprobs
from pipelinerl.weights.refusals import Failure, same_words
from pipelinerl.weights.transports.base import transport_kind
from pipelinerl.weights.version_update import UpdateReport, WeightUpdateError

log = logging.getLogger(__name__)
RETRY_INTERVAL_S = 1.0
PARITY_REQUEST = "check_parity"
"""A file of this name in the trainer's folder asks for a comparison after the next update."""
FIRST_UPDATES = 2
"""Compared one by one: engines may put a second version into place in another way than the first."""


class Broadcaster:
    """Makes a version of the weights the one that is sampled from; this one is for runs without engines."""

    def start(self) -> None:
        """Block until the engines are ready."""

    def publish(self, version: int) -> dict[str, float]:
        """Return, with metrics, once every engine in rotation serves `version`; raises otherwise."""
        return {}

    def refresh(self) -> bool:
        """Bring engines that were started again up to the last published version; whether there were any."""
        return False

    def close(self) -> None:
        """Let the engines go."""


class UnchangedEngines(Broadcaster):
    """Engines that ran before this run and are sent nothing: they need the weights that training begins with.

    Nothing else would tell: their samples have the model's token ids, and the log-probabilities of another
    policy.
    """

    def __init__(self, learner: Learner, cfg: Config) -> None:
        self._learner, self._cfg = learner, cfg
        self._urls = [job.url for job in cfg.jobs_of("actor_llm")]

    def publish(self, version: int) -> dict[str, float]:
        """Compare at version 0; a later one has been trained away from what the engines have."""
        if version > 0:
            return {}
        learner, limits = self._learner, _limits(self._learner, self._cfg)
        ids = learner.probe_ids()
        expected, deadline_s = learner.score_rows(ids), PublishDeadlines().parity_s
        rows = [prompt_logprobs(self._urls, row, deadline_s) for row in ids]
        for url in self._urls:
            apart = np.abs(np.stack([row[url] for row in rows]).astype(np.float64) - expected)
            if not limits.hold(float(apart.max()), float(apart.mean())):
                raise ConfigError(
                    f"debug.use_existing_llms=true: engine {url} has other weights than model_path="
                    f"{self._cfg.model_path} (log-probabilities differ by {apart.mean():.2g} nats on average)"
                    " and is sent none; start an engine with this model there, or have its weights updated "
                    "(debug.mode='', finetune.send_weight_updates=true)"
                )
        return {}


class EngineBroadcaster(Broadcaster):
    """Publishes the learner's parameters through `Publisher`, and compares log-probabilities now and then."""

    def __init__(self, learner: Learner, cfg: Config) -> None:
        self._learner, self._cfg = learner, cfg
        self._output_dir, self._deadline_s = Path(str(cfg.output_dir)), cfg.engine.start_deadline_s
        transport = transport_kind(cfg).sender(cfg, learner.elements, _dtype(cfg), learner.device)
        urls = [job.url for job in cfg.jobs_of("actor_llm")]
        lost = LostEngines(self._output_dir).take
        self._publisher = Publisher(urls, transport, cfg.weights.kv, lost=lost)
        # What engines refused for which they were replaced and not updated since, by engine and step.
        self._refused: dict[tuple[str, str], str] = {}
        self._updates = 0
        self._unchecked = FIRST_UPDATES

    def start(self) -> None:
        with Wait("the engines to be ready", self._deadline_s, normal=ENGINES_READY):
            try:
                self._publisher.wait_ready(self._deadline_s)
            except WeightUpdateError as error:
                if error.step != RENDEZVOUS:
                    raise
                self._repair(error)  # the first update makes it anew

    def publish(self, version: int) -> dict[str, float]:
        """An engine that fails is replaced by the supervisor; until the deadline the others are tried.

        WeightUpdateError at once for what no replacement mends.
        """
        name = f"the engines to take version {version}"
        with Wait(name, self._deadline_s, normal="seconds; minutes while an engine is replaced") as wait:
            while True:
                try:
                    report = self._publisher.publish(version, self._weights())
                    if report.joined:  # a new process has not shown yet that it loads weights rightly
                        self._unchecked = FIRST_UPDATES
                    # Inside the attempt: an engine that has other weights than were sent has failed it.
                    parity = self._parity()
                    break
                except WeightUpdateError as error:
                    if wait.expired:
                        raise
                    self._repair(error)
                    time.sleep(RETRY_INTERVAL_S)
        # An engine that took this version is well again; what it refused before tells nothing any more.
        self._refused = {key: said for key, said in self._refused.items() if key[0] not in report.paused_s}
        self._updates += 1
        return _report_metrics(report) | parity

    def _weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The learner's, under the names of the kind of engine that receives them."""
        return engine_kind(self._cfg).names(self._learner.model.config, self._learner.weights())

    def _repair(self, error: WeightUpdateError) -> None:
        """Have broken engines replaced; raises the error, or a clearer one, where that would not help."""
        # A new process would load the same weights in the same way, and differ again.
        if error.permanent or (error.step in ("checksums", "parity") and error.broken):
            raise error
        refused = {(one.engine, one.step): one.words for one in error.failures if one.engine in error.broken}
        # One that was lost may be why another one refuses, and both may be well the next time.
        if all(one.refused for one in error.failures):
            for (engine, step), words in refused.items():
                if same_words(self._refused.get((engine, step), ""), words):
                    again = f"{words}; a new process of the engine refused it in the same words"
                    raise WeightUpdateError([Failure(engine, step, again)]) from error
            self._refused |= refused
        if error.broken:
            ask_for_replacement(self._output_dir, error.broken, str(error))
        log.warning("%s; trying again", error)

    def refresh(self) -> bool:
        version, stale = self._publisher.version, self._publisher.stale_engines()
        if version is None or not stale:
            return False
        log.warning("engines without version %s: %s", version, ", ".join(stale))
        self._unchecked = FIRST_UPDATES
        self.publish(version)
        return True

    def close(self) -> None:
        self._publisher.close()

    def _parity(self) -> dict[str, float]:
        """After the first updates since a start of either side, every so often, and when asked for."""
        every = self._cfg.weights.parity_every
        asked = self._output_dir / "finetune" / PARITY_REQUEST
        if not self._unchecked and not (every and self._updates % every == 0) and not asked.exists():
            return {}
        asked.unlink(missing_ok=True)  # before the comparison: one that fails is not repeated for ever
        learner = self._learner
        limits = _limits(learner, self._cfg)
        check_loaded(self._publisher)
        results = check_parity(self._publisher, learner.probe_ids(), learner.score_rows, limits)
        self._unchecked = max(0, self._unchecked - 1)
        worst = max(result.max_abs for result in results)
        mean = max(result.mean_abs for result in results)
        log.info(
            "parity of engine and trainer: |delta| %.2g at most, %.2g on average; %s", worst, mean, limits
        )
        limit = limits.max_abs if limits.mean_abs is None else limits.mean_abs
        found = {"weights/parity_max_abs": worst, "weights/parity_mean_abs": mean}
        return found if limit is None else found | {"weights/parity_limit": limit}


def broadcaster_of(learner: Learner, cfg: Config) -> Broadcaster:
    """The main rank's, by what the run's engines are sent."""
    if not cfg.jobs_of("actor_llm"):
        return Broadcaster()
    if cfg.updates_engines:
        return EngineBroadcaster(learner, cfg)
    compares = declared(cfg.finetune.rl.policy_loss).compares  # who imitates may imitate another model
    return UnchangedEngines(learner, cfg) if cfg.debug.use_existing_llms and compares else Broadcaster()


def _dtype(cfg: Config) -> torch.dtype:
    """Of the engines' weights."""
    return torch.bfloat16 if engine_kind(cfg).dtype(cfg) == "bfloat16" else torch.float32


def _limits(learner: Learner, cfg: Config) -> ParityLimits:
    """Only float32 on both sides is compared token by token; fewer bits round each token differently."""
    weights, same_bits = cfg.weights, not cfg.finetune.load_as_bf16 and eight_bits(cfg) is None
    if _dtype(cfg) == torch.float32 and same_bits:
        return ParityLimits(weights.parity_max_abs, None)
    return ParityLimits(None, weights.parity_mean_abs or mean_limit(learner.probe_rounding()))


def _report_metrics(report: UpdateReport) -> dict[str, float]:
    out = {f"weights/{step}_s": seconds for step, seconds in report.seconds.items()}
    out["weights/bytes"] = float(report.bytes)
    out["weights/max_paused_s"] = max(report.paused_s.values(), default=0.0)
    out["weights/lost_tokens"] = report.lost_tokens
    out["weights/excluded_engines"] = float(len(report.excluded))
    return out
