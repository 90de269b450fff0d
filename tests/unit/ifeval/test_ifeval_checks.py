"""Every instruction: what follows it passes, what violates it fails, and the edge cases are decided."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.ifeval.forms import TWO
from domains.ifeval.instructions import CHECKS, arguments_of, contradiction, follows, judge, variants
from domains.ifeval.language import LANGUAGES, language_of
from domains.ifeval.text import capital_words, sentences
from domains.ifeval.verifier_api import verify_answer
from domains.ifeval.writing import LANGUAGES as SAMPLES
from domains.ifeval.writing import WRITINGS, body, response_of, write

SEEDS = st.integers(0, 10**9)
Violation = Callable[[str, dict[str, Any]], str]


def repeat(unit: str, kwargs: dict[str, Any], count: str, relation: str = "relation", by: str = " ") -> str:
    """One too few where at least some are asked for, just as many where less are."""
    wanted = kwargs[count] - (kwargs.get(relation, "at least") == "at least")
    return by.join([unit] * wanted) or "-"


VIOLATIONS: dict[str, Violation] = {
    "keywords:existence": lambda text, k: k["keywords"][0],
    "keywords:frequency": lambda text, k: repeat(k["keyword"], k, "frequency"),
    "keywords:forbidden_words": lambda text, k: f"{text} ({k['forbidden_words'][-1].upper()})",
    "keywords:letter_frequency": lambda text, k: repeat(k["letter"], k, "let_frequency", "let_relation"),
    "language:response_language": lambda text, k: SAMPLES["de" if k["language"] != "de" else "fr"],
    "length_constraints:number_sentences": lambda text, k: repeat("It is.", k, "num_sentences"),
    "length_constraints:number_paragraphs": lambda text, k: "\n***\n".join(
        [text] * (k["num_paragraphs"] + 1)
    ),
    "length_constraints:number_words": lambda text, k: repeat("word", k, "num_words"),
    "length_constraints:nth_paragraph_first_word": lambda text, k: "\n\n".join(
        [f"So, {text}"] * k["num_paragraphs"]
    ),
    "detectable_content:number_placeholders": lambda text, k: (
        f"{text} {'[a] ' * (k['num_placeholders'] - 1)}["
    ),
    "detectable_content:postscript": lambda text, k: f"{text} PS: so.",
    "detectable_format:number_bullet_lists": lambda text, k: repeat("* so", k, "num_bullets", by="\n"),
    "detectable_format:constrained_response": lambda text, k: "My answer is yes",
    "detectable_format:number_highlighted_sections": lambda text, k: (
        repeat("*so*", k, "num_highlights") + " **  **"
    ),
    "detectable_format:multiple_sections": lambda text, k: repeat(
        f"{k['section_spliter']} 1 so", k, "num_sections"
    ),
    "detectable_format:json_format": lambda text, k: '{"text": so}',
    "detectable_format:title": lambda text, k: f"<< >>\n<title>\n{text}",
    "combination:two_responses": lambda text, k: f"{text}\n{TWO}\n{text}",
    "startend:end_checker": lambda text, k: f"{k['end_phrase']} {text}",
    "startend:quotation": lambda text, k: f'"{text}',
    "change_case:capital_word_frequency": lambda text, k: repeat(
        "VERY", k, "capital_frequency", "capital_relation"
    ),
    "change_case:english_capital": lambda text, k: text.upper() + "a",
    "change_case:english_lowercase": lambda text, k: text.lower() + "A",
    "punctuation:no_comma": lambda text, k: f"{text},",
}


@pytest.mark.parametrize("name", WRITINGS)
@settings(max_examples=20)
@given(seed=SEEDS)
def test_what_is_built_to_follow_passes_and_what_violates_fails(name: str, seed: int) -> None:
    rng = random.Random(seed)
    kwargs, text = WRITINGS[name].draw(rng), body(rng, "rivers")
    assert follows(name, kwargs, response_of(text, [name], [kwargs])), kwargs
    assert not follows(name, kwargs, VIOLATIONS[name](text, kwargs)), kwargs


@settings(max_examples=40)
@given(prompt=st.text(min_size=1).filter(lambda text: text.strip()), answer=st.text())
def test_the_prompt_is_repeated_or_not(prompt: str, answer: str) -> None:
    kwargs = {"prompt_to_repeat": prompt}
    assert follows("combination:repeat_prompt", kwargs, f" {prompt} {answer}")
    assert not follows("combination:repeat_prompt", kwargs, f"\0{answer}")


@settings(max_examples=40)
@given(seed=SEEDS)
def test_a_generated_prompt_can_be_followed(seed: int) -> None:
    one = write(random.Random(seed), list(WRITINGS), 4)
    assert all(judge(one.names, one.kwargs, one.response).strict) and len(set(one.names)) == len(one.names)
    assert all(WRITINGS[name].said(kwargs) in one.prompt for name, kwargs in zip(one.names, one.kwargs))


@settings(max_examples=25)
@given(
    response=st.text(alphabet=st.sampled_from('aA .,!?*-#<>[]"\n1{}\u00e9\u3042'), max_size=60), seed=SEEDS
)
def test_any_response_has_a_verdict_and_what_is_followed_strictly_is_followed_loosely(
    response: str, seed: int
) -> None:
    names = list(WRITINGS)
    found = judge(names, [WRITINGS[name].draw(random.Random(seed)) for name in names], response)
    assert all(loose or not strict for strict, loose in zip(found.strict, found.loose))
    if not response.strip():
        assert not any(found.strict)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three?", 3),
        ("Really?! Yes... No", 3),
        ("Dr. Smith lives on St. Mark's Rd. in Bern.", 2),
        ("J. K. Rowling wrote it, e.g. the first one.", 1),
        ("It costs 3.50 at shop.example.com today.", 1),
        ('He said "Stop." Then he left.', 2),
        ("# Title\n\nText. More text", 3),
        ("1. First\n2. Second\n- third", 3),
        ("so did I. We left.", 2),
        ("\u732b\u3067\u3059\u3002\u72ac\u3067\u3059\u3002", 2),
        ("...", 0),
        ("", 0),
    ],
)
def test_sentences_are_split(text: str, count: int) -> None:
    assert len(sentences(text)) == count, sentences(text)


@pytest.mark.parametrize(
    ("name", "kwargs", "response", "right"),
    [
        ("keywords:existence", {"keywords": ["art"]}, "a PARTY", True),
        ("keywords:forbidden_words", {"forbidden_words": ["art"]}, "a party", True),
        ("keywords:forbidden_words", {"forbidden_words": ["c++"]}, "I like C++.", False),
        ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', True),
        ("detectable_format:json_format", {}, '{"a": NaN}', False),
        ("detectable_format:json_format", {}, "[" * 100_000, False),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "**bold**\n* one", True),
        ("detectable_content:postscript", {"postscript_marker": "P.S."}, "so\np. s. more", True),
        ("detectable_format:title", {}, "<<a\nb>>", False),
        ("startend:quotation", {}, '"', False),
        ("startend:end_checker", {"end_phrase": "The end."}, '"so. THE END."', True),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb\n***", True),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a***\n***b", False),
        ("change_case:english_capital", {}, "12", False),
        ("change_case:english_lowercase", {}, "caf\u00e9 12", True),
        ("punctuation:no_comma", {}, "  \n", False),
        ("combination:two_responses", {}, f"{TWO}\na\n{TWO}\nb\n{TWO}", True),
        ("combination:two_responses", {}, f"a\n{TWO}{TWO}\nb", False),
    ],
)
def test_edge_cases_are_decided(name: str, kwargs: dict[str, Any], response: str, right: bool) -> None:
    assert follows(name, kwargs, response) is right


def test_the_loose_judgement_forgives_a_first_and_a_last_line_and_asterisks() -> None:
    response = 'Sure, here it is:\n"**So it is.**"\nI hope it helps.'
    found = judge(["startend:quotation", "punctuation:no_comma"], [{}, {}], response)
    assert (found.strict, found.loose) == ((False, False), (True, True))
    assert len(variants("a\nb")) == 8 and variants("*a*\nb\nc")[-1] == "b"


@pytest.mark.parametrize(
    "unit", ["[", "<<", "\n", "*", "** ", '"', "a.", "P. ", " \n", "- ", "A", "{", "***"]
)
def test_a_hostile_response_is_judged_in_linear_time(unit: str) -> None:
    rng, names = random.Random(0), list(WRITINGS)
    found = judge(names, [WRITINGS[name].draw(rng) for name in names], unit * 30_000)
    assert len(found.strict) == len(names)


def test_words_of_capital_letters() -> None:
    assert capital_words("I saw NASA's 3D-TV and A1 on TV, 42.") == 5
    assert capital_words("I'm here, it's Tom's: I\u2019ll see the CIA\u2019s A's") == 4


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # Words that two languages or more share, as often as any other: "a" is English and Portuguese.
        ("Nave bianca danza a riva", None),
        ("La", None),
        ("de la", None),
        ("I", None),
        ("No", None),
        ("Sol e mar", None),
        ("xyzzy", None),
        ("the \u044d\u0442\u043e", None),  # as many letters of either script
        # One word of a language says little: the next four are Dutch, Italian, Danish or German, and Serbian.
        ("Hallo wereld", None),
        ("Solo tu", None),
        ("Der Hund", None),
        ("Како си", None),
        ("Đoković", None),
        ("Der Hund ist da", "de"),
        # Languages that nobody asks for are not taken for one that somebody does.
        ("De man en de vrouw wonen in de stad en de kinderen gaan naar school", "nl"),
        ("Casa mea este mare și frumoasă, dar nu am bani", "ro"),
        ("Jag är här och du är där, men vi är inte tillsammans", "sv"),
        ("il est la", "fr"),
        ("I am here and you are there", "en"),
        # Letters of English contractions are words of Czech.
        ("That's John's car.", None),
        ("Here's a joke.", None),
        ("It's a trap!", "en"),
        ("Die hard fans die young.", None),
        ("C'est ici qu'il s'est assis.", "fr"),
        ("Ella come una pera.", "es"),
        # A letter of one language decides where no word does.
        ("Straße", "de"),
        ("MAÑANA", "es"),
        ("Łódź", "pl"),
        ("Corações", "pt"),
        ("Къща", "bg"),
        # Letters of two languages decide nothing: Vietnamese, Russian and Urdu, and two words of Persian.
        ("Rõ ràng", None),
        ("Объект на месте.", None),
        ("گرم پانی", None),
        ("تأسیس شرکت", None),
    ],
)
def test_a_tie_between_languages_is_no_decision(text: str, code: str | None) -> None:
    assert language_of(text) == code
    for asked in {code or "nl", "de", "en", "it"}:  # what is asked for is compared with that code
        verdict = verify_answer(text, {"instruction_id_list": ["language:response_language"],
                                       "kwargs": [{"language": asked}]})  # fmt: skip
        assert (verdict["answer_status"] == "correct") is (asked == code)


def test_what_nobody_can_tell_is_counted_and_not_followed() -> None:
    asked = {
        "instruction_id_list": ["language:response_language", "punctuation:no_comma"],
        "kwargs": [{"language": "it"}, {}],
    }
    counts = {
        text: verify_answer(text, asked)
        for text in ("Solo tu", "Questo è un testo", "I am here and you are there", "")
    }
    assert [one["undecided_count"] for one in counts.values()] == [1, 0, 0, 0]
    assert [one["followed_count"] for one in counts.values()] == [1, 2, 1, 0]


@pytest.mark.parametrize("kwargs", [[{}], [], None, [None, None], [{}, {}]])
def test_instructions_without_arguments_may_lack_them(kwargs: list[Any] | None) -> None:
    asked = {
        "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"],
        "kwargs": kwargs,
    }
    assert verify_answer("all small", asked)["answer_status"] == "correct"
    assert verify_answer("all, small", asked)["score"] == 0.5


# Everyday sentences that no list of words was made for, four of each language.
SHORT = {
    "fr": "Où est la gare ?|Les enfants jouent dans le jardin.|Il fait froid aujourd'hui.|"
    "Nous partirons demain matin.",
    "de": "Das Wetter ist heute schön.|Wo liegt der Bahnhof?|Morgen fahren wir nach Berlin.|"
    "Kinder spielen im Garten.",
    "es": "¿Dónde está la biblioteca?|Los niños juegan en el jardín.|Hoy hace frío.|Mañana salimos temprano.",
    "it": "Dove si trova la stazione?|I bambini giocano nel giardino.|Oggi fa freddo.|"
    "Domani partiamo presto.",
    "pt": "Onde fica a estação?|As crianças brincam no jardim.|Hoje está frio.|Amanhã partimos cedo.",
    "pl": "Gdzie jest dworzec?|Dzieci bawią się w ogrodzie.|Dzisiaj jest zimno.|Jutro wyjeżdżamy.",
    "fi": "Missä rautatieasema on?|Lapset leikkivät puutarhassa.|Tänään on kylmä.|Lähdemme huomenna.",
    "sw": "Kituo cha treni kiko wapi?|Watoto wanacheza katika bustani.|Leo ni baridi.|Tutaondoka kesho.",
    "vi": "Nhà ga ở đâu?|Trẻ em chơi trong vườn.|Hôm nay trời lạnh.|Ngày mai chúng tôi đi.",
    "ru": "Где находится вокзал?|Дети играют в саду.|Сегодня холодно.|Завтра мы уезжаем.",
    "uk": "Де знаходиться вокзал?|Діти граються в саду.|Сьогодні холодно.|Завтра ми їдемо.",
    "bg": "Къде е гарата?|Децата играят в градината.|Днес е студено.|Утре тръгваме.",
    "ar": "أين تقع المحطة؟|يلعب الأطفال في الحديقة.|الجو بارد اليوم.|سنغادر غدا.",
    "fa": "ایستگاه کجاست؟|بچه‌ها در باغ بازی می‌کنند.|امروز هوا سرد است.|فردا می‌رویم.",
    "ur": "اسٹیشن کہاں ہے؟|بچے باغ میں کھیل رہے ہیں۔|آج سردی ہے۔|ہم کل جائیں گے۔",
    "hi": "स्टेशन कहाँ है?|बच्चे बगीचे में खेल रहे हैं।|आज ठंड है।|हम कल जाएँगे।",
    "mr": "स्टेशन कुठे आहे?|मुले बागेत खेळत आहेत.|आज थंडी आहे.|आम्ही उद्या निघू.",
    "ne": "स्टेशन कहाँ छ?|बच्चाहरू बगैंचामा खेलिरहेका छन्।|आज जाडो छ।|हामी भोलि जान्छौं।",
    "en": "Where is the station?|Children play in the garden.|Today is cold.|We leave tomorrow.",
}
GREETINGS = {
    "fr": "Bonjour, comment ça va ?", "de": "Guten Tag, wie geht es Ihnen?", "es": "Hola, ¿cómo estás?",
    "it": "Buongiorno a tutti", "pt": "Obrigado pela sua ajuda", "fi": "Kiitos paljon", "pl": "Dzień dobry",
    "sw": "Asante sana", "vi": "Xin chào, bạn khỏe không?", "ru": "Спасибо большое", "uk": "Дякую дуже",
    "bg": "Добър ден", "ar": "مرحبا كيف حالك", "hi": "नमस्ते, आप कैसे हैं?", "mr": "तुम्ही कसे आहात?",
    "en": "Hello, how are you?",
}  # fmt: skip


def test_a_short_text_is_of_its_language_or_of_none() -> None:
    found = {text: (language_of(text), code) for code, texts in SHORT.items() for text in texts.split("|")}
    assert len(found) == 76
    wrong = {text: pair for text, pair in found.items() if pair[0] not in (None, pair[1])}
    assert not wrong, "in another language"
    assert sum(one is not None for one, _ in found.values()) == 30
    assert {code: language_of(text) for code, text in GREETINGS.items()} == {code: code for code in GREETINGS}


CODE = "```python\nfor it in range(10):\n    if it is not None and it in the_list:\n        print(it)\n```"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{CODE}\nDas Programm gibt die Zahlen von 0 bis 9 aus.", "de"),
        (f"以下是代码：\n{CODE}\n它打印数字。", "zh"),
        (f"다음 코드입니다:\n{CODE}", "ko"),
        ('```json\n{"antwort": "Der Hund schläft und die Katze auch."}\n```', "de"),
        (f"{CODE}\nThe program prints the numbers from 0 to 9.", "en"),
        ("PyTorch와 TensorFlow로 모델을 학습합니다", "ko"),
        ("使用 PyTorch 训练深度学习模型", "zh"),
        ("The Chinese word 你好 is a greeting that you say to a friend.", "en"),
    ],
)
def test_code_and_names_do_not_make_a_text_english(text: str, code: str) -> None:
    assert language_of(text) == code


def test_languages_are_told_apart() -> None:
    samples = {
        **SAMPLES,
        "en": "This is a text, and it is not long.",
        "ja": "\u6771\u4eac\u3067\u306f\u96e8\u304c\u964d\u308a\u307e\u3057\u305f\u3002",
        "ko": "\uc548\ub155\ud558\uc138\uc694",
        "uk": "\u0426\u0435 \u0442\u0435\u043a\u0441\u0442, \u0456 \u0432\u0456\u043d \u043d\u0435 "
        "\u0434\u043e\u0432\u0433\u0438\u0439.",
        "hi": "\u092f\u0939 \u090f\u0915 \u092a\u093e\u0920 \u0939\u0948\u0964",
        "fa": "\u0627\u06cc\u0646 \u06cc\u06a9 \u0645\u062a\u0646 \u0627\u0633\u062a.",
        "sw": "Hii ni habari ya watu wa kijiji na kazi yao.",
    }
    assert {code: language_of(text) for code, text in samples.items()} == {code: code for code in samples}
    assert samples.keys() <= LANGUAGES and language_of("42 !") is None and language_of("xyzzy") is None


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "keywords:exists",
            {},
            "instruction 'keywords:exists' is not known; did you mean keywords:existence?",
        ),
        ("keywords:existence", {}, "keywords:existence: keywords is missing"),
        ("punctuation:no_comma", {"relation": "at least"}, "no_comma: relation is no argument of it"),
        ("keywords:existence", {"keywords": [3]}, "keywords:existence: "),
        ("length_constraints:number_words", {"num_words": 3, "relation": "more"}, "relation 'more'"),
        (
            "length_constraints:number_words",
            {"num_words": 0, "relation": "less than"},
            "less than 0: no count",
        ),
        ("language:response_language", {"language": "German"}, "language 'German': known are ar, bg, bn, ca"),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            "letter 'ab': expected one character",
        ),
        ("keywords:existence", {"keywords": []}, "keywords []: is empty"),
        ("keywords:forbidden_words", {"forbidden_words": ["a", " "]}, "forbidden_words ['a', ' ']: is empty"),
        ("startend:end_checker", {"end_phrase": ""}, "end_phrase '': is empty"),
        ("combination:repeat_prompt", {"prompt_to_repeat": "\n"}, "is empty, so that it asks for nothing"),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 0}, "paragraph 1 of 0: there is none"),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "so"},
            "paragraph 3 of 2: there is none",
        ),
        ("detectable_format:number_bullet_lists", {"num_bullets": -1}, "num_bullets -1: counts begin at 0"),
        ("punctuation:no_comma", "{}", "kwargs '{}': expected an object"),
        # A text would be read as a list of its letters, and a truth as 1.
        ("keywords:existence", {"keywords": "tea"}, "keywords 'tea': expected a list of texts"),
        ("keywords:forbidden_words", {"forbidden_words": "tea"}, "expected a list of texts"),
        ("length_constraints:number_paragraphs", {"num_paragraphs": True}, "'True': expected a whole number"),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "once upon"},
            "first_word 'once upon': expected one word without marks",
        ),
    ],
)
def test_wrong_instructions_are_one_line(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as refused:
        arguments_of(name, kwargs)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("names", "kwargs", "said"),
    [
        (["change_case:english_capital", "change_case:english_lowercase"], [{}, {}], "all capital"),
        (
            ["keywords:existence", "keywords:forbidden_words"],
            [{"keywords": ["Tea", "oak"]}, {"forbidden_words": ["tea"]}],
            "keywords:forbidden_words and 'Tea' of keywords:existence",
        ),
        (
            ["language:response_language"] * 2,
            [{"language": "de"}, {"language": "fr"}],
            "language:response_language: de and fr",
        ),
        (["detectable_format:number_bullet_lists"] * 2, [{"num_bullets": 2}, {"num_bullets": 3}], "2 and 3"),
        (
            ["length_constraints:number_words"],
            [{"num_words": 1, "relation": "less than"}],
            "number_words: at least 1 and less than 1",
        ),
        (
            ["punctuation:no_comma", "startend:end_checker"],
            [{}, {"end_phrase": "Yes, it is."}],
            "punctuation:no_comma and 'Yes, it is.'",
        ),
        (
            ["combination:repeat_prompt", "keywords:forbidden_words"],
            [{"prompt_to_repeat": "Write of tea."}, {"forbidden_words": ["TEA"]}],
            "'Write of tea.' of combination:repeat_prompt",
        ),
        (
            ["keywords:frequency", "keywords:letter_frequency"],
            [
                {"keyword": "tea", "frequency": 2, "relation": "at least"},
                {"letter": "E", "let_frequency": 1, "let_relation": "less than"},
            ],
            "keywords:letter_frequency and 'tea' of keywords:frequency",
        ),
        (
            ["detectable_format:constrained_response", "change_case:english_lowercase"],
            [{}, {}],
            "'My answer is yes.' of detectable_format:constrained_response",
        ),
        (
            ["change_case:english_lowercase", "change_case:capital_word_frequency"],
            [{}, {"capital_frequency": 2, "capital_relation": "at least"}],
            "at least 2 and less than 1",
        ),
        (
            ["length_constraints:number_sentences", "length_constraints:number_words"],
            [{"num_sentences": 5, "relation": "at least"}, {"num_words": 4, "relation": "less than"}],
            "at least 5 and less than 4",
        ),
        # A longer word holds a forbidden one, and case counts for no keyword.
        (
            ["keywords:existence", "keywords:forbidden_words", "change_case:english_lowercase"],
            [{"keywords": ["Teapot"]}, {"forbidden_words": ["tea"]}, {}],
            None,
        ),
        (
            ["detectable_format:multiple_sections", "change_case:english_capital"],
            [{"section_spliter": "PART", "num_sections": 2}, {}],
            None,
        ),
        # Bounds of different words, and bounds that leave a number, are none.
        (
            ["keywords:frequency"] * 2,
            [
                {"keyword": "tea", "frequency": 2, "relation": "less than"},
                {"keyword": "oak", "frequency": 3, "relation": "at least"},
            ],
            None,
        ),
        (
            ["keywords:frequency"] * 2,
            [
                {"keyword": "tea", "frequency": 3, "relation": "less than"},
                {"keyword": "Tea", "frequency": 2, "relation": "at least"},
            ],
            None,
        ),
    ],
)
def test_instructions_that_exclude_each_other_are_known(
    names: list[str], kwargs: list[dict[str, Any]], said: str | None
) -> None:
    found = contradiction(names, kwargs)
    assert found is None if said is None else said in str(found)


def test_arguments_of_other_instructions_may_be_null_and_whole_numbers_floats() -> None:
    given = {"num_words": 3.0, "relation": "at least", "keywords": None}
    assert arguments_of("length_constraints:number_words", given) == {"num_words": 3, "relation": "at least"}
    assert VIOLATIONS.keys() | {"combination:repeat_prompt"} == CHECKS.keys()
    assert json.dumps(sorted(CHECKS)) and len(CHECKS) == 25
