"""Reads an expression, in LaTeX or plain, as a function of its variables.

Called by `objects.py` for what stands between commas, brackets and relations; `values.py` compares functions.
Whatever this grammar does not have, such as an integral, raises `Unreadable`, and math-verify is asked.
"""

import re
from collections.abc import Callable, Sequence

from mpmath import mp, mpc

from domains.math.typeset import FONT
from domains.math.values import (
    FUNCTIONS,
    MOST_DIGITS,
    OF_SEVERAL,
    Expression,
    Function,
    TooLarge,
    Unreadable,
    binomial_of,
    call_of,
    constant,
    divided,
    factorial,
    logarithm,
    negative_of,
    power,
    product_of,
    quotient_of,
    real,
    sum_of,
)  # fmt: skip

_PLAIN = "arcsin|arccos|arctan|sinh|cosh|tanh|coth|sech|csch|sin|cos|tan|cot|sec|csc|sqrt|exp|log|ln|pi"
_TOKEN = re.compile(
    r"\\[A-Za-z]+|\\.|\.\.\.|\d+(?:\.\d+)?|\.\d+|\*\*|[<>!]="
    rf"|(?<![A-Za-z\\])(?:(?:{_PLAIN})(?![a-z])|(?:{'|'.join(OF_SEVERAL)})(?=\s*(?:\(|\\\{{)))|[^\s]"
)
_GREEK = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi
chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega infty dots ell hbar emptyset aleph"""
_SYMBOLS = frozenset(f"\\{name}" for name in _GREEK.split())
_ACCENTS = frozenset([r"\vec", r"\hat", r"\bar", r"\tilde", r"\dot", r"\ddot", r"\mathbb", r"\mathcal"])
_SIZES = r"\left \right \displaystyle \limits \, \; \: \! ~ $ . \quad"
_SKIPPED = frozenset([*_SIZES.split(), "\\ "])
_LISTED = r"""
\dfrac \tfrac \cfrac = \frac | \dbinom \tbinom = \binom | \times \cdot \ast = * | ** = ^ | \div = /
\ldots \cdots ... = \dots | \bmod \mod = \pmod | \imath = i | \degree = \circ | \colon = :
\lvert \rvert \mid = \vert | \bigcup = \cup | \bigcap = \cap | \neq != = \ne
\lbrack = [ | \rbrack = ] | \langle = ( | \rangle = ) | \lbrace = \{ | \rbrace = \} | \lt = < | \gt = >
\leq \leqslant \leqq <= = \le | \geq \geqslant \geqq >= = \ge | \land \wedge = and | \lor \vee = or
\backslash \smallsetminus = \setminus
\overline = \bar | \overrightarrow = \vec | \widehat = \hat | \widetilde = \tilde
"""
SAME_TOKEN = {
    name: meant
    for line in re.split(r" \| |\n", _LISTED.strip())
    for *names, _, meant in (line.split(),)
    for name in names
} | {"|": r"\vert"}
"""The usual name of a sign or command that has several."""
_ANGULAR = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_BESIDE = r") ] } \} + - * / ^ _ ! ' , ; : = < > & \rfloor \rceil \circ \choose \pmod"
_ENDS = frozenset((None, *_BESIDE.split()))


def tokens(text: str) -> list[str]:
    """The signs of a text, without blanks and sizes of brackets, each in its usual name."""
    found = (token for token in _TOKEN.findall(text) if token not in _SKIPPED)
    return [SAME_TOKEN.get(token, token) for token in found]


def read_expression(found: Sequence[str]) -> Expression:
    """The expression that all tokens are. Raises `Unreadable`."""
    reader = _Reader(list(found))
    at = reader.whole()
    if reader.peek() is not None:
        raise Unreadable(f"{reader.peek()} at {reader.place}")
    return Expression(at, frozenset(reader.names), frozenset(reader.signs))


class _Reader:
    """Recursive descent: sum, product, power, atom."""

    def __init__(self, found: list[str]) -> None:
        self.tokens, self.place, self.bars = found, 0, 0
        self.names: set[str] = set()
        self.signs: set[str] = set()

    def peek(self, ahead: int = 0) -> str | None:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if token is None or (wanted is not None and token != wanted):
            raise Unreadable(f"{token} at {self.place}, expected {wanted}")
        self.place += 1
        return token

    def whole(self) -> Function:
        """What brackets or a text hold: a sum, or `n \\choose k`."""
        inside = self.sum()
        if self.peek() != r"\choose":
            return inside
        self.take()
        return binomial_of(inside, self.sum())

    def sum(self) -> Function:
        sign = self.take() if self.peek() in ("+", "-") else "+"
        total = self.product()
        total = negative_of(total) if sign == "-" else total
        while self.peek() in ("+", "-"):
            sign, one = self.take(), self.product()
            total = sum_of(total, negative_of(one) if sign == "-" else one)
        if self.peek() == r"\pmod":
            self.take()
            total = sum_of(total, product_of(self._variable("mod"), self.group()))
        return total

    def product(self) -> Function:
        total = self.factor()
        while True:
            token = self.peek()
            if token in ("*", "/"):
                self.take()
                sign = self.take() if self.peek() in ("+", "-") else "+"
                one = self.factor()
                one = negative_of(one) if sign == "-" else one
                total = product_of(total, one) if token == "*" else quotient_of(total, one)
            elif self._starts(token):
                if _is_number(token) and _is_number(self.tokens[self.place - 1]):
                    raise Unreadable("two numbers side by side")
                total = product_of(total, self.factor())
            else:
                return total

    def _starts(self, token: str | None) -> bool:
        """Whether a factor may start with a token, without a sign of multiplication before it."""
        if token == r"\vert":
            return self.bars == 0
        return token not in _ENDS

    def factor(self) -> Function:
        """An atom with its powers; a whole number beside a proper fraction is a mixed number."""
        start, base = self.peek(), self.atom()
        if start is not None and start.isdigit() and self.peek() == r"\frac":
            place = self.place
            part = self.atom()
            inside = [token for token in self.tokens[place + 1 : self.place] if token not in "{}"]
            if len(inside) == 2 and all(map(str.isdigit, inside)) and int(inside[0]) < int(inside[1]):
                return self.powers(sum_of(base, part))
            self.place = place
        return self.powers(base)

    def powers(self, base: Function) -> Function:
        while (token := self.peek()) in ("^", "!", "'", r"\circ", "%", r"\%"):
            self.take()
            if token == "!":
                base = call_of(factorial, base)
            elif token in ("%", r"\%"):
                base = quotient_of(base, constant("100"))
            elif token == r"\circ" or (token == "^" and self._degree()):
                base = self._degrees(base)
            elif token == "^":
                base = self._raised(base)
            elif _is_number(self.peek()):  # feet and inches; at the end a prime behind a number says nothing
                raise Unreadable("a prime")
        return base

    def _raised(self, base: Function) -> Function:
        sign = self.take() if self.peek() in ("+", "-") else "+"
        exponent = self.group() if self.peek() == "{" else self.atom()
        if self.peek() == "^":  # 2^3^2 is 2^9
            self.take()
            exponent = self._raised(exponent)
        if sign == "-":
            exponent = negative_of(exponent)
        return lambda point: power(base(point), exponent(point), point)

    def _degree(self) -> bool:
        for shape in ([r"\circ"], ["{", r"\circ", "}"]):
            if self.tokens[self.place : self.place + len(shape)] == shape:
                self.place += len(shape)
                return True
        return False

    def _degrees(self, base: Function) -> Function:
        self.signs.add("degree")
        return lambda point: base(point) * mp.pi / 180 if point["angle"] else base(point)

    def group(self) -> Function:
        """What stands in braces, or one token, as the argument of a command."""
        token = self.peek()
        if token == "{":
            self.take()
            inside = self.whole()
            self.take("}")
            return inside
        if token is not None and token.isdigit() and len(token) > 1:
            self.tokens[self.place : self.place + 1] = list(token)
        return self.atom()

    def atom(self) -> Function:
        token = self.take()
        if _is_number(token):
            if len(token) > MOST_DIGITS:
                raise TooLarge(token)
            if "." in token:
                self.signs.add("decimal")
            return constant(token)
        if token in ("(", "["):
            inside = self._apart(self.whole)
            self.take(_CLOSING[token])
            return inside
        if token == "{":
            self.place -= 1
            return self._apart(self.group)
        if token == r"\vert":
            self.bars += 1
            inside = self.sum()
            self.take(r"\vert")
            self.bars -= 1
            self.signs.add("absolute")
            return call_of(abs, inside)
        if token in (r"\lfloor", r"\lceil"):
            inside = self._apart(self.sum)
            self.take(_CLOSING[token])
            return call_of(mp.floor if token == r"\lfloor" else mp.ceil, inside)
        return self._command(token)

    def _apart(self, read: Callable[[], Function]) -> Function:
        """Inside brackets a bar opens again."""
        bars, self.bars = self.bars, 0
        inside = read()
        self.bars = bars
        return inside

    def _command(self, token: str) -> Function:
        if token == r"\frac":
            if (name := self._derivative()) is not None:
                return self._variable(name)
            over = self.group()
            return quotient_of(over, self.group())
        if token == r"\binom":
            over = self.group()
            return binomial_of(over, self.group())
        if token in (r"\sqrt", "sqrt"):
            return self._root()
        if token in (r"\log", "log", r"\lg"):
            return self._logarithm(constant("10") if token == r"\lg" else None)
        if token.removeprefix("\\") in FUNCTIONS and token != "i":
            return self._function(token.removeprefix("\\"))
        if token.removeprefix("\\") in OF_SEVERAL:
            return self._of_several(token.removeprefix("\\"))
        if token in (r"\pi", "pi", "\u03c0"):
            return lambda point: +mp.pi
        if re.fullmatch(FONT, token):
            return self._font()
        if token in (r"\angle", r"\triangle"):
            return self._points(token)
        if token in _ACCENTS:
            return self._variable(token + " " + "".join(self._raw()))
        if token in _SYMBOLS or (len(token) == 1 and token.isalpha()):
            return self._letter(token)
        raise Unreadable(f"{token} at {self.place}")

    def _font(self) -> Function:
        place = self.place
        inside = "".join(self._raw())
        if inside in FUNCTIONS:
            return self._function(inside)
        if inside in OF_SEVERAL and self.peek() in ("(", r"\{"):
            return self._of_several(inside)
        if inside.isalpha():
            return self._letter(inside)
        self.place = place
        return self.group()

    def _letter(self, name: str) -> Function:
        """A constant, or a variable with its index and primes."""
        if self.peek() == "_":
            self.take()
            index = "".join(self._raw())
            name += "_" + re.sub(r"\\[a-z]+|[{}]", "", index)
        while self.peek() == "'":
            name += self.take()
        if self._value_at_zero():
            return self._variable(name)
        if name == "i":
            self.signs.add("complex")
            return constant(mpc(0, 1))
        if name == "e":
            return lambda point: +mp.e
        return self._variable(name)

    def _value_at_zero(self) -> bool:
        """Whether `(0)` follows: nobody writes `I(0)` for a product, which would be zero."""
        return self.tokens[self.place : self.place + 3] in (list("(0)"), list("[0]"))

    def _variable(self, name: str) -> Function:
        """A variable; `f(x)`, `f'(x)` and `I(0)` are values of functions and no products."""
        self.names.add(name)
        if self._value_at_zero() or ((name == "f" or name.endswith("'")) and self.peek() == "("):
            argument = self.atom()
            # No argument that is written makes the sine zero, which would leave the function's name.
            return lambda point: point[name] + mp.sin(point[name] * (argument(point) + mp.phi))
        return lambda point: point[name]

    def _raw(self) -> list[str]:
        """The tokens in braces, or the next one."""
        token = self.take()
        if token != "{":
            return [token]
        depth, start = 1, self.place
        while depth:
            token = self.take()
            depth += (token == "{") - (token == "}")
        return self.tokens[start : self.place - 1]

    def _derivative(self) -> str | None:
        """`dy/dx` of `\\frac{dy}{dx}`, which is one name; also of `\\partial`."""
        shape = self.tokens[self.place : self.place + 8]
        signs = [*shape[:2], shape[3], *shape[4:6], shape[7]] if len(shape) == 8 else []
        if not any(signs == ["{", sign, "}"] * 2 for sign in ("d", r"\partial")):
            return None
        self.place += 8
        return f"{shape[1]}{shape[2]}/{shape[1]}{shape[6]}"

    def _points(self, token: str) -> Function:
        letters = self._raw()
        while (more := self.peek()) is not None and len(more) == 1 and more.isupper():
            letters.append(self.take())
        letters = sorted(letters) if token == r"\triangle" else min(letters, letters[::-1])
        return self._variable(token + "".join(letters))

    def _root(self) -> Function:
        degree: Function = constant("2")
        if self.peek() == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        inside = self.group()
        return lambda point: power(inside(point), divided(1, degree(point)), point)

    def _logarithm(self, base: Function | None = None) -> Function:
        if self.peek() == "_":
            self.take()
            base = self.group()
        raised = self._function_power()
        inside = self._argument()
        if base is None:
            self.signs.add("log")
            base = lambda point: point["log"]  # noqa: E731
        log = lambda point: divided(logarithm(inside(point), point), logarithm(base(point), point))  # noqa: E731
        return log if raised is None else lambda point: power(log(point), raised(point), point)

    def _function(self, name: str) -> Function:
        raised, called = self._function_power(), FUNCTIONS[name]
        if name in _ANGULAR:
            self.signs.add("angle")
        if raised and name in _ANGULAR and self.tokens[self.place - 4 : self.place] == ["{", "-", "1", "}"]:
            called, raised = FUNCTIONS[f"arc{name}"], None
        inside = self._argument(name in _ANGULAR)
        result: Function = lambda point: real(called(inside(point)), point)  # noqa: E731
        if name == "ln":
            result = lambda point: logarithm(inside(point), point)  # noqa: E731
        return result if raised is None else lambda point: power(result(point), raised(point), point)

    def _of_several(self, name: str) -> Function:
        """Of what stands between commas in brackets, as in `\\gcd(m,n)` and `\\max\\{a,b\\}`."""
        closing = _CLOSING[self.take("(" if self.peek() == "(" else r"\{")]
        parts = [self._apart(self.sum)]
        while self.peek() != closing:
            self.take(",")
            parts.append(self._apart(self.sum))
        self.take(closing)
        if name in ("max", "min"):
            self.signs.add("absolute")
        return lambda point: OF_SEVERAL[name](*(part(point) for part in parts))

    def _function_power(self) -> Function | None:
        if self.peek() != "^":
            return None
        self.take()
        return self.group()

    def _argument(self, angular: bool = False) -> Function:
        """Of a function: brackets, or what is written behind it up to a sign or another function."""
        if self.peek() in ("(", "[", "{", r"\vert"):
            return self.atom()
        sign = self.take() if self.peek() == "-" else "+"
        total, last = self.factor(), self.tokens[self.place - 1]
        while self._starts(token := self.peek()) and token is not None:
            name = token.removeprefix("\\")
            if name in FUNCTIONS or name == "log" or (token in ("(", "[", r"\vert") and not _is_number(last)):
                break
            total, last = product_of(total, self.factor()), self.tokens[self.place - 1]
        while angular and self.peek() == "/" and _is_number(self.peek(1)):
            self.take()  # `\cos \pi/6`
            total = quotient_of(total, self.factor())
        return negative_of(total) if sign == "-" else total


def _is_number(token: str | None) -> bool:
    return token is not None and (token[0].isdigit() or (token[0] == "." and len(token) > 1))
