"""What the project relies on in vLLM, and what a release has of it. `vllm_releases` compares the two.

What is relied on is taken from the code that relies on it wherever it can be: flags from a command line,
fields from requests, imports and methods from the sources of the plug-ins.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any

import numpy as np

from benchmarks._figures import ROOT
from benchmarks._vllm_wheel import Class, Wheel, functions_of, name_of, parameters, strings
from pipelinerl.config.serving import VllmConfig
from pipelinerl.engines.llm_call import Prompt
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.requests import WHOLE_ANSWER, SamplingParams, scoring_body
from pipelinerl.engines.vllm import outputs_once
from pipelinerl.engines.vllm.installed import PLUGIN_GROUP
from pipelinerl.engines.vllm.options import (
    OLDEST,
    SERVE_MODULE,
    SERVER_MODULE,
    STATES_BACKEND,
    TRITON,
    VllmOptions,
    VllmVersion,
    pause_routes,
    serve_argv,
    serve_env,
)

TRANSFER = "vllm.distributed.weight_transfer"
Facts = Mapping[str, Any]
"""What one release has, by name; null for what it lacks."""

PLUG_INS = tuple(f"pipelinerl/engines/vllm/receive_{name}.py" for name in ("file", "ahead", "adapters"))
COUNTERS = ("pipelinerl/engines/engine_metrics.py", "pipelinerl/weights/engine_state.py")
# Beside those of `pause_routes`.
ROUTES = (
    *(
        "GET /health",
        "GET /metrics",
        "GET /version",
        "GET /v1/models",
        "GET /is_paused",
        "GET /get_world_size",
    ),
    *("POST /inference/v1/generate", "POST /v1/chat/completions", "POST /init_weight_transfer_engine"),
    *("POST /start_weight_update", "POST /update_weights", "POST /finish_weight_update"),
)
# The label of weights is asked for, and done without where there is none.
OPTIONAL_ROUTES = ("GET /weight_info",)
# Nobody asks for it; whether one is there says that weights can be checked by their sums.
NOTED_ROUTES = ("POST /weight_checker",)
REQUEST = ("token_ids", "sampling_params", "request_id", "stream", "cache_salt")
ANSWER = ("index", "token_ids", "finish_reason", "logprobs", "routed_experts")
RUNNERS = ("vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/model_runner.py")
"""vLLM's first and second model runner."""
RENDEZVOUS = ("master_address", "master_port", "world_size")
PER_UPDATE = ("names", "dtype_names", "shapes")
# Parameters of routes, by the functions that answer them.
QUERIES = {
    "sleep": ("level", "mode"),
    "wake_up": ("tags",),
    "pause_generation": ("mode", "clear_cache"),
    "finish_weight_update": ("weight_version",),
}
# Flags that conf/, the pages or the tests give beside the defaults.
BARE_FLAGS = ("enforce-eager", "enable-auto-tool-choice")
VALUED_FLAGS = ("max-num-seqs", "kv-cache-memory-bytes", "data-parallel-size", "tool-call-parser")
# What the plug-ins read of the objects that they are given or derive from.
ATTRIBUTES = {
    f"{TRANSFER}.base.WeightTransferEngine": (
        *("device", "model", "model_config", "vllm_config", "parallel_config"),
    ),
    f"{TRANSFER}.nccl_engine.NCCLWeightTransferEngine": ("model_update_group",),
    "vllm.config.parallel.ParallelConfig": (
        *("data_parallel_index", "world_size", "rank", "tensor_parallel_size"),
    ),
    "vllm.model_executor.layers.attention.attention.Attention": ("kv_cache",),
    "vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbedding": ("quant_method",),
}
# Parameters by which functions of vLLM are called.
SIGNATURES = {
    f"{TRANSFER}.factory.WeightTransferEngineFactory.register_engine": (
        *("name", "module_path_or_cls", "class_name"),
    ),
    f"{TRANSFER}.nccl_common.trainer_init": ("init_info",),
    f"{TRANSFER}.base.WeightTransferEngine.update_weights": ("update_info",),
    f"{TRANSFER}.base.WeightTransferEngine.parse_update_info": ("update_dict",),
    f"{TRANSFER}.base.WeightTransferEngine.start_weight_update": (),
    "vllm.model_executor.model_loader.default_loader.DefaultModelLoader.get_all_weights": (
        *("model_config", "model"),
    ),
    f"{TRANSFER}.base.WeightTransferEngine.finish_weight_update": (),
    "vllm.distributed.device_communicators.pynccl.PyNcclCommunicator.broadcast": ("tensor", "src", "stream"),
    "vllm.distributed.device_communicators.pynccl.PyNcclCommunicator.destroy": (),
    "vllm.model_executor.model_loader.reload.layerwise.initialize_layerwise_reload": ("model",),
    "vllm.model_executor.model_loader.reload.layerwise.finalize_layerwise_processing": (
        "model",
        "model_config",
    ),
    **{dotted: names[1:] for dotted, names in outputs_once.PARAMETERS.items()},
}
# Fields of messages that `outputs_once` reads or writes.
FIELDS = {
    f"{outputs_once.MESSAGES}.EngineCoreOutput": (*outputs_once.HELD_FIELDS, "finish_reason"),
    f"{outputs_once.MESSAGES}.EngineCoreOutputs": ("outputs", "timestamp"),
    f"{outputs_once.OUTPUTS}.LogprobsLists": outputs_once.LISTS,
}


def argv_of(release: str) -> list[str]:
    """Every flag that the launcher, or a user of the pages, may give an engine of this release."""
    options = VllmOptions(
        model="m",
        served_model_name="m",
        host="h",
        port=1,
        max_model_len=1,
        transport="nccl",
        version=VllmVersion.parse(release),
        kwargs=VllmConfig().vllm_kwargs
        | dict.fromkeys(BARE_FLAGS, "")
        | dict.fromkeys(VALUED_FLAGS, 1)
        | {STATES_BACKEND: TRITON},
        api_server_count=2,
        trust_remote_code=True,
        routes=True,
    )
    return [word for word in serve_argv(options) if word.startswith("--")]


def variables() -> list[str]:
    given = serve_env([], VllmVersion(*OLDEST))
    return [name for name in given if name.startswith("VLLM_")]


def routes() -> list[str]:
    """Every route that an engine is asked for, without its query."""
    quick, clearing = pause_routes("0", clear_cache=False), pause_routes("0", clear_cache=True)
    paths = (quick.pause, quick.resume, clearing.pause, clearing.resume)
    return [*ROUTES, *dict.fromkeys(f"POST {path.partition('?')[0]}" for path in paths)]


def sampling_fields() -> list[str]:
    """What `sampling_params` of a request may hold."""
    scoring = scoring_body(np.zeros(1, np.int32))["sampling_params"]
    own = (one.name for one in fields(SamplingParams))
    return list(dict.fromkeys([*own, *WHOLE_ANSWER, "detokenize", *scoring]))


def chat_fields() -> list[str]:
    """What a request to the chat route may hold."""
    llm = EngineLLM(model_name="m", chat_template_kwargs={"a": 1})
    prompt = Prompt(messages=[], tools=[{}], response_format={"type": "json_object"})
    sampling = asdict(SamplingParams(max_tokens=1))
    return list(dict.fromkeys([*llm.chat_fields(prompt, SamplingParams(max_tokens=1)), *sampling]))


@cache
def source(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def imported() -> list[str]:
    """Dotted names that the plug-ins import from vLLM."""
    froms = (one for path in PLUG_INS for one in ast.walk(source(path)) if isinstance(one, ast.ImportFrom))
    names = [
        f"{one.module}.{name.name}" for one in froms for name in one.names if (one.module or "")[:4] == "vllm"
    ]
    return list(dict.fromkeys(names))


@cache
def defined(plug_in: str) -> dict[str, list[str]]:
    """Methods of a class of the plug-ins and of its bases in the plug-ins, with what each takes."""
    classes = {
        one.name: one for path in PLUG_INS for one in source(path).body if isinstance(one, ast.ClassDef)
    }
    bases = [name_of(one.value if isinstance(one, ast.Subscript) else one) for one in classes[plug_in].bases]
    found: dict[str, list[str]] = {}
    for base in bases:
        found |= {} if base not in classes else {**defined(base), **found}
    return found | {name: parameters(one) for name, one in functions_of(classes[plug_in].body).items()}


def counters() -> list[str]:
    """Metrics of an engine that are read."""
    words = (word for path in COUNTERS for word in strings(source(path)))
    return sorted({word for word in words if re.fullmatch(r"vllm:\w+", word)})


def read(wheel: Wheel) -> Iterator[tuple[str, Any]]:
    """Facts of a release."""
    yield "requires Python", wheel.metadata("Requires-Python")[0]
    for name in ("torch", "transformers"):
        wanted = [re.match(rf"{name}\b([^;\[]*)$", one) for one in wheel.metadata("Requires-Dist")]
        yield f"requires {name}", next((one[1].strip() for one in wanted if one), None)
    command = wheel.module(SERVE_MODULE)
    yield f"module {SERVE_MODULE}", command and command.path
    server = wheel.module(SERVER_MODULE)
    yield f"module {SERVER_MODULE}", server and server.path
    said = server.texts() if server else set()
    yield f"deprecates {SERVER_MODULE}", any("deprecated" in one for one in said)
    plugins = wheel.module("vllm.plugins")
    yield f"plug-ins {PLUGIN_GROUP}", plugins and PLUGIN_GROUP in plugins.texts() and plugins.path
    yield from _read_flags(wheel)
    yield from _read_routes(wheel)
    yield from _read_requests(wheel)
    yield from _read_plug_ins(wheel)
    loggers = wheel.module("vllm.v1.metrics.loggers")
    # prometheus_client ends the names of counters with `_total`.
    said = loggers.texts() if loggers else set()
    for name in counters():
        yield f"metric {name}", name in said or name.removesuffix("_total") in said


def _read_flags(wheel: Wheel) -> Iterator[tuple[str, Any]]:
    where: dict[str, str] = {}
    kernels: set[str] = set()
    for module in (*wheel.below("vllm/entrypoints/", "cli_args.py"), wheel.at("vllm/engine/arg_utils.py")):
        for call in module.calls("add_argument"):
            words = strings(call)
            where |= {word: module.path for word in words if word.startswith("--")}
            kernels |= words if f"--{STATES_BACKEND}" in words else set()
        if module.path.endswith("cli_args.py"):  # their fields become flags
            names = (name for one in module.classes().values() for name in one.fields)
            where |= {"--" + name.replace("_", "-"): module.path for name in names}
    for flag in dict.fromkeys(argv_of("0.26.0") + argv_of("999.0")):
        yield f"flag {flag}", where.get(flag)
    yield "gated DeltaNets have the kernel triton for prompts", TRITON in kernels
    known = wheel.at("vllm/envs.py").texts()
    for name in variables():
        yield f"variable {name}", name in known


def _read_routes(wheel: Wheel) -> Iterator[tuple[str, Any]]:
    where: dict[str, str] = {}
    queries: dict[str, list[str]] = {}
    for module in wheel.below("vllm/entrypoints/"):
        for method in ("get", "post"):
            for call in module.calls(method):
                # Others look something up, or are routes of another server.
                if isinstance(call.func, ast.Attribute) and name_of(call.func.value) == "router":
                    where |= {f"{method.upper()} {path}": module.path for path in strings(call.args[0])}
        for call in module.calls("Mount"):
            where |= {f"GET {path}": module.path for path in strings(ast.Tuple(call.args[:1], ast.Load()))}
        for function in module.functions().values():
            if function.name in QUERIES and function.decorator_list:
                # Read from the request by name until 0.31, declared as parameters since.
                queries[function.name] = [*parameters(function), *strings(function)]
    for route in (*routes(), *OPTIONAL_ROUTES, *NOTED_ROUTES):
        yield f"route {route}", where.get(route)
    for name, words in QUERIES.items():
        for word in words:
            yield f"query {name} {word}", word in queries.get(name, ())
    yield from _read_pause(wheel)


def _read_pause(wheel: Wheel) -> Iterator[tuple[str, Any]]:
    core = wheel.module("vllm.v1.engine.core")
    assert core is not None
    methods = core.classes()["EngineCore"].methods
    sleeps = [ast.unparse(one) for one in ast.walk(methods["sleep"]) if isinstance(one, ast.If)]
    yield (
        "sleep level 0 is the pause alone",
        any(one.startswith("if level < 1:\n    return pause") for one in sleeps),
    )
    yield "wake_up has the tag scheduling", "scheduling" in strings(methods["wake_up"])
    modes = wheel.at("vllm/v1/engine/__init__.py").texts()
    yield "pause has the mode keep", "keep" in modes and "keep" in strings(methods["pause_scheduler"])
    resets = dict(
        zip(
            parameters(methods["_reset_caches"]),
            map(ast.unparse, methods["_reset_caches"].args.defaults),
            strict=True,
        )
    )
    yield "a cleared cache is that of running requests too", resets["reset_running_requests"] == "True"


def _read_requests(wheel: Wheel) -> Iterator[tuple[str, Any]]:
    protocol = wheel.at("vllm/entrypoints/scale_out/token_in_token_out/protocol.py")
    classes = protocol.classes()
    for name in REQUEST:
        yield f"field GenerateRequest.{name}", name in classes["GenerateRequest"].fields
    # Answers of the token route have had classes of several names, each derived from the choices below.
    answers: set[str] = set()
    for name, one in classes.items():
        if name.startswith("Generate") and "Choice" in name and "Stream" not in name:
            answers |= set(one.fields)
    for name in (*ANSWER, "weight_versions"):
        yield f"field answer.{name}", name in answers
    entries = {name for one in classes.values() if "logprob" in one.fields for name in one.fields}
    yield "field answer.logprobs.token_id", "token_id" in entries
    sampling = wheel.at("vllm/sampling_params.py").classes()
    for name in sampling_fields():
        yield f"field SamplingParams.{name}", name in sampling["SamplingParams"].fields
    served = wheel.text("vllm/entrypoints/scale_out/token_in_token_out/serving.py")
    # As numpy writes an array, in base64: in the route itself, later by a function of that name.
    yield "routed experts are an array of numpy", "np.save(" in served or "numpy2base64(" in served
    for number, path in enumerate(RUNNERS, 1):
        said = wheel.text(path) if path in wheel.names else ""
        yield f"routed experts of model runner {number}", "routed_experts" in said or "aux_output" in said
    yield "value RequestOutputKind.FINAL_ONLY", sampling["RequestOutputKind"].values["FINAL_ONLY"]
    chat = wheel.at("vllm/entrypoints/openai/chat_completion/protocol.py").classes()["ChatCompletionRequest"]
    for name in chat_fields():
        yield f"field ChatCompletionRequest.{name}", name in chat.fields


def _read_plug_ins(wheel: Wheel) -> Iterator[tuple[str, Any]]:
    for dotted in imported():
        module = wheel.module(dotted.rpartition(".")[0])
        yield f"name {dotted}", module and dotted.rpartition(".")[2] in module.names() and module.path
    for dotted, wanted in ATTRIBUTES.items():
        one = _class(wheel, dotted)
        for name in wanted:
            yield f"attribute {dotted.rpartition('.')[2]}.{name}", name in one.attributes | set(one.fields)
    for dotted in SIGNATURES:
        owner, _, name = dotted.rpartition(".")
        module = wheel.module(owner)
        found = (module.functions() if module else _class(wheel, owner).methods)[name]
        yield f"parameters {short(dotted)}", parameters(found)
    for dotted in FIELDS:
        yield f"fields {short(dotted)}", _class(wheel, dotted).fields
    base = _class(wheel, f"{TRANSFER}.base.WeightTransferEngine")
    nccl = _class(wheel, f"{TRANSFER}.nccl_engine.NCCLWeightTransferEngine")
    yield "parameters WeightTransferEngine.__init__", parameters(base.methods["__init__"])
    yield "abstract WeightTransferEngine", base.abstract
    yield "methods NCCLWeightTransferEngine", sorted(nccl.methods)
    yield (
        "attribute NCCLWeightTransferEngine.packed_buffer_size_bytes",
        "packed_buffer_size_bytes" in nccl.attributes,
    )
    for place, name in (
        ("nccl_common", "NCCLWeightTransferInitInfo"),
        ("nccl_engine", "NCCLWeightTransferUpdateInfo"),
    ):
        yield f"fields {name}", _class(wheel, f"{TRANSFER}.{place}.{name}").fields
    joins = wheel.at("vllm/distributed/weight_transfer/nccl_common.py").functions()["trainer_init"]
    yield "keys trainer_init", sorted(set(RENDEZVOUS) & strings(joins))
    worker = wheel.at("vllm/v1/worker/gpu_worker.py")
    engine = (one.func for one in ast.walk(worker.tree) if isinstance(one, ast.Call))
    called = {
        one.attr
        for one in engine
        if isinstance(one, ast.Attribute) and name_of(one.value) == "weight_transfer_engine"
    }
    yield "the worker calls", sorted(called)
    yield "methods WeightTransferEngine", sorted(base.methods)


def _class(wheel: Wheel, dotted: str) -> Class:
    module = wheel.module(dotted.rpartition(".")[0])
    if module is None or dotted.rpartition(".")[2] not in module.classes():
        raise LookupError(f"{dotted} is not where it was; look where it is now")
    return module.classes()[dotted.rpartition(".")[2]]


def short(dotted: str) -> str:
    """Class and method, or a function alone."""
    words = dotted.split(".")
    return ".".join(words[-2:]) if words[-2][0].isupper() else words[-1]
