"""Short answers that mean the same are equal, and others are not."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.privacy_hopqa.data.judge import Judge
from domains.raro.evaluate import is_correct
from domains.short_answers import normalised, undressed

SAME = [
    ("US", "U.S."),
    ("us", "U. S."),
    ("U.S.A.", "USA"),
    ("Washington, D.C.", "Washington, DC"),
    ("J. R. R. Tolkien", "J.R.R. Tolkien"),
    ("the Nile", "Nile"),
    ("The Nile.", "nile"),
    ("an apple", "apple"),
    ("12th", "12"),
    ("March 12th, 1,999", "March 12, 1999"),
    ("October 5, 1999", "October 5 1999"),
    ("October 15th, 1999", "october 15 1999"),
    ("the 3rd", "3"),
    ("5 km", "5km"),
    ("5.5  KG", "5.5kg"),
    ("90 km/h", "90km/h"),
    ("1,200,000", "1200000"),
    ("\u201cHamlet\u201d", "Hamlet"),
    ("1914\u20131918", "1914-1918"),
    ("O\u2019Neill", "O'Neill"),
    ("\uff21BC", "abc"),
    ("\u200eNile\u200b", "Nile"),
    ("50 %", "50%"),
    ("50 percent", "50%"),
    ("(Nile)", "Nile"),
    ("[the Nile].", "Nile"),
    ("\u0130stanbul", "istanbul"),
    (".5", "0.5"),
    ("St. Louis", "St Louis"),
    ("Dr. No", "Dr No"),
    ("John F. Kennedy", "John F Kennedy"),
    ("\u00abNile\u00bb", "Nile"),
    ("\u300eNile\u300f", "Nile"),
    ("\u00bd", "1/2"),
    ("$.50.", "$0.50"),
    ("2\u00bd", "2 1/2"),
    ("10\u2076", "10^6"),
    ("5 km\u00b2", "5 km2"),
    ("5GB", "5 GB"),
    ("20years", "20 years"),
    ("5miles", "5 miles"),
    ("10:30am", "10:30 a.m."),
    ("25 \u00b0 C", "25\u00b0C"),
    ("1914 \u2013 1918", "1914-1918"),
    ("1990's", "1990s"),
    ("Ph.D.", "PhD"),
    ("Ph.D", "PhD"),
    ("a B.Sc. degree", "BSc degree"),
    ("AT&T", "AT & T"),
    ("Johnson & Johnson", "Johnson and Johnson"),
    ("24 / 7", "24/7"),
    ("5 m / s", "5m/s"),
    ("red, white, and blue", "red, white and blue"),
    ("Washington, D.C.", "Washington DC"),
    ("Apple, Inc.", "Apple Inc"),
    ("5.0", "5"),
    ("$5.00", "$5"),
    ("5.0 km", "5km"),
    ("+5", "5"),
    ("3:00 PM", "3 p.m."),
    ("5\u20ac", "\u20ac5"),
    ("5 \u20ac.", "\u20ac 5".replace(" ", "")),
    ("12V", "12 V"),
    ("May 18 , 2018", "May 18, 2018"),
    ("Paris , France", "Paris, France"),
    ("$ 190 million", "$190 million"),
    ("Newton 's", "Newton's"),
    ("100 \u20b9", "\u20b9100"),
    ("No.5", "No. 5"),
    ("c.1500", "c. 1500"),
    ("2,3,5", "2, 3, 5"),
    ("O\u00b4Neill", "O'Neill"),
    ("O`Neill", "O'Neill"),
    ("Hawai\u02bbi", "Hawai'i"),
    ("5\u203210\u2033", "5'10\""),
    ("\u5317\u4eac\u3002", "\u5317\u4eac"),
    ("_Hamlet_", "Hamlet"),
    ("iPhone 4S", "iphone 4s"),
]
OTHER = [
    ("US", "UK"),
    ("Vitamin A", "Vitamin"),
    ("A", "B"),
    ("the", "a"),
    ("12", "13th"),
    ("5 km", "5 m"),
    ("5 km", "6km"),
    ("1.5", "15"),
    (".5", "5"),
    ("-.5", "-5"),
    ("1,5", "15"),
    ("3D", "3"),
    ("Q1", "1"),
    ("John Smith", "J. Smith"),
    ("Theodor", "odor"),
    ("v2.5", "v25"),
    ("a.com", "acom"),
    ("No. 5", "No. 6"),
    ("-5", "5"),
    ("?", "!"),
    ("...", ""),
    ("f(x)", "fx"),
    ("(a) and (b)", "a) and (b"),
    ("50%", "50"),
    ("2\u00bd", "21/2"),
    ("10\u2076", "106"),
    ("2\u00b3", "23"),
    ("5GB", "5 MB"),
    ("10:30am", "10:30 pm"),
    ("4K", "4 m"),
    ("1914 - 1918", "1914 1918"),
    ("1990s", "1990"),
    ("1990's", "1980s"),
    ("3D", "3 D"),
    ("3.10", "3.1"),
    ("5.05", "5.5"),
    ("1.0.0", "1"),
    ("v2.0", "v20"),
    ("1, 2", "1 2"),
    ("1,5", "1 5"),
    ("3:00", "3"),
    ("3:30 pm", "3 pm"),
    ("5 \u20ac", "$5"),
    ("+5", "-5"),
    ("C++", "C"),
    ("1/2", "12"),
    ("node.js", "nodejs"),
    ("a.co", "aco"),
    ("&", ""),
    ("2,3,5", "235"),
    ("2,3,5", "2 3 5"),
    ("No.5", "No.6"),
    ("v.2", "v2"),
    ("Paris , France", "Paris"),
    ("snake_case", "snake case"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_answers_are_equal(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_answers_are_others(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


@given(st.text(max_size=60))
def test_no_answer_is_lost(text: str) -> None:
    found = normalised(text)
    assert any(map(str.isalnum, found)) or not any(map(str.isalnum, text))


def chain(*accepted: str) -> Any:
    return SimpleNamespace(hops=(), hop=lambda _: SimpleNamespace(accepted=accepted), final_answers=accepted)


@pytest.mark.parametrize(("one", "other"), SAME[:12])
async def test_judges_take_it_where_they_are_told_to(one: str, other: str) -> None:
    problem = {"task": "text", "expert_answer": one}
    assert await is_correct(problem, other, None, short=True)  # type: ignore[arg-type]
    assert Judge(chain(one), "accepted_exact", short=True).final_correct(other)
    assert Judge(chain(one), "accepted_exact", short=True).correct(1, other)


def test_a_letter_of_a_name_is_no_unit() -> None:
    assert not Judge(chain("iPhone 4"), short=True).final_correct("iPhone 4S")
    assert Judge(chain("iPhone 4S"), short=True).final_correct("the iPhone 4S")


async def test_without_it_answers_are_compared_as_before() -> None:
    problem = {"task": "text", "expert_answer": "the Nile"}
    assert not await is_correct(problem, "Nile", None)  # type: ignore[arg-type]
    assert await is_correct(problem, "the Nile", None)  # type: ignore[arg-type]
    for one, other in (("US", "U.S."), ("the Nile", "Nile"), ("12th", "12"), ("5 km", "5km")):
        assert not Judge(chain(one)).final_correct(other)


@pytest.mark.parametrize(
    ("dressed", "bare"),
    [
        *(
            (form.replace("{}", "a b"), "a b")
            for form in ("**{}**", " *{}* ", "`{}`", "${}$", r"\({}\)", r"\[ {} \]")
        ),
        *(
            (form.replace("{}", "12"), "12")
            for form in (r"\boxed{{}}", r"**$\boxed{\text{{}}}$**", "```\n{}\n```")
        ),
        ("```json\n[1, 2]\n```", "[1, 2]"),
        ("2*3*4", "2*3*4"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        ("$", "$"),
        ("****", "**"),
        ("", ""),
        ("12 **", "12 **"),
        (r"$15\%$", "15%"),
    ],
)
def test_marks_around_the_whole_answer_are_no_part_of_it(dressed: str, bare: str) -> None:
    assert undressed(dressed) == bare


@pytest.mark.parametrize("answer", ["**15%**", r"$15\%$", r"\boxed{15\%}", "`15%`", "15%"])
def test_a_chain_is_answered_in_latex_too(answer: str) -> None:
    hop = SimpleNamespace(accepted=("15%",), gold_values=())
    chain: Any = SimpleNamespace(hops=[hop], hop=lambda number: hop)
    assert Judge(chain).correct(1, answer)
    assert not Judge(chain).correct(1, answer.replace("15", "16"))
