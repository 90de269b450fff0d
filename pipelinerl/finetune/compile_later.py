"""When kernels are made: before the first step, beside the engines' start, or between two steps.

Layers that are compiled from the start, and Triton's kernels of layers with a state, are made by one
micro-batch without effect while engines load. `finetune.compile=auto` compiles later: the loop asks after
each step. The launcher could only guess how long a run takes, because nobody knows the length of samples that
were not drawn yet; after two steps the trainer has measured it, and a short run has lost nothing.
"""

import logging

from pipelinerl.base.waits import Wait
from pipelinerl.config import Config
from pipelinerl.config.finetune import COMPILE_WORTH_S
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, sentinel_batch
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.activations import bare_layers, checkpoint_layers, compile_layers
from pipelinerl.modeling.branches import SHORTEST
from pipelinerl.modeling.compiling import USUAL_S
from pipelinerl.modeling.delta_net import delta_nets

log = logging.getLogger(__name__)
KERNELS = "minutes, once, while the engines start"
"""How long that wait may well last."""
MEASURED_STEP = 2
"""The first step that tells: in the one before, kernels are loaded and memory is first allocated."""


def makes_kernels(learner: Learner, cfg: Config) -> bool:
    """Whether the first micro-batch would make kernels for minutes, and can be tried beforehand."""
    slow = cfg.derived.compile is True or bool(delta_nets(learner.model))
    return slow and learner.device.type == "cuda" and learner.ranks.row is None


def warm_up(learner: Learner, cfg: Config) -> None:
    """Put one full row through the policy, without effect on the weights; collective if it is sharded.

    If rows share prefixes, layers with a state get a second row, in which branches have branches.

    Kernels of Qwen3.5-4B's shape took 81 s on a host with an H200 and 32 cores, less than its engine's start.
    What fails here (a row longer than any that comes may lack memory) is said; the first step tries again.
    """
    shares = cfg.finetune.shares_prefixes
    rows = [sentinel_batch(0, 1, shares, cfg.finetune.seq_length)]
    if shares and delta_nets(learner.model):
        rows.append(sentinel_batch(0, 1, shares, 3 * SHORTEST, (0, 2 * SHORTEST, SHORTEST)))
    with Wait("the kernels of its first micro-batch", USUAL_S, normal=KERNELS) as wait:
        failed = next((why for row in rows if (why := _try(learner, row)) is not None), None)
    if failed is not None:
        log.warning("no kernels were made before the first step: %s", failed)
    else:
        log.info("the kernels of the first micro-batch took %.1f s", wait.elapsed_s)


def _try(learner: Learner, batch: PipelineBatchEncoding) -> str | None:
    """Forward and backward of one micro-batch; the first line of what went wrong."""
    try:
        learner.take_part(batch)
    except Exception as error:  # of dynamo, inductor, triton or a C compiler that is not there
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        learner.optimiser.zero_grad(set_to_none=True)
    return None


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
        failed = _try(self._learner, batch)
        if any(self._learner.ranks.gather(failed is not None)):
            bare_layers(model)
            checkpoint_layers(model, self._derived.gradient_checkpointing, self._reentrant)
            log.warning("the layers stay uncompiled: %s", failed or "another rank could not compile them")
