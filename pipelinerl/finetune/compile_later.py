"""Compiling the decoder layers between two steps: what `finetune.compile=auto` means to the trainer.

The loop asks after each step. The launcher could only guess how long a run takes, because nobody knows the
length of samples that were not drawn yet; after two steps the trainer has measured it, and a short run has
lost nothing.
"""

import logging

from pipelinerl.config import Config
from pipelinerl.config.finetune import COMPILE_WORTH_S
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.activations import bare_layers, checkpoint_layers, compile_layers

log = logging.getLogger(__name__)
MEASURED_STEP = 2
"""The first step that tells: in the one before, kernels are loaded and memory is first allocated."""


class LaterCompilation:
    """Compiles the layers of a policy once, if it is worth it."""

    def __init__(self, learner: Learner, cfg: Config) -> None:
        self._learner, self._derived = learner, cfg.derived
        self._reentrant = cfg.finetune.reentrant_checkpointing
        self._waits = cfg.derived.compile == "later"
        self._steps = 0

    def after_step(self, worked_s: float, steps_left: int, batch: PipelineBatchEncoding) -> None:
        """Compile if `steps_left` more steps of `worked_s` seconds of work are enough.

        Collective if the policy is sharded: `worked_s` must be the same on every rank, `batch` is the rank's
        own. It is put through the compiled layers once, without effect on the weights; if that fails, the run
        goes on as before and says so.
        """
        self._steps += 1
        work_s = worked_s * steps_left
        if not self._waits or self._steps < MEASURED_STEP or work_s < COMPILE_WORTH_S:
            return
        self._waits = False
        log.info("compiling: the %d steps left would take %.0f s of work without", steps_left, work_s)
        model = self._learner.model
        bare_layers(model)
        checkpoint_layers(model, self._derived.compiled_checkpointing, self._reentrant)
        compile_layers(model)
        failed = self._try(batch)
        if any(self._learner.ranks.gather(failed is not None)):
            bare_layers(model)
            checkpoint_layers(model, self._derived.gradient_checkpointing, self._reentrant)
            log.warning("the layers stay uncompiled: %s", failed or "another rank could not compile them")

    def _try(self, batch: PipelineBatchEncoding) -> str | None:
        """Forward and backward of one micro-batch; the first line of what went wrong."""
        try:
            self._learner.take_part(batch)
        except Exception as error:  # of dynamo, inductor, triton or a C compiler that is not there
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        finally:
            self._learner.optimiser.zero_grad(set_to_none=True)
        return None
