"""A server with vLLM's rules about weight updates, in the shapes of 0.26 to 0.33, without a model."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from pipelinerl.base.threads import in_thread
from pipelinerl.engines.wire import PREPARE_ROUTE
from tests.support.fake_group import FakeGroup, unpack
from tests.support.json_server import serving_json

PACKING = {"packed", "packed_buffer_size_bytes", "packed_num_buffers"}
RENDEZVOUS = {"master_address", "master_port", "rank_offset", "world_size"}
TENSORS = {"names", "dtype_names", "shapes"}
WAIT_S = 100.0


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Meeting:
    """Where the fake engines find the group that the transport under test has opened."""

    def __init__(self) -> None:
        self.groups: list[FakeGroup] = []
        self._changed = threading.Condition()

    def connect(self, rendezvous: dict[str, Any]) -> FakeGroup:
        group = FakeGroup(rendezvous)
        with self._changed:
            self.groups.append(group)
            self._changed.notify_all()
        return group

    def find(self, init_info: dict[str, Any]) -> FakeGroup:
        def found() -> FakeGroup | None:
            wanted = {key: init_info[key] for key in ("master_port", "world_size")}
            for group in reversed(self.groups):
                if wanted.items() <= group.rendezvous.items():
                    return group
            return None

        with self._changed:
            if not self._changed.wait_for(lambda: found() is not None, WAIT_S):
                raise Refused(500, "the trainer did not come to the rendezvous")
        group = found()
        assert group is not None
        return group


class FakeVllm:
    """One engine: serving, paused or updating; a call out of order is answered as vLLM does."""

    def __init__(
        self, version: str, meeting: Meeting, *, scale_out: bool = True, ahead: bool = False
    ) -> None:
        """`ahead`: started with the package's back-end that receives while the engine generates."""
        self.version, self.meeting, self.ahead = version, meeting, ahead
        number = tuple(int(part) for part in version.split(".")[:2])
        self.labels = number >= (0, 27)
        """It keeps the label of an update's finish, and says it."""
        self.packs_at_init = number >= (0, 28)
        self.reports_versions = number >= (0, 32)
        """Its answers say which label was there when a token was sampled, and name tokens by `token_id`."""
        # Without `--enable-scale-out`, which 0.30 brought; before, nobody had to ask for the token routes.
        refusals = ((0, 32), 403), ((0, 30), 404)
        self.closed = next((status for since, status in refusals if number >= since and not scale_out), 200)
        self.lacks = "" if self.labels else "/weight_info"
        self.started_at = time.time()
        self.calls: list[str] = []
        self.faults: dict[str, list[int]] = {}
        """Path to the statuses of its next answers; 0 closes the connection without one."""
        self.refuses: dict[str, str] = {}
        """Path to the error with which it answers 500, also as a new process."""
        self.hangs: set[str] = set()
        self.released = threading.Event()
        self._resumed = threading.Condition()
        self.restart()

    def restart(self) -> None:
        """A new process: nothing is left of the former one."""
        self.started_at += 1.0
        self.paused = self.updating = self.dead = False
        self.label = "default"
        self.weights: dict[str, torch.Tensor] = {}
        self.group: FakeGroup | None = None
        self.packing: dict[str, Any] = {}
        self._taken = 0
        self._received: Future[dict[str, torch.Tensor]] | None = None
        self.calls.clear()

    def answer(self, path: str, query: str, body: Any) -> Any:
        if path in ROUTES:
            self.calls.append(path)
        if path in self.hangs:
            self.released.wait(100)
        if self.faults.get(path):
            raise Refused(self.faults[path].pop(0), f"fault at {path}")
        if path in self.refuses:
            raise Refused(500, self.refuses[path])
        if self.dead:
            raise Refused(503 if path == "/health" else 500, "EngineDeadError")
        if path in ROUTES:
            return getattr(self, ROUTES[path])(query, body)
        work = READS.get(path)
        if work is None or path == self.lacks:
            raise Refused(404, "Not Found")
        return work(self, query, body)

    def health(self, query: str, body: Any) -> Any:
        return {}

    def metrics(self, query: str, body: Any) -> str:
        text = f"process_start_time_seconds {self.started_at!r}\n"
        return text + 'vllm:num_requests_running{engine="0"} 0\nvllm:generation_tokens_total{engine="0"} 1\n'

    def pause(self, query: str, body: Any) -> Any:
        assert query == "mode=keep&clear_cache=true", "keeping the cache is faster with sleep"
        self.paused = True
        return {"status": "paused"}

    def sleep(self, query: str, body: Any) -> Any:
        assert query == "level=0&mode=keep", "any other level would drop weights or cache"
        self.paused = True
        return {}

    def wake_up(self, query: str, body: Any) -> Any:
        assert query == "tags=scheduling"
        return self.resume(query, body)

    def resume(self, query: str, body: Any) -> Any:
        with self._resumed:
            self.paused = False
            self._resumed.notify_all()
        return {"status": "resumed"}

    def init(self, query: str, body: Any) -> Any:
        info = body["init_info"]
        allowed = RENDEZVOUS | (PACKING if self.packs_at_init else set())
        self._only(allowed, info, "init_info")
        self.packing = {key: info[key] for key in PACKING & info.keys()}
        self.group, self._taken = self.meeting.find(info), 0
        return {"message": "Weight transfer initialized"}

    def start(self, query: str, body: Any) -> Any:
        if not self.paused and not self.ahead:
            self.dead = True
            raise Refused(500, "the forward pass met parameters on the meta device")
        if self.updating:
            raise Refused(500, "start_weight_update called while a weight update is already active")
        self.updating = True
        return {"message": "Weight update started"}

    def update(self, query: str, body: Any) -> Any:
        info = body["update_info"]
        self._only(TENSORS | (set() if self.packs_at_init else PACKING), info, "update_info")
        if not self.updating:
            raise Refused(500, "start_weight_update must be called before update_weights.")
        if self.group is None:
            raise Refused(500, "NCCL weight transfer not initialized.")
        packing = self.packing if self.packs_at_init else {key: info[key] for key in PACKING}
        assert packing["packed"] is True
        if self.ahead:
            assert not self.paused, "it should generate while it receives"
            self._received = in_thread(self._receive, self.group, info, packing)
        else:
            self.weights = self._receive(self.group, info, packing)
        return {"message": "Weights updated"}

    def _receive(
        self, group: FakeGroup, info: dict[str, Any], packing: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        limit, end = packing["packed_buffer_size_bytes"], time.monotonic() + WAIT_S
        total = sum(torch.Size(shape).numel() for shape in info["shapes"]) * 2
        while sum(one.numel() for one in group.received[self._taken :]) < total:
            if group.destroyed.is_set() or time.monotonic() > end:
                raise Refused(500, "NCCL error: remote process exited")
            time.sleep(0.002)
        received = group.received[self._taken :]
        self._taken += len(received)
        return unpack(received, info, limit)[0]

    def finish(self, query: str, body: Any) -> Any:
        if not self.updating:
            raise Refused(500, "finish_weight_update called without a matching start_weight_update.")
        if self.ahead:
            assert self.paused, "weights change in a paused engine only"
            assert self._received is not None
            self.weights = self._received.result(WAIT_S)
        self.updating = False
        if self.labels:
            self.label = body["weight_version"]
        return {"message": "Weight update finished"}

    def generate(self, query: str, body: Any) -> Any:
        """Two tokens: one under the label at the start, one under the label when generation goes on."""
        if self.closed == 403:
            message = (
                "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            )
            raise Refused(403, message)
        if self.closed == 404:
            raise Refused(404, "Not Found")
        first = self.label
        with self._resumed:
            if not self._resumed.wait_for(lambda: not self.paused, WAIT_S):
                raise Refused(500, "paused for ever")
        logprob = float(self.weights["w"][0]) if self.weights else -1.0
        ids = [11, 12]
        entries: list[dict[str, Any]] = [
            {"token_id": one, "logprob": logprob}
            if self.reports_versions
            else {"token": f"token_id:{one}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for one in ids
        ]
        choice: dict[str, Any] = {"index": 0, "token_ids": ids, "finish_reason": "length"}
        choice["logprobs"] = {"content": entries}
        if self.reports_versions:
            spans = [first] if first == self.label else [first, self.label]
            choice["weight_versions"] = [
                {"version": label, "start": at, "end": at + 1 if len(spans) == 2 else 2}
                for at, label in enumerate(spans)
            ]
        scored = None
        if body["sampling_params"].get("prompt_logprobs") is not None:
            scored = [None, *({str(one): {"logprob": logprob}} for one in body["token_ids"][1:])]
        return {"choices": [choice], "prompt_logprobs": scored}

    @staticmethod
    def _only(allowed: set[str], info: dict[str, Any], name: str) -> None:
        for key in info.keys() - allowed:
            raise Refused(500, f"Invalid {name}: unexpected keyword argument {key!r}")


class FakeEmbedded(FakeVllm):
    """The same rules without vLLM's own routes: weights in files, which are not read here."""

    def __init__(self) -> None:
        super().__init__("0.33.0", Meeting())
        self.lacks = "/version"
        self.logprob = -1.0
        self.offers: list[str] = []
        """Optional routes."""

    def pause(self, query: str, body: Any) -> Any:
        self.pause_query, self.paused = query, True

    def init(self, query: str, body: Any) -> Any:
        return {"optional_routes": self.offers} if self.offers else {}

    def prepare(self, query: str, body: Any) -> Any:
        assert not self.paused

    def update(self, query: str, body: Any) -> Any:
        if not self.updating:
            raise Refused(409, "update_weights outside an update")

    def generate(self, query: str, body: Any) -> Any:
        scores = [None, *({str(one): {"logprob": self.logprob}} for one in body["token_ids"][1:])]
        return {"choices": [], "prompt_logprobs": scores}


Work = Callable[[FakeVllm, str, Any], Any]
ROUTES = {
    "/pause": "pause",
    "/resume": "resume",
    "/sleep": "sleep",
    "/wake_up": "wake_up",
    "/init_weight_transfer_engine": "init",
    PREPARE_ROUTE: "prepare",
    "/start_weight_update": "start",
    "/update_weights": "update",
    "/finish_weight_update": "finish",
    "/inference/v1/generate": "generate",
}
"""Path to the method that answers it."""
READS: dict[str, Work] = {
    "/health": FakeVllm.health,
    "/metrics": FakeVllm.metrics,
    "/version": lambda engine, query, body: {"version": engine.version},
    "/get_world_size": lambda engine, query, body: {"world_size": 1},
    "/is_paused": lambda engine, query, body: {"is_paused": engine.paused},
    "/weight_info": lambda engine, query, body: {"weight_version": engine.label},
    "/v1/models": lambda engine, query, body: {"data": [{"id": "m", "max_model_len": 64}]},
}


@contextmanager
def serving(engine: FakeVllm) -> Iterator[str]:
    """The engine's URL."""

    def answer(path: str, query: str, body: Any) -> tuple[int, Any]:
        try:
            return 200, engine.answer(path, query, body)
        except Refused as error:
            return error.status, {"error": {"message": str(error)}}

    with serving_json(answer) as url:
        try:
            yield url
        finally:
            engine.released.set()
            engine.resume("", None)
