"""What a start would find out late is refused before anything starts, and by `validate=true`."""

import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from domains.privacy_hopqa.context import first_plan
from pipelinerl.actor.problems import load_problems
from pipelinerl.base import hub
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.domain import load_domain, resolve_dotted
from pipelinerl.launch import main
from pipelinerl.launcher import start
from pipelinerl.launcher.checks import config_fields, data, imports, rehearsal
from pipelinerl.launcher.checks.data import _names
from pipelinerl.launcher.checks.dotted import POLICY, dotted, signature_problem
from pipelinerl.launcher.checks.imports import problem
from pipelinerl.modeling.decoder_defaults import DEFAULTS
from tests.support.one_line import check_one_line
from tests.support.privacy_hopqa import agent
from tests.support.rehearsals import imported_here, looked_here
from tests.support.tiny_model import hub_snapshot
from tests.unit.launcher.conftest import ROOT
from tests.unit.launcher.hub_configs import HUB

pytestmark = pytest.mark.usefixtures("forked")

COUNTING = ROOT / "domains/counting/checkpoint"
GUESSING = ROOT / "domains/guessing/checkpoint"
CHAINS = ROOT / "domains/privacy_hopqa/examples"
PLAY = """
async def play(cfg, llm, problem, session):
    raise NotImplementedError
"""
Started = Callable[..., str]
TRAINED_TOO = (
    *("llama", "qwen2", "qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v3", "glm4_moe", "phi3", "granite"),
    *("gemma3", "mistral3", "qwen3_5", "qwen3_5_moe", "smollm3", "minimax_m2", "gpt2", "gpt_neox", "falcon"),
)


@pytest.fixture(params=["validate=true", "validate=false"])
def refused(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Started:
    """The one line that refuses a validation, and a start, of which nothing is left but its log."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = tmp_path / "run"

    def refuse(*arguments: str) -> str:
        assert main(["hardware=cpu", f"output_dir={run}", request.param, *arguments]) == 2
        err = capsys.readouterr().err
        check_one_line(err, "launcher: ", str(arguments))
        assert not (run / "conf").exists() and not (run / "streams").exists()
        return err

    return refuse


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """Arguments for a module of a user, which other processes find as well."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    def arguments(source: str) -> list[str]:
        name = f"early_{abs(hash((source, str(tmp_path))))}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source) + PLAY)
        given = [f"dataset_loader={name}.load", f"actor.rollout_policy={name}.play"]
        short = [
            "engine.max_model_len=256",
            "llm.parameters.max_tokens=64",
            "test_llm.parameters.max_tokens=64",
        ]
        return [*given, f"model_path={GUESSING}", "wandb.use_wandb=false", *short]

    return arguments


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("def load(names): return []", [], "train_dataset_names=[train]: no problems in it"),
        (
            "def load(names): return [{'n': 1}] * (names == ['train'])",
            [],
            "test_dataset_names=[test]: no problems in it; set test_dataset_names=[]",
        ),
        (
            "def load(names): return [{'n': 1}] * 5",
            ["train_subset={begin: 5, end: 9}"],
            "train_subset.begin=5: there are 5 problems; lower it",
        ),
        ("def load(names): return {'a': 1}", [], "load: must return a list of dicts, got dict"),
        ("def load(names): return [{'n': 1}, 'b']", [], "return a list of dicts, got a list with a str"),
        ("def load(names): return 1 / 0", [], "load: ZeroDivisionError: division by zero"),
        (
            "import logging\ndef load(names):\n    try:\n        raise OSError('hub away')  # exit\n"
            "    except OSError as error:\n        logging.getLogger(__name__).error('No rows: %s', error)\n"
            "        return []",
            [],
            "train_dataset_names=[train]: no problems in it; the last line of the loader: No rows: hub away",
        ),
        ("def load(names):\n    import os\n    os._exit(7)", [], "ended its process with status 7"),
        ("def load(names): return [{'n': lambda: 0}]", [], "problem 0 cannot be sent to a worker process"),
        ("def load(names): raise SystemExit(0)", [], "loading ended its process with status 0"),
        (
            "def load(names): return [{'n': 1}]",
            ["llm.parameters.stop_token_ids=[7,999999]"],
            "stop_token_ids=[7, 999999]: the model has ids below ",
        ),
        (
            "def load(names): return [{'n': 1, 'domain': 'sums'}]",
            ["actor.domain_mix={sums: 1, products: 2}"],
            "actor.domain_mix.products: no problem has that domain; problems have sums",
        ),
        (
            "def load(names): return [{'n': 1}]",
            ["actor.domain_mix={sums: 1}"],
            "problem 0 has no 'domain'; actor.domain_mix needs one in each problem",
        ),
        (
            "def load(names): return [{'n': 0}, {'n': lambda: 0}]",
            [],
            "problem 1 cannot be sent to a worker process",
        ),
    ],
)
def test_problems_that_nobody_can_play(
    source: str,
    arguments: list[str],
    message: str,
    own: Callable[[str], list[str]],
    refused: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loaded here, unless their process matters to the loader; by a start and a validation alike."""
    if "exit" not in source.lower():
        monkeypatch.setattr(start, "look", looked_here)
        monkeypatch.setattr(imports, "check", imported_here)
    assert message in refused(*own(source), *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["+domain=raro_sft"],
        [
            "+domain=privacy_hopqa",
            f"privacy_hopqa.final_train_dataset_path={CHAINS}/chains_train.jsonl",
            f"privacy_hopqa.final_test_dataset_path={CHAINS}/chains_val.jsonl",
            f"privacy_hopqa.task_data_root={CHAINS}/tasks",
            "privacy_hopqa.no_web=true",
        ],
    ],
    ids=["raro", "privacy_hopqa"],
)
def test_a_loader_that_fails_beside_hooks_that_make_no_data(
    arguments: list[str],
    own: Callable[[str], list[str]],
    refused: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What raro prepares is its buffer, and a run of `privacy_hopqa` with data of its own makes no world."""
    monkeypatch.setattr(start, "look", looked_here)
    monkeypatch.setattr(imports, "check", imported_here)
    loader, *_ = own("def load(names, **params): raise ValueError('line 3 is broken')")
    said = refused(*arguments, loader)
    assert said.endswith("load: line 3 is broken\n")


@pytest.mark.parametrize(
    ("declared", "taken"),
    [
        ("async def play(cfg, llm, problem)", "(cfg, llm, problem): too many positional arguments"),
        ("def play(cfg, llm, problem, session, *, env)", "missing a required"),
        ("def play(cfg, *, llm=3, problem, session)", "too many positional arguments"),
        ("def play(cfg, llm, problem, session, **more)", None),
        ("def play(*everything)", None),
        ("@str\ndef play()", None),
        ("def play(): 0\nplay = print\ndef other()", None),
    ],
)
def test_a_signature_is_read_from_the_source_as_the_import_would_show_it(
    declared: str, taken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also through a package that passes the function on; what the source does not show is left alone."""
    package = tmp_path / f"early_package_{abs(hash(declared))}"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    (package / "inner.py").write_text(f"{declared}: ...\n")
    plain = f"early_plain_{abs(hash(declared))}"
    (tmp_path / f"{plain}.py").write_text(f"{declared}: ...\n")
    (tmp_path / f"{plain}_passed.py").write_text(f"from {plain} import play as other_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = ("cfg", "llm", "problem", "session")
    for path in (f"{plain}.play", f"{plain}_passed.other_name"):
        found = signature_problem("actor.rollout_policy", path, given, [])
        assert (found is None) is (taken is None), found
        assert taken is None or (found is not None and taken in found)
    assert signature_problem("key", f"{package.name}.inner.play", given, []) is None
    (said,) = dotted("key", f"{package.name}.inner.play", "a function")
    assert said.endswith("failed: RuntimeError: never imported")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("async def load(names): return [{'n': 1}]", "load: async def, and is called once"),
        ("async def load(names): yield {'n': 1}", "load: async def, and is called once"),
        ("def load(names):\n    for n in names: yield {'n': n}", "load: yields, and is called once"),
        ("class Many:\n    async def __call__(self, names): return []\nload = Many()", "got coroutine"),
    ],
)
def test_a_loader_whose_call_is_no_list_yet(
    source: str, message: str, own: Callable[[str], list[str]], refused: Started
) -> None:
    assert message in refused(*own(source))


def test_a_policy_that_yields_is_refused_from_its_source_and_after_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = "    async def steps():\n        yield 1\n    return [x for x in (y for y in [1])]\n"
    (tmp_path / "yielding_policies.py").write_text(
        "async def each(cfg, llm, problem, session):\n    if problem:\n        yield 1\n"
        "def turns(cfg, llm, problem, session):\n    yield from []\n"
        f"async def whole(cfg, llm, problem, session):\n{inner}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for look in (signature_problem, problem):
        for name in ("each", "turns"):
            said = look("actor.rollout_policy", f"yielding_policies.{name}", POLICY, [])
            assert said is not None and said.endswith(
                "yields, and one RolloutResult is expected; return it instead"
            )
        assert look("actor.rollout_policy", "yielding_policies.whole", POLICY, []) is None


def test_a_folder_without_weights(tmp_path: Path, refused: Started) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(COUNTING, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    assert f"model_path={bare}: no weights in it" in refused("+domain=counting", f"model_path={bare}")


def test_a_folder_of_a_run_is_named_with_its_model(tmp_path: Path, refused: Started) -> None:
    model = tmp_path / "mine/finetune/current"
    shutil.copytree(COUNTING, model)
    for folder in (tmp_path / "mine", tmp_path / "mine/finetune"):
        line = refused("+domain=counting", f"model_path={folder}")
        assert f"no config.json in it; it is of a run, whose model is model_path={model}" in line


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model_type", "qwen99", "config.json says model_type=qwen99, which is unknown"),
        ("vocab_size", 299, "has shape [300, 96], config.json wants [299, 96]"),
        ("hidden_size", 192, "has shape [300, 96], config.json wants [300, 192]"),
        ("model_type", None, "config.json has no model_type; save the model again"),
        ("model_type", "llama", "config.json has no vocab_size; save the model again"),
        ("hidden_size", None, "has shape [300, 96], config.json wants [300, 4096]"),  # that of its type
        ("hidden_act", "sillu", 'hidden_act="sillu", which the installed transformers does not know'),
        ("rope_parameters", {"rope_type": "yarnn", "factor": 2.0}, 'rope_type of rope_parameters="yarnn"'),
        ("rope_scaling", {"type": "yarnn", "factor": 2.0}, 'rope_type of rope_scaling="yarnn"'),
        ("dtype", "bfloat61", 'dtype="bfloat61", which is none of bfloat16, float16'),
        ("eos_token_id", "1", 'eos_token_id="1", which is no token id and no list of them'),
        ("eos_token_id", [1, None], "eos_token_id=[1, null], which is no token id"),
    ],
)
def test_a_config_that_does_not_fit_its_model(
    key: str, value: object, said: str, tmp_path: Path, refused: Started
) -> None:
    model = shutil.copytree(COUNTING, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    changed = config | {key: value}
    if value is None or "no vocab_size" in said:  # transformers has a vocabulary for Qwen3's type
        changed.pop(key if value is None else "vocab_size")
    (model / "config.json").write_text(json.dumps(changed))
    assert said in refused("+domain=counting", f"model_path={model}")


NAN = float("nan")
FEW = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
WRONG_FIELDS = [
    ("qwen3", "hidden_size", "4096", "a whole number"),
    ("qwen3", "hidden_size", [4096], "a whole number"),
    ("qwen3", "hidden_size", 4096.5, "a whole number"),
    ("qwen3", "hidden_size", True, "a whole number"),
    ("qwen3", "hidden_size", -4096, "above 0"),
    ("qwen3", "hidden_size", 0, "above 0"),
    ("qwen3", "num_attention_heads", None, "a whole number"),
    ("qwen3", "num_key_value_heads", "8", "a whole number or null"),
    ("qwen3", "num_key_value_heads", -8, "above 0"),
    ("qwen3", "num_hidden_layers", "32", "a whole number"),
    ("qwen3", "vocab_size", NAN, "a whole number"),
    ("qwen3", "head_dim", None, "a whole number"),
    ("qwen3", "rms_norm_eps", "1e-6", "a finite number"),
    ("qwen3", "rms_norm_eps", NAN, "a finite number"),
    ("qwen3", "rms_norm_eps", -1e-6, "0 or more"),
    ("qwen3", "max_position_embeddings", "32768", "a whole number"),
    ("qwen3", "tie_word_embeddings", "false", "true or false"),
    ("qwen3", "tie_word_embeddings", 0, "true or false"),
    ("qwen3", "rope_parameters", "default", "an object or null"),
    ("qwen3", "rope_parameters.rope_theta", "1000000", "a finite number or null"),
    ("qwen3", "rope_parameters.rope_theta", NAN, "a finite number or null"),
    ("qwen3", "rope_parameters.rope_theta", -1.0, "above 0"),
    ("qwen3", "layer_types", "full_attention", "a list, each of it a text or null"),
    ("qwen3", "layer_types", [1] * 4, "a list, each of it a text or null"),
    ("qwen3", "attention_bias", "no", "true or false"),
    ("qwen3", "quantization_config", [], "an object or null"),
    ("qwen3", "hidden_act", ["silu"], "a text"),
    ("qwen3", "model_type", 3, "a text or null"),
    ("llama", "rope_scaling", [8.0], "an object or null"),
    ("llama", "rope_scaling", {"rope_type": "linear", "factor": "8"}, "a finite number or null"),
    ("llama", "rope_theta", "500000", "a finite number or null"),
    ("llama", "intermediate_size", -1, "0 or more"),
    ("gemma3", "text_config", [1], "an object or null"),
    ("gemma3", "text_config.hidden_size", "2560", "a whole number"),
    ("gemma3", "text_config.sliding_window", -1024, "0 or more"),
    ("gemma3", "text_config.query_pre_attn_scalar", NAN, "a whole number"),
    ("gemma3", "text_config.rope_parameters.full_attention.rope_theta", "x", "a finite number or null"),
    ("gemma3", "vision_config.hidden_size", "1152", "a whole number"),
    ("qwen3_moe", "num_experts", "128", "a whole number"),
    ("qwen3_moe", "num_experts_per_tok", [8], "a whole number"),
    ("qwen3_moe", "mlp_only_layers", 5, "a list, each of it a whole number or null"),
    ("qwen3_moe", "decoder_sparse_step", 0, "above 0"),
    ("deepseek_v3", "kv_lora_rank", "512", "a whole number"),
    ("deepseek_v3", "q_lora_rank", [1536], "a whole number or null"),
    ("deepseek_v3", "qk_rope_head_dim", -64, "0 or more"),
    ("deepseek_v3", "first_k_dense_replace", "3", "a whole number or null"),
    ("deepseek_v3", "routed_scaling_factor", "2.5", "a finite number"),
]


def described(kind: str) -> dict[str, Any]:
    """The `config.json` of a model of this type with four layers."""
    from transformers import CONFIG_MAPPING

    sizes: dict[str, Any] = {"text_config": FEW, "vision_config": {}} if kind == "gemma3" else FEW
    written: dict[str, Any] = json.loads(CONFIG_MAPPING[kind](**sizes).to_json_string(use_diff=False))
    return written


@pytest.mark.parametrize(("kind", "key", "value", "why"), WRONG_FIELDS)
def test_a_field_that_no_model_can_have_is_named(
    kind: str, key: str, value: object, why: str, tmp_path: Path
) -> None:
    from transformers import CONFIG_MAPPING

    config = described(kind)
    assert list(config_fields.problems(tmp_path, config)) == []
    section, (*within, name) = config, key.split(".")
    for one in within:
        section = section[one]
    section[name] = value
    (line,) = config_fields.problems(tmp_path, config)
    check_one_line(line, f"model_path={tmp_path}: config.json says {key}")
    assert f", which has to be {why}; correct it" in line
    declares_it = name not in ("model_type", "rope_theta", "rope_scaling", "quantization_config")
    if why not in ("above 0", "0 or more") and declares_it and value == value:
        with pytest.raises(Exception, match=name):  # transformers would say so when it loads the model
            CONFIG_MAPPING[kind](**config)


@pytest.mark.parametrize("key", ["layer_types", "mlp_layer_types"])
def test_layers_of_another_number_than_their_kinds_are_named(key: str, tmp_path: Path) -> None:
    config = described("deepseek_v3") | {key: ["full_attention" if key == "layer_types" else "dense"] * 3}
    (line,) = config_fields.problems(tmp_path, config)
    assert line.endswith(f"config.json has 3 {key} for num_hidden_layers=4; correct one")


def test_heads_that_do_not_share_keys_evenly_are_named(tmp_path: Path) -> None:
    (line,) = config_fields.problems(tmp_path, described("qwen3") | {"num_key_value_heads": 3})
    assert "num_key_value_heads=3, which does not divide num_attention_heads=8; correct it" in line


def test_what_is_published_or_transformers_writes_for_a_type_of_models_is_accepted(tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING

    for name, published in HUB.items():
        assert list(config_fields.problems(tmp_path, published)) == [], name
    for kind in (*DEFAULTS, *TRAINED_TOO):
        for use_diff in (True, False):
            config = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=use_diff))
            assert list(config_fields.problems(tmp_path, config)) == [], kind


def test_every_activation_and_kind_of_positions_of_transformers_is_accepted(tmp_path: Path) -> None:
    from transformers.activations import ACT2CLS
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    said = [line for name in ACT2CLS for line in _names(tmp_path, {"hidden_act": name})]
    for kind in ("default", *ROPE_INIT_FUNCTIONS):
        by_layer = {"full_attention": {"rope_type": kind}, "sliding_attention": {"rope_type": "default"}}
        for given in ({"rope_type": kind, "factor": 2.0}, by_layer):
            said += _names(tmp_path, {"rope_parameters": given, "torch_dtype": "float16"})
    assert said == []


def test_a_hub_name_that_nobody_can_reach(refused: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    hub.silence.cache_clear()
    line = refused("+domain=counting", "model_path=nobody/made-this")
    hub.silence.cache_clear()
    assert "127.0.0.1 does not answer" in line
    assert "hf download nobody/made-this --local-dir DIR, then set model_path=DIR" in line


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", None, "no weights in it"),
        ("model.safetensors", "cut", "model.safetensors has 3 bytes"),
        ("tokenizer.json", None, "no tokenizer.json in it"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not valid JSON"),
        (
            "generation_config.json",
            '{"eos_token_id": "two"}',
            'generation_config.json says eos_token_id="two"',
        ),
        ("config.json", "hidden_size", "they belong to different models"),
        ("chat_template.jinja", None, "has no chat template; add one"),
        ("chat_template.jinja", "{% for x in %}", "its chat template refuses a first prompt"),
    ],
)
def test_what_is_wrong_with_a_folder_s_model_is_wrong_with_a_hub_s_in_the_cache(
    file: str,
    content: str | None,
    message: str,
    tmp_path: Path,
    refused: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "somebody/guesser")
    shutil.copytree(GUESSING, snapshot, dirs_exist_ok=True)
    if content == "hidden_size":
        content = json.dumps(json.loads((snapshot / file).read_text()) | {content: 64})
    (snapshot / file).unlink()
    if content is not None:
        (snapshot / file).write_text(content)
    line = refused("+domain=guessing", "model_path=somebody/guesser")
    assert line.startswith("launcher: model_path=somebody/guesser: ") and message in line
    if "template" not in file:
        assert (
            f"it is in {snapshot}, and hf download somebody/guesser --force-download --local-dir DIR" in line
        )


def test_what_a_hub_s_model_lacks_in_the_cache_is_fetched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was looked at before has its `config.json` there and nothing else."""
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "somebody/guesser")
    shutil.copy2(GUESSING / "config.json", snapshot)
    cfg = typed(compose(["+domain=guessing", "hardware=cpu", "model_path=somebody/guesser"]).tree)
    assert len(list(data.model_problems(cfg))) == 2, "neither a tokenizer nor weights, and nobody to ask"
    assert list(data.model_problems(cfg, dry_run=True)) == []
    monkeypatch.setattr(hub, "silence", lambda: None)
    assert list(data.model_problems(cfg)) == []
    (snapshot / "config.json").write_text("[]")
    (line,) = data.model_problems(cfg)
    assert "config.json holds a list, not an object" in line


@pytest.mark.parametrize("domain", ["counting", "guessing", "raro", "reputation_hacking"])
def test_a_tokenizer_without_a_chat_template(domain: str, tmp_path: Path, refused: Started) -> None:
    """Also where the domain makes data of its own before a start, as `raro` does."""
    model = tmp_path / "bare"
    shutil.copytree(ROOT / "domains" / domain / "checkpoint", model, ignore=shutil.ignore_patterns("*.jinja"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    line = refused(f"+domain={domain}", f"model_path={model}")
    assert f"model_path={model}: tokenizer" in line and "has no chat template; add one" in line


class Asked(Exception):
    """Carries the first prompt of a rollout."""


@pytest.mark.parametrize(
    ("domain", "asks"),
    [
        ("guessing", "domains.guessing.stepwise"),
        ("raro", "domains.raro.calls"),
        ("reputation_hacking", "domains.reputation_hacking.language.rollout"),
    ],
)
async def test_a_domain_tells_the_prompt_that_its_rollout_asks(
    domain: str, asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = compose([f"+domain={domain}", "hardware=cpu", f"output_dir={tmp_path}"]).tree
    tree = OmegaConf.create(OmegaConf.to_container(tree, resolve=True))
    (problem, *_), _ = load_problems(typed(tree))

    async def ask(llm: Any, prompt: Any, *_: Any, **__: Any) -> None:
        raise Asked(prompt.messages)

    monkeypatch.setattr(f"{asks}.llm_async_generate", ask)
    policy = resolve_dotted(str(tree.actor.rollout_policy), "actor.rollout_policy")
    with pytest.raises(Asked) as asked:
        await policy(tree, None, problem, None)
    assert load_domain(tree.domain_hooks).first_messages(tree, problem) == asked.value.args[0]


async def test_the_agent_tells_the_plan_that_a_chain_begins_with() -> None:
    script = agent.Script()
    await agent.play(script)
    assert first_plan(agent.TWO_HOPS, agent.settings()).messages == script.requests[0].prompt.messages


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}{{ m.content", "unexpected end of template"),
        ("{{ raise_exception('no system here') }}", "no system here"),
    ],
)
def test_a_chat_template_that_takes_no_prompt(
    template: str, why: str, tmp_path: Path, refused: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "look", looked_here)
    model = tmp_path / "odd"
    shutil.copytree(COUNTING, model, ignore=shutil.ignore_patterns("*.jinja"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    line = refused("+domain=counting", f"model_path={model}")
    assert f"model_path={model}: its chat template refuses a first prompt: {why}" in line


LOADS = "def load(names): return [{'question': 'q'}]"


def test_a_tokenizer_that_the_workers_cannot_read(tmp_path: Path, refused: Started) -> None:
    model = tmp_path / "slow"
    shutil.copytree(COUNTING, model, ignore=shutil.ignore_patterns("tokenizer.json"))
    line = refused("+domain=counting", f"model_path={model}")
    assert f"model_path={model}: no tokenizer.json in it; save the model with a fast tokenizer" in line


def test_a_template_is_looked_at_where_the_domain_tells_no_prompt(
    tmp_path: Path,
    refused: Started,
    own: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One without a template may play by token ids; one that is no template plays nothing."""
    monkeypatch.setattr(start, "look", looked_here)

    def model(name: str, template: str | None) -> Path:
        folder = tmp_path / name
        shutil.copytree(GUESSING, folder, ignore=shutil.ignore_patterns("*.jinja"))
        settings = json.loads((GUESSING / "tokenizer_config.json").read_text()) | {"chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder

    for name, template, said in (
        ("bare", None, "; the model has no chat template, so prompts of messages fail"),
        ("strict", "{{ raise_exception('no hi here') }}", ""),
    ):
        cfg = cast(Any, SimpleNamespace(model_path=str(model(name, template))))
        assert rehearsal._without_template(cfg).startswith(said)
    names = ["train_dataset_names=[a]", "test_dataset_names=[b]"]
    broken = model("broken", "{% for x in %}")
    line = refused(*own(LOADS), *names, f"model_path={broken}")
    assert f"model_path={broken}: its chat template is none: Expected an expression" in line


def test_a_link_to_weights_that_are_gone(tmp_path: Path, refused: Started) -> None:
    model = tmp_path / "cleared"
    shutil.copytree(COUNTING, model)
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../blobs/0a1b")
    line = refused("+domain=counting", f"model_path={model}")
    assert "model.safetensors is a link to ../blobs/0a1b, which is not there" in line


def test_a_prompt_that_fills_the_context(refused: Started) -> None:
    told = "how many letters " * 400
    few = ["dataset_loader_params.count=20", "dataset_loader_params.test_count=3"]  # each is encoded
    line = refused("+domain=counting", *few, f"actor.system_prompt='{told}'")
    assert "engine.max_model_len=256: no prompt fits, the shortest of" in line


def test_a_validation_shows_the_table_of_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = tmp_path / "run"
    given = ["dataset_loader_params.count=30", "dataset_loader_params.test_count=7"]
    kinds = "dataset_loader_params.kinds=[letters]"
    assert (
        main(["+domain=counting", "hardware=cpu", f"output_dir={run}", "validate=true", kinds, *given]) == 0
    )
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "problems 30 to train on, 7 to evaluate" in out and "the configuration is valid" in out
    assert "output folder" in out and not run.exists()
    assert "dataset train_counting_problems: generated questions, as data_dir names no folder" in out


def test_a_module_that_defines_nothing_is_not_said_to_allow_no_key() -> None:
    (line,) = dotted("dataset_loader", "domains.multidomain.load_problems", "a loader")
    assert line.endswith(
        "domains.multidomain has no load_problems; it defines nothing that could be named here"
    )


def test_names_that_load_on_first_use_are_offered() -> None:
    (line,) = dotted("environment._target_", "domains.coding.CodingSandboxEnvironment", "an environment")
    assert "domains.coding has no CodingSandboxEnvironment" in line and "generate_coding_rollout" in line
