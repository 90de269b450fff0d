"""Putting the trainer's weights into the engines, and comparing what both make of them.

The loop of the main rank calls `publish` after every update, and `refresh` while it waits for samples. The
loop knows `Broadcaster` alone: a run without engines has one that does nothing. `Publisher` does one attempt;
here failed attempts are repeated until a deadline, and engines are replaced in between.

Where the transport copies (files that vLLM reads ahead), an update goes on beside the trainer's next step.
The next update waits for it. One that fails there is done again in the trainer's time, by then maybe with
newer weights.
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from pathlib import Path

import numpy as np
import torch

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.threads import in_thread
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
from pipelinerl.weights.transports.base import Held, transport_kind
from pipelinerl.weights.version_update import UpdateReport, WeightUpdateError

log = logging.getLogger(__name__)
Announce = Callable[[int], None]
RETRY_INTERVAL_S = 1.0
CLOSE_S = 5.0
PARITY_REQUEST = "check_parity"
"""A file of this name in the trainer's folder asks for a comparison after the next update."""
FIRST_UPDATES = 2
"""Compared one by one: engines may put a second version into place in another way than the first."""


class Broadcaster:
    """Makes a version of the weights the one that is sampled from; this one is for runs without engines."""

    def start(self) -> None:
        """Block until the engines are ready."""

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        """Have every engine in rotation serve `version`, and then call `announce` with it.

        Returns metrics, those of engines of the last update that has ended: this one, or, where this one goes
        on in a thread, which calls `announce`, the one before. The learner's weights may change then.
        """
        announce(version)
        return {}

    def refresh(self) -> bool:
        """Bring engines without the last published version up to it; whether it has to be announced again.

        The learner's weights are still that version's.
        """
        return False

    def end(self) -> bool:
        """Wait for the update under way, if there is one; otherwise like `refresh` after one that failed."""
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

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        """Compare at version 0; a later one has been trained away from what the engines have."""
        if version == 0:
            self._compare()
        return super().publish(version, announce)

    def _compare(self) -> None:
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
        # The update in a thread, and the version of one that ended and was not announced.
        self._beside: tuple[int, Future[UpdateReport]] | None = None
        self._owed: int | None = None
        self._metrics: dict[str, float] = {}

    def start(self) -> None:
        with Wait("the engines to be ready", self._deadline_s, normal=ENGINES_READY):
            try:
                self._publisher.wait_ready(self._deadline_s)
            except WeightUpdateError as error:
                if error.step != RENDEZVOUS:
                    raise
                self._repair(error)  # the first update makes it anew

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        """An engine that fails is replaced by the supervisor; until the deadline the others are tried.

        WeightUpdateError at once for what no replacement mends.
        """
        started = time.monotonic()
        self._wait_for_update()
        self._owed = None  # this one takes its place
        # Who takes turns with the engines would only wait for them elsewhere.
        if self._publisher.copies and not self._cfg.staleness.synchronous and not self._compares_next():
            held = self._publisher.hold(self._weights())
            self._beside = version, in_thread(self._publish_held, version, held, announce)
        else:
            self._publish(version)
            announce(version)
        found, self._metrics = self._metrics, {}
        return found | {"weights/held_s": time.monotonic() - started}

    def _publish_held(self, version: int, held: Held, announce: Announce) -> UpdateReport:
        """In a thread, so without the learner."""
        report = self._publisher.publish_held(version, held)
        if not report.joined:  # one that joined is compared first
            announce(version)
        return report

    def _wait_for_update(self) -> None:
        """Until the one in the thread has ended; one that failed, or whom an engine joined, is owed."""
        if self._beside is None:
            return
        (version, update), self._beside = self._beside, None
        with self._wait(version) as wait:
            wait_futures([update], wait.remaining_s)
            if not update.done():
                wait.check()
        try:
            report = update.result()
            self._taken(report)
            owed = bool(report.joined)
        except WeightUpdateError as error:
            self._repair(error)
            owed = True
        if owed:
            self._owed, self._unchecked = version, FIRST_UPDATES

    def _wait(self, version: int) -> Wait:
        name = f"the engines to take version {version}"
        return Wait(name, self._deadline_s, normal="seconds; minutes while an engine is replaced")

    def _publish(self, version: int) -> None:
        """Until it succeeds, in the trainer's time."""
        with self._wait(version) as wait:
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
        self._taken(report)
        self._metrics |= parity

    def _taken(self, report: UpdateReport) -> None:
        # An engine that took this version is well again; what it refused before tells nothing any more.
        self._refused = {key: said for key, said in self._refused.items() if key[0] not in report.paused_s}
        self._updates += 1
        self._metrics = _report_metrics(report)

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
        if self._beside is not None and not self._beside[1].done():
            return False
        if self.end():
            return True
        version, stale = self._publisher.version, self._publisher.stale_engines()
        if version is None or not stale:
            return False
        log.warning("engines without version %s: %s", version, ", ".join(stale))
        self._unchecked = FIRST_UPDATES
        self._publish(version)
        return True

    def end(self) -> bool:
        self._wait_for_update()
        if self._owed is None:
            return False
        version, self._owed = self._owed, None
        self._publish(version)
        return True

    def close(self) -> None:
        if self._beside is not None:
            wait_futures([self._beside[1]], CLOSE_S)  # what it still writes would be left
        self._publisher.close()

    def _compares_next(self) -> bool:
        """After the first updates since a start of either side, every so often, and when asked for."""
        every, asked = self._cfg.weights.parity_every, self._output_dir / "finetune" / PARITY_REQUEST
        return bool(self._unchecked or (every and self._updates % every == 0) or asked.exists())

    def _parity(self) -> dict[str, float]:
        if not self._compares_next():
            return {}
        # Before the comparison: one that fails is not repeated for ever.
        (self._output_dir / "finetune" / PARITY_REQUEST).unlink(missing_ok=True)
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
