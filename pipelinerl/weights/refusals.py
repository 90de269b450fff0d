"""Which failures of an update another process of the engine would repeat, and what to do about those.

`version_update` and `publisher` make a `Failure` of whatever a step ended with. The trainer
(`pipelinerl/finetune/broadcast.py`) ends the run for a permanent one, and has the engine replaced for any
other. Permanent is what says so itself (`wire.PermanentUpdateError`), a call that the engine does not offer,
and what stock vLLM says of memory, names, shapes and back-ends. An engine that gave no answer is restarted.
"""

import json
import re
from collections.abc import Sequence

from pipelinerl.base.http import CallFailed
from pipelinerl.engines.wire import PermanentUpdateError, permanent_words

NOT_OFFERED = (401, 403, 404, 405, 422, 501)
"""Statuses of an answer about the call itself, whatever the weights are."""
MEMORY = "lower vllm_config.vllm_kwargs.gpu-memory-utilization"
SAME_MODEL = (
    "engine and trainer have to be given one model (model_path), of an architecture that this vLLM loads by "
    "its checkpoint's names"
)
OWN_COMMAND = "start the engine by its start.sh, with a release of vLLM that docs/gpu.md names"
STOCK: Sequence[tuple[str, str]] = (
    (r"CUDA out of memory(\. Tried to allocate [\d.]+ \w+)?|CUDA error: out of memory", MEMORY),
    (r"There is no module or parameter named \S+ in \w+", SAME_MODEL),
    # What is left of a KeyError when vLLM has made it text: a tensor's name in quotes.
    (
        r"(?<=failed: )'[\w.]+\.\w+'$|(?<=error ')'[\w.]+\.\w+'(?=')",
        f"the model has no such tensor; {SAME_MODEL}",
    ),
    (r"Attempted to load weight \(.*?\) into parameter \(.*?\)\)", SAME_MODEL),
    (r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)", SAME_MODEL),
    (r"start \(\d+\) \+ length \(\d+\) exceeds dimension size \(\d+\)", SAME_MODEL),
    (r"shape '[^']*' is invalid for input of size \d+", SAME_MODEL),
    (r"module 'torch' has no attribute '\w+'", "set vllm_config.vllm_kwargs.dtype to bfloat16 or float32"),
    (r"Invalid weight transfer backend: \w+", OWN_COMMAND),
    (r"Weight transfer not configured", OWN_COMMAND),
    (r"Invalid (init|update)_info for \w+: .*", OWN_COMMAND),
    (r"NCCL error: invalid usage", "NCCL needs a GPU for each rank; set weights.transport=file"),
    (
        r"libnccl\S* cannot open shared object file",
        "install NCCL where the engine runs, or set weights.transport=file",
    ),
)
"""What vLLM says, as a pattern, and the remedy. Read in 0.26.0 and 0.33.0: `default_weight_loader`,
`AutoWeightsLoader`, `WeightTransferEngineFactory`, `parse_init_info`, `GPUWorker`, `pynccl_wrapper`, torch.
An assertion without a word arrives as an empty text: only its repetition tells (`same_words`)."""
DEAD = re.compile(r"EngineDeadError|EngineCore encountered|Executor failed|Server shutting down")
"""An answer of an HTTP server whose engine is gone."""


class Failure:
    """What one step of one participant ended with; `engine` is its URL, or `the trainer`."""

    def __init__(self, engine: str, step: str, cause: BaseException | str, *, answered: bool = False) -> None:
        """`answered`: an engine that runs has refused, in whatever way it said so."""
        self.engine, self.step = engine, step
        for_good = _for_good(cause)
        self.permanent = for_good is not None
        self.words: str = str(cause) if for_good is None else for_good
        answered = answered or (isinstance(cause, CallFailed) and cause.status is not None)
        self.refused = answered and DEAD.search(self.words) is None
        """Whether a running engine has refused; otherwise it was lost, or did not answer in time."""


def _for_good(cause: BaseException | str) -> str | None:
    """What is permanent in a cause, with the remedy; None where a restart may mend it."""
    if isinstance(cause, PermanentUpdateError):
        return cause.words
    if isinstance(cause, ImportError):  # the trainer's own, of vLLM
        return str(cause)
    text = _message(cause.body if isinstance(cause, CallFailed) else str(cause))
    if (marked := permanent_words(text)) is not None:
        return marked
    for pattern, remedy in STOCK:
        if found := re.search(pattern, text):
            return f"{found[0]}; {remedy}"
    if isinstance(cause, CallFailed) and cause.status in NOT_OFFERED:
        return f"{cause}; {OWN_COMMAND}"
    return None


def _message(body: str) -> str:
    """The text in an error of vLLM's or the embedded engine's; any other body, or half of one, as it is."""
    try:
        said = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        return body
    return str(said.get("message", said)) if isinstance(said, dict) else str(said)


def same_words(one: str, other: str) -> bool:
    """Whether two refusals say the same, whatever numbers are in them."""
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(text: str) -> str:
    return re.sub(r"[0-9a-f]*\d[0-9a-f.]*", "#", text)
