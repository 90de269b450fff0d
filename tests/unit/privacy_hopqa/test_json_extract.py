"""JSON extraction: one value or an error, never a guess."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.privacy_hopqa.data.json_extract import MAX_CHARS, ExtractError, extract


@pytest.mark.parametrize(
    ("text", "expected", "value", "path"),
    [
        ('text {"a":[1,2]} tail', "object", {"a": [1, 2]}, "embedded"),
        ("<think>[1]</think> []", "array", [], "clean"),
        ('```json\n{"a":1}\n```', "object", {"a": 1}, "fenced"),
        ("```\n[0]\n``` better: ```json\n[1]\n``` done", "array", [1], "fenced"),
        ('see [x] ["a]"]', "array", ["a]"], "embedded"),
        ('{"a":[1]} then [2]', "array", [2], "embedded"),
        ("[" * 64 + "]" * 64, "array", None, "clean"),
    ],
)
def test_values(text: str, expected: str, value: object, path: str) -> None:
    found = extract(text, expected)  # type: ignore[arg-type]
    assert found.path == path
    assert value is None or found.value == value


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("[] see [1]", "array", "ambiguous"),
        ('[{"a":1},{"b":2}', "array", "truncated"),
        ('```json\n{bad\n```\nthen {"x":1}', "object", "bad_fence"),
        ('```json\n{"x":1}', "object", "bad_fence"),
        ('{"a":1}', "array", "wrong_type"),
        ('```\n{"a":1}\n```', "array", "wrong_type"),
        ("<think>[1]", "array", "unclosed_think"),
        ("", "array", "not_found"),
        ("no brackets", "object", "not_found"),
        ('x {"a":[1]}', "array", "not_found"),
        ("[NaN]", "array", "non_finite"),
        ('{"a":-Infinity}', "object", "non_finite"),
        ("so [1e999]", "array", "non_finite"),
        ("[" * 65 + "]" * 65, "array", "too_deep"),
        ("[1}", "array", "truncated"),
        ('["\\ud800"]', "array", "bad_unicode"),
        (" " * MAX_CHARS + "[]", "array", "too_long"),
        ('["open', "array", "truncated"),
    ],
)
def test_errors(text: str, expected: str, kind: str) -> None:
    with pytest.raises(ExtractError) as error:
        extract(text, expected)  # type: ignore[arg-type]
    assert error.value.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        "[" * MAX_CHARS,
        '["' * (MAX_CHARS // 2),
        "{x}" * (MAX_CHARS // 3),
        '"' * MAX_CHARS,
        "[[]" * 66_000,
    ],
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ExtractError):
        extract(text, "array")
    assert time.process_time() - start < 0.5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=3))
@settings(max_examples=40)
def test_any_array_is_found_in_prose(value: list) -> None:
    text = json.dumps(value)
    assert extract(text, "array").value == value
    if "```" not in text and "<think>" not in text:
        assert extract(f"answer: {text} end", "array").value == value
