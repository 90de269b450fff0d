"""The recipe of a small model: tokens, packs, workers, gates, and a whole run on a toy domain."""

import copy
import hashlib
import itertools
import json

import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipelinerl.extras.bootstrap.__main__ as bootstrap
from pipelinerl.base.tokenizing import render_chat
from pipelinerl.config.bootstrap import BootstrapConfig, PhaseConfig, ShapeConfig
from pipelinerl.extras.bootstrap import packs
from pipelinerl.extras.bootstrap.demonstrations import Demonstration, Encoded, encode, shuffled
from pipelinerl.extras.bootstrap.formats import ASSISTANT, END, SPECIAL_TOKENS, USER, chat_format
from pipelinerl.extras.bootstrap.gates import measured
from pipelinerl.extras.bootstrap.packs import PackStream, loader, pack
from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from pipelinerl.rollouts import MASKED_TOKEN_ID as MASKED
from tests.support.one_line import check_one_line
from tests.support.toy_demonstrations import broken, deadly, toy

SKELETON = ('{"answer":"', '"}', "d1", "d2")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((d.prompt + d.completion for d in toy(0, "clean")), 400, SKELETON)


def test_digits_and_skeletons_are_single_tokens(tokenizer):
    ids = tokenizer.encode('{"answer":" 15%"}', add_special_tokens=False)
    tokens = [tokenizer.decode([i]) for i in ids]
    assert tokens[0] == '{"answer":"' and tokens[-1] == '"}'
    assert "1" in tokens and "5" in tokens and "15" not in "".join(t for t in tokens if len(t) > 2)


def test_short_names_are_whole_words_only(tokenizer):
    one = tokenizer.convert_tokens_to_ids("d1")
    assert one in tokenizer.encode("see d1 now", add_special_tokens=False)
    assert one not in tokenizer.encode("id1 or d12", add_special_tokens=False)


@pytest.mark.parametrize("text", ["plain text", "15% of “stores”", "tab\tand\nline", "naïve café d1"])
def test_decoding_gives_the_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_chat_template_is_what_demonstrations_are_encoded_with(tokenizer):
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == USER + "hi" + ASSISTANT
    assert tokenizer.eos_token == END
    assert all(len(tokenizer.encode(t, add_special_tokens=False)) == 1 for t in SPECIAL_TOKENS)


def test_a_vocabulary_that_cannot_hold_the_bytes_is_refused():
    with pytest.raises(ValueError, match="vocab_size=250 is too small"):
        train_tokenizer(["text"], 250, SKELETON)


def test_only_answers_are_learned_unless_prompts_have_a_weight(tokenizer):
    fast = tokenizer.backend_tokenizer
    demonstration = Demonstration("echo", "the plan is 15%", '{"answer":" 15%"}')
    (plain,) = encode(fast, [demonstration], 100, prompt_loss=0.0)
    (shared,) = encode(fast, [demonstration], 100, prompt_loss=0.25)
    answer = fast.encode(demonstration.completion + END).ids
    assert list(plain.input_ids[-len(answer) :]) == answer
    assert list(plain.labels[-len(answer) :]) == answer
    assert (plain.labels[: -len(answer)] == MASKED).all()
    assert (shared.labels[1:] == shared.input_ids[1:]).all() and shared.labels[0] == MASKED
    assert set(shared.weights[: -len(answer)]) == {0.25} and set(shared.weights[-len(answer) :]) == {1.0}


def test_a_demonstration_that_does_not_fit_is_an_error(tokenizer):
    with pytest.raises(ValueError, match=r"'echo' demonstration has .* max_length is 5"):
        list(encode(tokenizer.backend_tokenizer, toy(0, "clean"), 5, prompt_loss=0.0))


def test_packs_hold_every_sequence_once_in_order(tokenizer):
    sequences = list(encode(tokenizer.backend_tokenizer, toy(1, "clean"), 100, prompt_loss=0.0))
    rows = list(pack(sequences, 64))
    assert all(len(p.input_ids) <= 64 and p.lengths.sum() == len(p.input_ids) for p in rows)
    joined = np.concatenate([p.input_ids for p in rows])
    assert (joined == np.concatenate([s.input_ids for s in sequences])).all()


def first_packs(source, folder, workers: int = 1, count: int = 1):
    """The first rows of world 5 on that worker processes make."""
    stream = PackStream(source, "clean", folder / "tokenizer.json", 5, 256, 100, 0.0)
    return list(itertools.islice(loader(stream, workers), count))


@pytest.fixture
def folder(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def forks(monkeypatch):
    """Workers are forks, which import nothing; elsewhere they are started as users' are."""
    forked = {"multiprocessing_context": "fork"}
    monkeypatch.setattr(packs, "DataLoader", lambda *own, **how: DataLoader(*own, **how | forked))


@pytest.mark.slow
def test_workers_take_turns_with_the_packs_of_their_seeds(tokenizer, folder):
    for first, found in zip((5, 6), first_packs(toy, folder, workers=2, count=2), strict=True):
        made = (d for world in itertools.count(first, 2) for d in toy(world, "clean"))
        sequences = encode(tokenizer.backend_tokenizer, made, 100, 0.0)
        expected = next(pack(shuffled(sequences, np.random.default_rng((first, 7))), 256))
        assert (found.input_ids == expected.input_ids).all()


def test_sequences_of_one_world_are_trained_far_from_each_other(tokenizer):
    worlds = 40
    sequences = [
        Encoded(np.full(1, world, np.int32), np.zeros(1, np.int32), np.ones(1, np.float32))
        for world in range(worlds)
        for _ in range(100)
    ]
    given = [s.input_ids[0] for s in shuffled(sequences, np.random.default_rng(0), first=400, most=2000)]
    assert sorted(given) == [s.input_ids[0] for s in sequences]
    middle = given[1000:2000]
    same_neighbour = sum(a == b for a, b in itertools.pairwise(middle)) / len(middle)
    assert same_neighbour < 0.15 and len(set(middle[:100])) >= 10


def test_a_worker_that_fails_is_named_at_once(folder):
    with pytest.raises(ValueError, match="no world 5"):
        first_packs(broken, folder)


def test_a_worker_that_dies_is_named_at_once(folder, forks):
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        first_packs(deadly, folder)


def test_gates_measure_the_fixed_beginning_of_an_answer_that_ends_freely(tokenizer):
    fast = tokenizer.backend_tokenizer
    free = Demonstration("plan", "cold?", "store growth", fixed="store")
    whole = Demonstration("echo", "cold?", "store growth")
    labels = [one.labels[one.labels != MASKED].tolist() for one in measured(fast, [free, whole], 64)]
    assert labels == [fast.encode("store").ids, fast.encode("store growth" + END).ids]


def test_a_run_trains_measures_and_saves(tmp_path, monkeypatch, forks):
    from transformers import AutoModelForCausalLM

    from pipelinerl.extras.bootstrap import recipe as recipes

    for name in ("_REPORTS", "_PROBES"):  # each has a validation loss
        monkeypatch.setattr(recipes, name, 2)
    recipe = BootstrapConfig(
        vocab_size=380,
        tokenizer_texts=200,
        shape=ShapeConfig(hidden=48, layers=2, heads=2, kv_heads=1, head_dim=24, mlp=96, max_length=64),
        phases=[
            PhaseConfig(name="clean", tokens=36_000, prompt_loss=0.1),
            PhaseConfig(name="mixture", tokens=8_000),
        ],
        workers=1,
        pack_tokens=512,
        learning_rate=6e-3,
        gate_demonstrations=100,
        gates={"echo": 0.5, "unseen": 0.5},
    )
    results = {r.kind: r for r in recipes.run(recipe, SKELETON, toy, tmp_path, log=lambda line: None)}
    assert results["echo"].accuracy > 0.8 and results["echo"].count == 100
    assert results["unseen"].accuracy == 0.0 and not results["unseen"].passed
    record = json.loads((tmp_path / "recipe.json").read_text())
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert record["sha256"] == hashlib.sha256(weights).hexdigest()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.tie_word_embeddings and 300 < model.config.vocab_size <= 380
    assert record["validation_loss"] < 2.0 and not (tmp_path / "training.pt").exists()

    more = {
        "start": str(tmp_path),
        "checkpoint_steps": 4,
        "learning_rate": 1e-4,
        "phases": [PhaseConfig(name="clean", tokens=4_000)],
    }
    longer, out = recipe.model_copy(update=more), tmp_path / "longer"
    results = {r.kind: r for r in recipes.run(longer, SKELETON, toy, out, log=lambda line: None)}
    assert results["echo"].accuracy > 0.8  # so it did begin with these weights
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()
    assert not (out / "training.pt").exists() and not (out / "unfinished").exists()

    def stopped(seed, phase):
        if seed < recipes.TOKENIZER_SEED:
            raise ValueError("stopped")
        yield from toy(seed, phase)

    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = recipe.model_copy(update={"vocab_size": 330})
    with pytest.raises(ValueError, match="stopped"):
        recipes.run(other, SKELETON, stopped, out, log=lambda line: None)
    now = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert now == before, "the earlier model keeps its tokenizer"


def test_a_recipe_does_not_overwrite_a_model_that_none_made(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    given = ["+domain=guessing", "hardware=cpu", f"bootstrap.out={tmp_path}", "validate=true"]
    assert bootstrap.main(given) == 2
    said = f"bootstrap: bootstrap.out={tmp_path}: holds a model that no recipe made; give another folder"
    check_one_line(capsys.readouterr().err, said)
    (tmp_path / "recipe.json").write_text("{}")
    assert bootstrap.main(given) == 0


def test_a_recipe_makes_the_model_that_a_run_on_gpus_would_be_asked_for(tmp_path, capsys):
    given = ["+domain=fn_calling", "hardware=gpu", f"bootstrap.out={tmp_path / 'made'}", "validate=true"]
    assert bootstrap.main([*given, "bootstrap.phases=[{name: exact, tokens: 1000}]"]) == 0
    assert capsys.readouterr().out == f"the recipe is valid; bootstrap.out={tmp_path / 'made'}\n"


def test_a_pretrained_models_dialogue_is_what_an_engine_is_sent(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.chat_template = (
        "{% for m in messages %}{% if loop.first %}system: be kind\n{% endif %}"
        "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    chat = chat_format(other)
    prompt = "how much is plan 7?\nin %"
    (made,) = encode(other.backend_tokenizer, [Demonstration("echo", prompt, "15%")], 200, 0.0, chat)
    sent = other.backend_tokenizer.encode(render_chat(other, [{"role": "user", "content": prompt}])).ids
    answer = other.backend_tokenizer.encode("15%" + END).ids
    assert made.input_ids.tolist() == sent + answer
    assert made.labels.tolist() == [MASKED] * len(sent) + answer
    other.chat_template = "nothing"
    with pytest.raises(ValueError, match="does not keep the user's message"):
        chat_format(other)
