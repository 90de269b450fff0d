"""Small function-calling problems in BFCL's form, made without any data.

A problem offers one to three functions and asks for one call, for several, or for something that none of them
does. Called by the loader and by the demonstrations.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Category = Literal["simple", "multiple", "parallel", "parallel_multiple", "irrelevance"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
OFFERED = 3
"""Functions of the categories that offer several."""
Arguments = dict[str, Any]

_CITIES = ("Bern", "Oslo", "Lima", "Cairo", "Quito", "Hanoi")
_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn")
_ROOMS = ("kitchen", "hall", "cellar", "office")
_MONEY = ("EUR", "USD", "CHF", "JPY")
_LANGUAGES = ("French", "German", "Finnish", "Swahili")
_WORDS = ("bread", "river", "winter", "lamp")
_NUMBER = range(2, 100)


@dataclass(frozen=True)
class Tool:
    """A function, how a call of it is drawn, and how it is asked for."""

    name: str
    description: str
    types: dict[str, str]
    """Of each argument; `array` means whole numbers."""
    draw: Callable[[random.Random], Arguments]
    asked: str
    """With the arguments' names in braces."""
    optional: tuple[str, Any, str] | None = None
    """An argument that may be left out, the value that it then has, and how another value is asked for."""

    def schema(self) -> dict[str, Any]:
        """As BFCL describes it."""
        properties: dict[str, Any] = {name: {"type": kind} for name, kind in self.types.items()}
        for one in properties.values():
            if one["type"] == "array":
                one["items"] = {"type": "integer"}
        required = [name for name in properties if self.optional is None or name != self.optional[0]]
        parameters = {"type": "dict", "properties": properties, "required": required}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def request(self, arguments: Arguments) -> str:
        """The wish, in words."""
        said = self.asked.format(**arguments)
        if self.optional is None or arguments[self.optional[0]] == self.optional[1]:
            return said
        return f"{said} {self.optional[2].format(**arguments)}"

    def allowed(self, arguments: Arguments) -> dict[str, list[Any]]:
        """Allowed values of each argument; a default may be left out."""
        found: dict[str, list[Any]] = {name: [value] for name, value in arguments.items()}
        if self.optional is not None and arguments[self.optional[0]] == self.optional[1]:
            found[self.optional[0]].append("")
        return found


def _drawn(**choices: Sequence[Any]) -> Callable[[random.Random], Arguments]:
    return lambda rng: {name: rng.choice(values) for name, values in choices.items()}


TOOLS = (
    Tool(
        "add",
        "Adds two numbers.",
        {"a": "integer", "b": "integer"},
        _drawn(a=_NUMBER, b=_NUMBER),
        "add {a} and {b}",
    ),
    Tool(
        "multiply",
        "Multiplies two numbers.",
        {"a": "integer", "b": "integer"},
        _drawn(a=_NUMBER, b=_NUMBER),
        "multiply {a} by {b}",
    ),
    Tool(
        "get_weather",
        "The weather of a city.",
        {"city": "string", "unit": "string"},
        _drawn(city=_CITIES, unit=("celsius", "celsius", "fahrenheit")),
        "tell me the weather in {city}",
        ("unit", "celsius", "in {unit}"),
    ),
    Tool(
        "set_timer",
        "Sets a timer.",
        {"minutes": "integer", "label": "string"},
        _drawn(minutes=_NUMBER, label=("", "", "tea", "eggs")),
        "set a timer of {minutes} minutes",
        ("label", "", "for {label}"),
    ),
    Tool(
        "convert_money",
        "Converts an amount of money.",
        {"amount": "float", "source": "string", "target": "string"},
        lambda rng: {
            "amount": rng.choice(_NUMBER) + rng.choice((0.0, 0.5)),
            **dict(zip(("source", "target"), rng.sample(_MONEY, 2), strict=True)),
        },
        "convert {amount} {source} to {target}",
    ),
    Tool(
        "send_message",
        "Sends a text to somebody.",
        {"to": "string", "text": "string"},
        _drawn(to=_NAMES, text=("hello", "see you", "thank you")),
        "send '{text}' to {to}",
    ),
    Tool(
        "switch_light",
        "Switches the light of a room.",
        {"room": "string", "on": "boolean"},
        _drawn(room=_ROOMS, on=(True, False)),
        "set the light in the {room} to {on}",
    ),
    Tool(
        "book_table",
        "Books a table.",
        {"people": "integer", "hour": "integer"},
        _drawn(people=range(2, 9), hour=range(17, 23)),
        "book a table for {people} at {hour} o'clock",
    ),
    Tool(
        "sort_numbers",
        "Sorts a list of numbers.",
        {"numbers": "array"},
        lambda rng: {"numbers": [rng.choice(_NUMBER) for _ in range(3)]},
        "sort the numbers {numbers}",
    ),
    Tool(
        "translate",
        "Translates a word.",
        {"word": "string", "language": "string"},
        _drawn(word=_WORDS, language=_LANGUAGES),
        "translate '{word}' to {language}",
    ),
)


def make(rng: random.Random, category: Category) -> dict[str, Any]:
    """A row `{question, function, ground_truth, category}`."""
    several = category in ("multiple", "parallel_multiple", "irrelevance")
    offered = rng.sample(TOOLS, OFFERED if several else 1)
    if category == "irrelevance":
        wanted = [rng.choice([tool for tool in TOOLS if tool not in offered])]
    elif category == "parallel_multiple":
        wanted = rng.sample(offered, 2)
    else:
        wanted = [rng.choice(offered)] * (2 if category == "parallel" else 1)
    calls = [(tool, tool.draw(rng)) for tool in wanted]
    while len(calls) == 2 and calls[0] == calls[1]:
        calls[1] = (wanted[1], wanted[1].draw(rng))
    asked = " and ".join(tool.request(arguments) for tool, arguments in calls)
    truth = [{tool.name: tool.allowed(arguments)} for tool, arguments in calls]
    return {
        "question": f"Please {asked}.",
        "function": [tool.schema() for tool in offered],
        "ground_truth": [] if category == "irrelevance" else truth,
        "category": category,
    }
