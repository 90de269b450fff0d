"""Packed broadcasts: what the engines unpack, whose turn it is in the group, and how a hang ends."""

import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelinerl.base.threads import in_thread
from pipelinerl.engines.wire import PermanentUpdateError, packets
from pipelinerl.weights.transports.base import Member, TransportError
from pipelinerl.weights.transports.nccl import PORTS_TRIED, NcclTransport
from tests.support.fake_group import FakeGroup, unpack

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_reservations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run at the same time reserve ports from the same number on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def transport(dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[NcclTransport, list[FakeGroup]]:
    groups: list[FakeGroup] = []

    def connect(rendezvous: dict[str, Any]) -> FakeGroup:
        groups.append(FakeGroup(rendezvous))
        return groups[-1]

    return NcclTransport(CPU, dtype, connect=connect, **{"first_port": 19400, **options}), groups


def members(*ranks: int, version: str | None = "0.26.0") -> list[Member]:
    return [Member(f"http://127.0.0.1:{8000 + index}", one, version) for index, one in enumerate(ranks)]


def joined(dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[NcclTransport, FakeGroup]:
    made, groups = transport(dtype, **options)
    made.init_info(members(1))
    made.join(60.0)
    return made, groups[-1]


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 80))
def test_packets_cover_every_tensor_once_and_close_when_they_exceed_the_limit(
    sizes: list[int], limit: int
) -> None:
    cuts = list(packets(sizes, limit))
    assert [index for first, last in cuts for index in range(first, last)] == list(range(len(sizes)))
    for number, (first, last) in enumerate(cuts):
        assert sum(sizes[first : last - 1]) <= limit
        assert number == len(cuts) - 1 or sum(sizes[first:last]) > limit


@pytest.mark.parametrize("limit", [1, 64, 100, 10**6])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_the_engines_unpack_what_was_sent(limit: int, buffers: int) -> None:
    made, group = joined(buffer_bytes=limit, buffers=buffers)
    torch.manual_seed(0)
    named = [(f"layer.{index}", torch.randn(3 + index, 5)) for index in range(6)] + [
        ("transposed", torch.randn(4, 7).T),
        ("norm", torch.ones(9, dtype=torch.bfloat16)),
    ]
    staged = made.stage(1, named)
    made.send(staged, 60.0)
    tensors, sizes = unpack(group.received, staged.info, limit)
    assert sum(sizes) == staged.bytes == sum(tensor.numel() * 2 for _, tensor in named)
    for name, tensor in named:
        assert torch.equal(tensors[name], tensor.to(torch.bfloat16)), name


def test_the_second_version_is_sent_from_the_same_tensors_in_place() -> None:
    made, group = joined(torch.float32)
    weight = torch.nn.Parameter(torch.zeros(3))
    for version in (1.0, 2.0):
        with torch.no_grad():
            weight.fill_(version)
        group.received.clear()
        staged = made.stage(int(version), [("w", weight)])
        made.send(staged, 60.0)
        assert unpack(group.received, staged.info, 256 * 2**20)[0]["w"].tolist() == [version] * 3


def test_ranks_of_engines_follow_each_other_behind_the_trainer() -> None:
    made, groups = transport()
    infos = made.init_info(members(1, 4, 2))
    made.join(60.0)
    assert [info["rank_offset"] for info in infos] == [1, 2, 6]
    assert {info["world_size"] for info in infos} == {8} == {groups[0].rendezvous["world_size"]}
    assert {info["master_port"] for info in infos} == {groups[0].rendezvous["master_port"]}


def test_engines_are_told_of_adapters_at_the_rendezvous_and_with_each_version() -> None:
    made, _ = transport(torch.float32, ahead=True, adapter_scale=1.5)
    for info in made.init_info(members(1, 1)):
        assert info["adapters"] is True
    sent = made.stage(1, [("w", torch.ones(2, dtype=torch.bfloat16))])
    assert sent.info["adapter_scale"] == 1.5 and sent.info["dtype_names"] == ["float32"] and sent.bytes == 8
    whole, _ = transport()
    (info,) = whole.init_info(members(1))
    assert "adapters" not in info and "adapter_scale" not in whole.stage(1, [("w", torch.ones(2))]).info


def test_packing_is_agreed_on_where_the_version_expects_it() -> None:
    keys = {"packed", "packed_buffer_size_bytes", "packed_num_buffers"}
    for version, at_init in (("0.26.0", False), ("0.27.1", False), ("0.28.0", True), ("0.33.1", True)):
        made, _ = transport(buffer_bytes=77, buffers=3)
        (info,) = made.init_info(members(1, version=version))
        update = made.stage(1, [("w", torch.ones(2))]).info
        assert (keys <= info.keys()) == at_init and (keys <= update.keys()) == (not at_init)
        agreed = info if at_init else update
        wanted = {"packed": True, "packed_buffer_size_bytes": 77, "packed_num_buffers": 3}
        assert agreed.items() >= wanted.items()


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (["0.27.0", "0.28.0"], "cannot share a group"),
        ([None], "does not say its version"),
    ],
)
def test_engines_that_cannot_share_a_group_are_refused(versions: list[str | None], message: str) -> None:
    made, _ = transport()
    with pytest.raises(PermanentUpdateError, match=message):
        made.init_info([Member(f"http://e{index}", 1, one) for index, one in enumerate(versions)])


def test_a_new_rendezvous_leaves_the_former_group_and_takes_a_free_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made, groups = transport(first_port=port)
        (info,) = made.init_info(members(1))
        assert port < info["master_port"] < port + PORTS_TRIED
    made.join(60.0)
    made.init_info(members(1, 1))
    assert groups[0].destroyed.is_set()
    with pytest.raises(TransportError, match="no group"):
        made.send(made.stage(1, [("w", torch.ones(2))]), 60.0)


def test_two_runs_that_look_at_the_same_moment_take_different_ports() -> None:
    (one, _), (other, _) = transport(), transport()
    (first,), (second,) = one.init_info(members(1)), other.init_info(members(1))
    assert first["master_port"] != second["master_port"]  # although neither is bound yet
    one.close()
    assert other.init_info(members(1))[0]["master_port"] == first["master_port"]
    other.close()


def test_a_send_that_hangs_ends_when_it_is_aborted() -> None:
    made, group = joined()
    group.hang = True
    sent = in_thread(made.send, made.stage(1, [("w", torch.ones(2))]), 60.0)
    time.sleep(0.05)
    made.abort()
    assert sent.exception(100) is not None


def test_a_lane_that_never_gets_idle_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = joined()
    monkeypatch.setattr("pipelinerl.weights.transports.nccl._Lane.idle", lambda lane: False)
    with pytest.raises(TransportError, match="before its deadline"):
        made.send(made.stage(1, [("w", torch.ones(2))]), 0.05)


def test_a_rendezvous_given_up_meanwhile_leaves_the_group_again() -> None:
    groups: list[FakeGroup] = []

    def connect(rendezvous: dict[str, Any]) -> FakeGroup:
        made.abort()  # as the publisher does when an engine refuses
        groups.append(FakeGroup(rendezvous))
        return groups[-1]

    made = NcclTransport(CPU, torch.bfloat16, connect=connect, first_port=19400)
    made.init_info(members(1))
    with pytest.raises(TransportError, match="given up"):
        made.join(60.0)
    assert groups[0].destroyed.is_set()


def test_engines_of_other_hosts_are_told_the_trainer_s_address() -> None:
    made, groups = transport(address="127.0.0.2")
    (info,) = made.init_info(members(1))
    made.join(60.0)
    assert info["master_address"] == groups[0].rendezvous["master_address"] == "127.0.0.2"


def test_without_vllm_the_trainer_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    made = NcclTransport(CPU, torch.bfloat16, first_port=19400)
    made.init_info(members(1))
    with pytest.raises(ImportError, match=r"install pipelinerl\[vllm\].*transport=file"):
        made.join(60.0)
