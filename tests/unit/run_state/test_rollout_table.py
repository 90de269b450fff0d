"""Rollouts in a few bytes each: the same sums as plain sets of names would give, and no growth by names."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.run_state.rollout_table import OTHER_REASONS, RolloutTable

# Names that a careless key would mix up: padded and plain numbers, other series, other forms.
GROUPS = [
    "0-000001",
    "0-1",
    "0-4097",
    "0-004097",
    "0-1000000",
    "1-000001",
    "0-eval64-1",
    "g",
    "g1",
    "-1",
    "1",
    "٣",
]
names = st.lists(
    st.sampled_from([f"{group}/{index}" for group in GROUPS for index in (0, 1, 10)]), max_size=6
)
ends = st.tuples(st.integers(0, 4), st.sampled_from(["", "timeout", "max_lag"]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), names),
        st.tuples(st.just("end"), names, ends, st.booleans()),
        st.tuples(st.just("undo"), names),
        st.tuples(st.just("resume")),
        st.tuples(st.just("replayed"), names),
    ),
    max_size=30,
)


class Sets:
    """The same with a set entry for every name."""

    def __init__(self) -> None:
        self.bests: tuple[dict[str, tuple[int, str]], ...] = {}, {}
        """The most final end that stays, and the most final one that can be rolled back."""
        self.started, self.twice, self.earlier = set[str](), set[str](), set[str]()
        self.undone, self.replayed = set[str](), set[str]()

    def take(self, step: tuple) -> None:  # type: ignore[type-arg]
        if step[0] == "start":
            for name in step[1]:
                (self.twice if name in self.started else self.started).add(name)
        elif step[0] == "end":
            for name in step[1]:
                best = self.bests[step[3]]
                if name not in best or step[2][0] < best[name][0]:
                    best[name] = step[2]
        elif step[0] == "undo":
            self.undone.update(step[1])
            for name in step[1]:
                self.bests[True].pop(name, None)
        elif step[0] == "resume":
            self.earlier = set(self.started)
        else:
            self.replayed = set(step[1])

    def sums(self) -> tuple[object, ...]:
        stays, undoable = self.bests
        best = stays | {n: end for n, end in undoable.items() if n not in stays or end[0] <= stays[n][0]}
        ended = [best[name] for name in self.started & best.keys()]
        return (
            len(self.started),
            len(self.started) - len(ended),
            {end: ended.count(end) for end in ended},
            self.twice,
            best.keys() - self.started,
            len(self.undone),
            len(self.earlier - best.keys() - self.replayed),
        )


def take(table: RolloutTable, step: tuple) -> None:  # type: ignore[type-arg]
    if step[0] == "end":
        table.end(step[2][0], step[1], step[2][1], undoable=step[3])
    elif step[0] == "replayed":
        table.replayed = set(step[1])
    else:
        getattr(table, step[0])(*step[1:])


@given(steps)
@settings(max_examples=80)
def test_the_sums_are_those_of_plain_sets(history: list[tuple]) -> None:  # type: ignore[type-arg]
    table, sets = RolloutTable(range(5)), Sets()
    for step in history:
        take(table, step)
        sets.take(step)
        assert sets.sums() == (
            table.started,
            table.unfinished,
            table.by_reason(),
            table.twice,
            table.unknown,
            table.undone,
            table.discarded,
        )


def test_a_rollout_costs_bytes_and_not_its_name() -> None:
    table, groups, attempts = RolloutTable(range(5)), 1000, 8
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for group in range(groups):
        batch = [f"0-{group:06d}/{index}" for index in range(attempts)]
        table.start(batch)
        table.end(0, batch, "")
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert table.by_reason() == {(0, ""): groups * attempts}
    assert grown < 8 * groups * attempts, "a set of the names alone takes a hundred bytes for each"


def test_reasons_without_end_are_counted_together() -> None:
    table = RolloutTable(range(5))
    table.start([f"0-{i:06d}/0" for i in range(1000)])
    for i in range(1000):
        table.end(3, [f"0-{i:06d}/0"], f"refused by port {i}")
    sums = table.by_reason()
    assert sum(sums.values()) == 1000 and table.unfinished == 0
    assert len(sums) < 256 and sums[3, OTHER_REASONS] > 700
