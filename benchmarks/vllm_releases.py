"""Does every release of vLLM have what the project relies on, and are the constants about versions right?

    python -m benchmarks.vllm_releases [--versions VERSION ...] [--out FILE]

Reads the wheel of each release on the package index from the oldest supported one, some megabytes of each,
and keeps what it finds as `benchmarks/results/vllm_releases.json` (of some `--versions`: only in `--out`):
for each fact the place or the value, under the first release that it holds for. Then it prints where
`pipelinerl/engines/vllm/options.py`, the requests or the plug-ins disagree with a release, and ends with 1 if
they do. `tests/unit/benchmarks/test_vllm_releases.py` compares them with the record, without a network.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import _vllm_facts as uses
from benchmarks._figures import RESULTS, command_line, write_json
from benchmarks._vllm_facts import Facts
from benchmarks._vllm_wheel import Wheel, releases
from pipelinerl.engines.requests import WHOLE_ANSWER
from pipelinerl.engines.vllm.installed import PLUGIN_GROUP
from pipelinerl.engines.vllm.options import OLDEST, SERVE_MODULE, SERVER_MODULE, VllmVersion, packing

PACKAGE = "vllm"
# Takes the label of weights where there is a route that says it.
LABEL = "finish_weight_update"
RECORD = RESULTS / "vllm_releases.json"


def disagreements(release: str, facts: Facts) -> list[str]:
    """Where the project is wrong about a release, one line each. KeyError: a fact was not recorded."""
    version = VllmVersion.parse(release)
    wanted = [
        *(f"flag {flag}" for flag in uses.argv_of(release)),
        *(f"variable {name}" for name in uses.variables()),
        *(f"route {route}" for route in uses.routes()),
        *(f"field GenerateRequest.{name}" for name in uses.REQUEST),
        *(f"field answer.{name}" for name in uses.ANSWER),
        *(f"field SamplingParams.{name}" for name in uses.sampling_fields()),
        *(f"field ChatCompletionRequest.{name}" for name in uses.chat_fields()),
        *(f"name {dotted}" for dotted in uses.imported()),
        *(
            f"attribute {dotted.rpartition('.')[2]}.{name}"
            for dotted, names in uses.ATTRIBUTES.items()
            for name in names
        ),
        *(f"metric {name}" for name in uses.counters()),
        *(f"query {name} {word}" for name, words in uses.QUERIES.items() for word in words if name != LABEL),
        *(f"module {SERVE_MODULE}", f"module {SERVER_MODULE}", f"plug-ins {PLUGIN_GROUP}"),
        *("sleep level 0 is the pause alone", "wake_up has the tag scheduling", "pause has the mode keep"),
        *("a cleared cache is that of running requests too", "routed experts are an array of numpy"),
        "gated DeltaNets have the kernel triton for prompts",
    ]
    lines = [f"vLLM {release} lacks: {name}" for name in wanted if not facts[name]]
    for constant, says, has in (
        ("SCALE_OUT_SINCE", version.has_scale_out, facts["flag --enable-scale-out"] is not None),
        ("SPANS_SINCE", version.reports_versions, facts["field answer.weight_versions"]),
        (
            "ROUTES_OF_FIRST_UNTIL, ROUTES_OF_SECOND_SINCE",
            version.routes_runners,
            tuple(facts[f"routed experts of model runner {number}"] for number in (1, 2)),
        ),
        (
            "PACKED_AT_INIT_SINCE",
            version.packed_at_init,
            _has(facts, "fields NCCLWeightTransferInitInfo", packing(1, 1)),
        ),
    ):
        if says != has:
            lines.append(f"{constant} says {says} for vLLM {release}, which has it: {has}")
    return lines + [f"vLLM {release}: {line}" for line in _messages(version, facts) + _plug_ins(facts)]


def _messages(version: VllmVersion, facts: Facts) -> list[str]:
    """What is wrong with the messages of an update, and with the plain values of requests."""
    at_init, per_update = "fields NCCLWeightTransferInitInfo", "fields NCCLWeightTransferUpdateInfo"
    packed = {at_init: version.packed_at_init, per_update: not version.packed_at_init}
    lines = [
        f"{place} has the packing: {not says}"
        for place, says in packed.items()
        if _has(facts, place, packing(1, 1)) != says
    ]
    if not _has(facts, at_init, (*uses.RENDEZVOUS, "rank_offset")):
        lines.append(f"{at_init} are {facts[at_init]}")
    if not _has(facts, per_update, uses.PER_UPDATE):
        lines.append(f"{per_update} are {facts[per_update]}")
    if facts["keys trainer_init"] != sorted(uses.RENDEZVOUS):
        lines.append(f"trainer_init reads {facts['keys trainer_init']}")
    if facts["value RequestOutputKind.FINAL_ONLY"] != WHOLE_ANSWER["output_kind"]:
        lines.append(f"output_kind FINAL_ONLY is {facts['value RequestOutputKind.FINAL_ONLY']}")
    if version.packed_at_init and not facts["attribute NCCLWeightTransferEngine.packed_buffer_size_bytes"]:
        lines.append("NCCLWeightTransferEngine keeps no packed_buffer_size_bytes")
    return lines


def _plug_ins(facts: Facts) -> list[str]:
    """What is wrong with the classes that vLLM makes and calls."""
    lines = []
    for dotted, wanted in uses.SIGNATURES.items():
        if facts[f"parameters {uses.short(dotted)}"][: len(wanted)] != list(wanted):
            lines.append(f"{dotted} takes {facts[f'parameters {uses.short(dotted)}']}")
    for dotted, names in uses.FIELDS.items():
        if not _has(facts, f"fields {uses.short(dotted)}", names):
            lines.append(f"{dotted} has {facts[f'fields {uses.short(dotted)}']}")
    given = {"FileAheadEngine": [], "NcclAheadEngine": facts["methods NCCLWeightTransferEngine"]}
    for plug_in, inherited in {"FileWeightTransferEngine": [], **given}.items():
        own = uses.defined(plug_in)
        lines += [
            f"{plug_in} lacks the abstract method {name}"
            for name in facts["abstract WeightTransferEngine"]
            if name not in own and name not in inherited
        ]
        for name in facts["the worker calls"]:
            if name not in own and name not in facts["methods WeightTransferEngine"]:
                lines.append(f"{plug_in} lacks {name}, which the worker calls")
        for name in ("start_weight_update", "update_weights", "finish_weight_update"):
            taken = facts[f"parameters WeightTransferEngine.{name}"]
            if own[name] != taken:
                lines.append(f"{plug_in}.{name} takes {own[name]}, vLLM's {taken}")
    return lines


def _has(facts: Facts, name: str, wanted: Sequence[str] | Mapping[str, Any]) -> bool:
    return set(wanted) <= set(facts[name])


def record(found: Mapping[str, Facts]) -> dict[str, Any]:
    """Facts by release as they are kept: each value once, under the first release that has it."""
    kept: dict[str, dict[str, Any]] = {}
    for release, facts in found.items():
        for name, value in facts.items():
            values = kept.setdefault(name, {})
            if not values or list(values.values())[-1] != value:
                values[release] = value
    return {"releases": list(found), "facts": kept}


def facts_of(recorded: Mapping[str, Any], release: str) -> Facts:
    """The facts of a release, from a record."""
    until = recorded["releases"][: recorded["releases"].index(release) + 1]
    facts = recorded["facts"].items()
    return {name: [values[one] for one in until if one in values][-1] for name, values in facts}


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    found: dict[str, Facts] = {}
    wrong = 0
    for release in options.versions or releases(PACKAGE, OLDEST):
        found[release] = dict(uses.read(Wheel.remote(PACKAGE, release)))
        lines = disagreements(release, found[release])
        print(f"vLLM {release}: {len(found[release])} facts, {len(lines)} disagreements", flush=True)
        print("".join(f"  {line}\n" for line in lines), end="")
        wrong += len(lines)
    if options.out or not options.versions:  # a part of them would replace the record of all
        write_json(options.out or RECORD, record(found))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
