"""What the verifier says of an answer, and that nothing written in a box can hold it up."""

import asyncio
import threading
import time

import pytest

from domains import pool as judges
from domains.math.answers import verify_answer
from domains.math.pool import MAX_GOLD_LENGTH, VerifierPool
from domains.math.rewards import RewardTable, get_reward

# Gold answer, what is in the box, status.
TABLE = [
    ("42", "42", "correct"),
    ("42", "43", "wrong"),
    ("42", "42.0", "correct"),
    ("1/2", "0.5", "correct"),
    ("1/2", r"\frac12", "correct"),
    (r"\frac{1}{2}", r"\frac{2}{4}", "correct"),
    (r"\sqrt{8}", r"2\sqrt{2}", "correct"),
    (r"\pi", "3.14", "wrong"),
    ("x^2+1", "1+x^2", "correct"),
    ("x^2+1", "x^2-1", "wrong"),
    ("(1,2)", "(1, 2)", "correct"),
    ("(1,2)", "(2, 1)", "wrong"),
    ("[1,2)", "[1,2]", "wrong"),
    (r"\{1,2,3\}", r"\{3,2,1\}", "correct"),
    (r"\{1,2\}", r"\{1,2,3\}", "wrong"),
    ("1,000", "1000", "correct"),
    ("18", r"18 \text{ dollars}", "correct"),
    ("$18$", "18", "correct"),
    ("-3", "-3", "correct"),
    ("-3", "3", "wrong"),
    ("10^3", "1000", "correct"),
    (r"\frac{3}{4}", "0.75", "correct"),
    ("blue", "blue", "correct"),
    ("blue", "Blue", "correct"),
    ("blue", "lube", "wrong"),
    (r"\text{Evelyn}", "Evelyn", "correct"),
    (r"\text{Evelyn}", r"\text{Carla}", "wrong"),
    ("A", "A", "correct"),
    ("A", "B", "wrong"),
    ("2x+3=7", "2x+3=7", "correct"),
    ("5", r"\text{five}", "wrong"),
    ("42", "]", "unparsable"),
    ("1", "(" * 40 + "]", "unparsable"),
    # The base of a number counts, however it is written; without one its digits do.
    ("4210_{5}", "4210_5", "correct"),
    ("4210_{5}", "4210_6", "wrong"),
    ("4210_{5}", "(4210)_5", "correct"),
    ("4210_{5}", r"4210\text{ base }5", "correct"),
    ("4210_{5}", r"4210\text{ in base }6", "wrong"),
    # Degrees within functions of angles.
    ("0.5", r"\sin 30^\circ", "correct"),
    (r"\cos(60^{\circ})", r"\frac12", "correct"),
    (r"10\sin 40°", r"10\cos 50^\circ", "correct"),
    (r"2-\sqrt3", r"\tan 15^\circ", "correct"),
    (r"\sin^2 20^\circ", r"1-\cos^2 20^\circ", "correct"),
    (r"\sin 30^\circ", "-0.988032", "wrong"),  # the sine of 30 radians
    (r"\sin 30^\circ", r"\sin 60^\circ", "wrong"),
    ("1011_2", "1011_3", "wrong"),
    ("1011_2", r"1011_{\text{two}}", "correct"),
    ("1011_2", r"1011_{\text{base 2}}", "correct"),
    ("2A_{16}", "2B_{16}", "wrong"),
    ("4210_{5}", "4210", "correct"),
    # What is counted, in whatever letters; an answer with variables stays one.
    ("12", r"\text{12 eggs}", "correct"),
    ("12", "12 eggs", "correct"),
    ("12", "12 men", "correct"),
    ("12", "12 cup", "correct"),
    ("12", "13 eggs", "wrong"),
    *(
        ("42", boxed, "correct")
        for boxed in (
            r"42\text{ 元}",
            "42个",
            r"\text{42人}",
            "42 Äpfel",
            "42 км",
            r"42\text{ años}",
            "42時間",
            "42개",
        )
    ),
    ("5 km", "5 км", "correct"),
    (r"5\text{ m}", r"500\text{厘米}", "correct"),
    (r"5\text{ m}", r"5\text{厘米}", "wrong"),
    ("5 km", "5 м", "wrong"),
    *(
        ("42", boxed, "wrong")  # forty-two million, thousand, and a half, or more
        for boxed in (
            *(r"42\text{ Millionen}", "42 Millionen Euro", r"42\text{ millones}", r"42\text{ млн}", "42 mil"),
            *("42万", r"42\text{万人}", "42 тысяч", "42 tausend", "42만 원", r"42\text{个半}", "42 y medio"),
            *(r"42\text{ oder mehr}", r"42\text{人以上}", r"42\text{ o más}", r"42\text{分之三}", "43个"),
        )
    ),
    ("12", "12xy", "wrong"),
    ("12", "12 abc", "wrong"),
    # Variables that math-verify takes for units at the end of an answer.
    ("3t+2", "2+3t", "correct"),
    ("2+3t", "5", "wrong"),
    ("5", "2+3t", "wrong"),
    ("2+3t", "3+2t", "wrong"),
    ("x=2+3t", "x=3+2t", "wrong"),
    ("2+t", "t + 2", "correct"),
    ("2t", "t+t", "correct"),
    ("2t", "2", "wrong"),
    ("d=60t", "60 t", "correct"),
    ("v_0+9.8t", "v_0+9.8", "wrong"),
    ("2+3ab", "5", "wrong"),
    (r"\frac{bh}{2}", r"\frac{1}{2} b h", "correct"),
    (r"\frac{bh}{2}", r"\frac{1}{2} b", "wrong"),
    ("x=1, y=2t", "x=1, y=2", "wrong"),
    ("6s^2", "6 s^{2}", "correct"),
    ("6s^2", "6", "wrong"),
    ("15", "15 cm2", "correct"),
    *(("4", boxed, "correct") for boxed in ("4s", "4 s", "4m", "4 h")),
    *(("1500", boxed, "correct") for boxed in (r"1.5 \times 10^3 m", "1500 g", "1500g")),
    ("3/4", "3/4 h", "correct"),
    # Values without their names stand in the order of the names.
    *(("x=1, y=2", boxed, "wrong") for boxed in ("2, 1", "(2, 1)")),
    *(("x=1, y=2", boxed, "correct") for boxed in ("1, 2", "(1,2)", "y=2, x=1")),
    ("(1,3,2)", "x=1, y=2, z=3", "wrong"),
    ("x=1, x=2", "2, 1", "correct"),
    # Greek letters: their case counts, and each has a second form.
    (r"\Delta x", r"\delta x", "wrong"),
    (r"\Phi", r"\phi", "wrong"),
    (r"\phi+\epsilon", r"\varphi + \varepsilon", "correct"),
    ("12egg", "12", "wrong"),
    ("12:30", "12{:}30", "correct"),
    ("no way", r" $\text{no   way}.$ ", "correct"),
    ("7", " 7.", "correct"),
    # Variables: blanks and order do not count, their case does.
    ("p - q", "p-q", "correct"),
    ("p-q", "-q + p", "correct"),
    ("p-q", "P-Q", "wrong"),
    ("p-q", "q-p", "wrong"),
    *(("xy=1", boxed, "correct") for boxed in ("xy-1=0", "2xy=2", "1=yx")),
    *(("xy=1", boxed, "wrong") for boxed in ("xy=2", "xy+1=0", "x=1", r"y=\frac{1}{x}")),
    *((f"{name}=5", f"{name}-5=0", "wrong") for name in ("x", "AB", "speed")),  # which has yet to be solved
    ("x y", "xy", "correct"),
    ("xy", "yx", "correct"),
    ("abc", "c a b", "correct"),
    ("p q r", "rqp", "correct"),
    ("p q r", "p", "wrong"),
    ("2ab", "2 b a", "correct"),
    ("2ab", "2", "wrong"),
    ("5km", "5 km", "correct"),
    ("abc", "ABC", "wrong"),
    ("2x+3", "2X+3", "wrong"),
    (r"\frac{P}{Q}", r"\frac{p}{q}", "wrong"),
    ("A", "a", "correct"),  # a choice
    # Words: their case does not count, their letters' order does.
    ("Yes", "yes", "correct"),
    ("no solution", "No solution", "correct"),
    ("Sam", "sam", "correct"),
    (r"\text{dog}", "Dog", "correct"),
    ("dog", r"\text{Dog}", "correct"),
    (r"\text{ab}", "ba", "wrong"),
    ("even", "odd", "wrong"),
    ("The well-known answer", "the well-known answer", "correct"),
    # A percent sign on one side is itself or a hundredth.
    ("60%", r"60\%", "correct"),
    ("60%", r"60\ \%", "correct"),
    ("60%", r"60~\%", "correct"),
    ("60%", r"60{\%}", "correct"),
    ("60%", r"61\ \%", "wrong"),
    ("60%", "60", "correct"),
    ("60%", "60%", "correct"),
    ("60%", "0.6", "correct"),
    ("60%", r"\frac{3}{5}", "correct"),
    ("60", r"60\%", "correct"),
    ("0.6", r"60\%", "correct"),
    ("60%", r"60\text{ percent}", "correct"),
    ("60%", r"6\%", "wrong"),
    ("60%", "61", "wrong"),
    ("60%", "6", "wrong"),
    ("60", "0.6", "wrong"),
    (r"12\frac{1}{2}\%", "12.5", "correct"),
    # Units do not count.
    ("12 cm^2", "12", "correct"),
    ("12", r"12\text{ cm}^2", "correct"),
    ("18 dollars", "18", "correct"),
    ("18", "18 dollars", "correct"),
    ("2,500 dollars", "2500", "correct"),
    ("10 m/s", "10", "correct"),
    ("100 square inches", "100", "correct"),
    ("18 dollars", "19 dollars", "wrong"),
    ("3 abc", "3", "wrong"),
    ("6", "6 sq. ft.", "correct"),
    ("6", r"6 {\rm km}", "correct"),
    # Money and angles.
    ("1234.5", r"\$1,234.50", "correct"),
    ("18", r"18\$", "correct"),
    ("-5", "-$5", "correct"),
    ("£5", "5", "correct"),
    ("£5", "$5", "wrong"),
    ("£5", "5 pounds", "correct"),
    ("£5", "5 GBP", "correct"),
    ("5", "€5", "correct"),
    ("5", "5 USD", "correct"),
    ("5", "€6", "wrong"),
    ("30^\\circ", "30", "correct"),
    ("30°", r"30^{\circ}", "correct"),
    ("60", r"60^\circ\text{C}", "correct"),
    # How numbers are written.
    ("1000", "1 000", "correct"),
    ("1000000", r"1\,000\,000", "correct"),
    ("1000", "1{,}000", "correct"),
    ("12.5", "12{,}5", "correct"),
    ("3.14", "3,14", "correct"),
    ("3.14", "3,15", "wrong"),
    ("1,2", "1.2", "wrong"),  # a list
    ("1,234", "1.234", "wrong"),
    ("2,000, 1,000", "1000, 2000", "correct"),
    ("2,000, 1,000", "2000", "wrong"),
    ("2.5", "2 1/2", "correct"),
    ("2 1/2", "1", "wrong"),
    ("2½", r"\frac{5}{2}", "correct"),
    ("0.0015", "1.5e-3", "correct"),
    ("1e3", "1000", "correct"),
    (r"0.\overline{3}", r"\frac{1}{3}", "correct"),
    (r"\frac{7}{12}", r"0.58\overline{3}", "correct"),
    (r"0.\overline{3}", "0.3", "wrong"),
    ("12", r"12^{\text{th}}", "correct"),
    ("12th", "13th", "wrong"),
    ("3.5 million", "3500000", "correct"),
    ("3.5 million", "3.5", "wrong"),
    ("24", "2 dozen", "correct"),
    ("10", r"\binom52", "correct"),
    # Signs of Unicode, and what shows nothing.
    ("12", "\uff11\uff12", "correct"),
    ("12", "\u0661\u0662", "correct"),
    ("-5", "\u22125", "correct"),
    ("-5", "\u20135", "correct"),
    ("x^2", "x²", "correct"),
    ("x^{12}", "x¹²", "correct"),
    ("a_1", "a₁", "correct"),
    (r"\sqrt{2}", "√2", "correct"),
    (r"\infty", "∞", "correct"),
    (r"x \ge 3", "x ≥ 3", "correct"),
    (r"\emptyset", "∅", "correct"),
    (r"\emptyset", r"\varnothing", "correct"),
    (r"\mathbb{R}", r"\mathbb R", "correct"),
    ("3", "\u200e3\u200b\x00", "correct"),
    ("5", "**5**", "correct"),
    ("5", "`5`", "correct"),
    ("5", "5,", "correct"),
    ("5", "5\\ ", "correct"),
    ("n", "N", "wrong"),  # no choice
    # Numbers before a unit are read as numbers alone are.
    ("2 1/2 cups", "2.5", "correct"),
    ("2 1/2 cups", "1", "wrong"),
    ("5/3", "1 2/3 hours", "correct"),
    ("3.5%", r"3 1/2\%", "correct"),
    ("12.5", r"12{,}5 \text{ km}", "correct"),
    ("12.5 km", "12,5 km", "correct"),
    ("1500", "1.5e3 m", "correct"),
    (r"\frac{1}{3}", r"0.\overline{3} \text{ cm}", "correct"),
    (r"0.\overline{3} \text{ cm}", "0.3", "wrong"),
    ("10", "10 years old", "correct"),
    ("10", "11 years old", "wrong"),
    ("≈5", "5", "correct"),
    ("5", "≈6", "wrong"),
    # Colour, weight, size and space show no other value.
    ("18", r"\color{red}{18}", "correct"),
    ("18", r"{\color{red}18}", "correct"),
    ("18", r"\textcolor{blue}{19}", "wrong"),
    ("18", r"\color[rgb]{1,0,0}18", "correct"),
    ("18", r"\underline{18}", "correct"),
    ("18", r"\bf{18}", "correct"),
    ("18", r"\bm{18}", "correct"),
    ("18", r"\Large{18}", "correct"),
    ("18", r"\emph{18}", "correct"),
    ("18", r"18\hspace{2pt}", "correct"),
    ("18", "18 \\\\", "correct"),
    ("1.5", "1.5.", "correct"),
    ("x", r"\boldsymbol{x}", "correct"),
    ("x", r"\boldsymbol{y}", "wrong"),
    ("(1,2)", r"\bigl(1,2\bigr)", "correct"),
    ("blue", r"\textcolor{red}{\text{blue}}", "correct"),
    # Numbers below a millionth are no zeros.
    (r"1.6 \times 10^{-19}", r"9.1 \times 10^{-31}", "wrong"),
    (r"1.6 \times 10^{-19}", r"16 \times 10^{-20} \text{ C}", "correct"),
    ("0.0000001", "0.0000002", "wrong"),
    ("0.0000001", r"\frac{1}{10^7}", "correct"),
    ("0.0000001, 0.0000002", "0.0000001, 0.0000003", "wrong"),
    (r"\frac{1}{13983816}", "0.0000001", "wrong"),
    (r"\frac{1}{7776}", "0.000129", "correct"),
    ("e^{-10}", "0.0000454", "correct"),
    ("0.333333", r"\frac{1}{3}", "correct"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1&2\\3&4\end{bmatrix}", "correct"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", "wrong"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix} 1 \\[4pt] 2 \end{bmatrix}", "correct"),
    # Words behind a number may say that it is not the whole answer.
    *(
        ("5", rf"5\text{{ {words}}}", "wrong")
        for words in ("and a half", "tenths", "or more", "plus tax", r"if } n \text{ is even")
    ),
    *(
        ("12", boxed, "wrong")
        for boxed in (
            r"12\text{ apples and }3\text{ pears}",
            r"12\text{ apples, } 3\text{ pears}",
            r"12\text{ boxes of }6",
            r"12 \text{ if } n \text{ is even, } 3 \text{ otherwise}",
        )
    ),
    ("12", r"12\text{ apples and oranges}", "correct"),
    ("5", r"\text{approximately } 5", "correct"),
    # What a percentage is of, and money by its sign and by its name.
    (r"20\%", r"20\%\text{ increase}", "correct"),
    (r"20\%\text{ increase}", r"20\%\text{ decrease}", "wrong"),
    ("0.2", r"20\% \text{ of the total}", "correct"),
    ("€5", r"5\text{ euros}", "correct"),
    ("€5", r"5\text{ dollars}", "wrong"),
    ("50¢", r"\$0.50", "correct"),
    ("50¢", r"\$50", "wrong"),
    ("300 K", r"300\text{ kelvin}", "correct"),
    ("300 K", "300", "correct"),
    (r"\$70K", "70000", "correct"),
    # Both signs within a set or beside `and`.
    (r"\{1\pm\sqrt{5},-2\}", r"1+\sqrt5, 1-\sqrt5, -2", "correct"),
    (r"\{\pm1,\pm2\}", r"\{1,-1,2,-2\}", "correct"),
    (r"\{\pm1,\pm2\}", r"\{1,-2\}", "wrong"),
    (r"1, 2+\sqrt3, 2-\sqrt3", r"x=1 \text{ or } x=2\pm\sqrt3", "correct"),
    # Thousands as MATH sets them, and ordinals within words.
    (r"12,\!000,\!000", "12000000", "correct"),
    (r"\$32,\!348", r"\$32,348", "correct"),
    (r"\$32,\!348", "32349", "wrong"),
    (r"11,\! 111,\! 111,\! 100", "11111111100", "correct"),
    ("10, 000", "10000", "correct"),
    (r"1,\!2", "12", "wrong"),
    ("1, 200", "1200", "wrong"),  # a list
    ("2", r"\text{2nd}", "correct"),
    ("12", r"12^{\text{th}}\text{ term}", "correct"),
    (r"\text{March 5}", r"\text{March 5th}", "correct"),
    (r"\text{March 5}", r"\text{March 15th}", "wrong"),
    (r"2nd\cos\theta", r"2\cos\theta", "wrong"),  # a product
    # Values stand in the order in which their names are given.
    ("(2,1)", "(n,k)=(2,1)", "correct"),
    ("(2,1)", "(n,k)=(1,2)", "wrong"),
    ("(n,k)=(2,1)", "(1,2)", "wrong"),
    ("(n,k)=(2,1)", "k=1, n=2", "correct"),
    ("(2,1)", "n=2, k=1", "correct"),
    ("(2,1)", "n=1, k=2", "wrong"),
    ("(1,2)", "y=2, x=1", "correct"),
    ("(2,1), (3,4)", r"(n,k)=(2,1)\text{ or }(3,4)", "correct"),
    ("(2,1), (3,4)", "(n,k)=(1,2),(4,3)", "wrong"),
    # Things that both sides count keep their numbers.
    (r"\text{23 chickens, 12 rabbits}", r"\text{12 rabbits and 23 chickens}", "correct"),
    (r"\text{23 chickens, 12 rabbits}", r"12\text{ chickens}, 23\text{ rabbits}", "wrong"),
    (r"\text{23 chickens, 12 rabbits}", r"12\text{ hens}, 23\text{ rabbits}", "wrong"),
    (r"\text{1 cow and 2 hens}", r"\text{2 cows and 1 hen}", "wrong"),
    (r"\text{23 chickens, 12 rabbits}", "12, 23", "correct"),
    ("3, 12 rabbits", "3 chickens, 12", "correct"),
    (r"3\text{ cows and }2\text{ hens}", r"2\text{ cows and }3\text{ hens}", "wrong"),
    (r"3\text{ cows and }2\text{ hens}", r"\text{2 hens, 3 cows}", "correct"),
    # Real numbers without some, a number before a matrix, and times of 24 hours.
    (r"(-\infty,2)\cup(2,\infty)", r"\mathbb{R} \setminus \{2\}", "correct"),
    (r"(-\infty,2)\cup(2,\infty)", r"\mathbb{R} \setminus \{3\}", "wrong"),
    (r"(-\infty,-2)\cup(-2,2)\cup(2,\infty)", r"x \in \mathbb{R} - \{2,-2\}", "correct"),
    (r"\mathbb{R}\backslash\{2,-2\}", r"\mathbb{R}\setminus\{-2,2\}", "correct"),
    (r"\mathbb{R}\backslash\{2,-2\}", r"\mathbb{R}\setminus\{-2\}", "wrong"),
    (r"\mathbb{Z}\setminus\{0\}", r"\mathbb{R}\setminus\{0\}", "wrong"),
    (r"A \setminus B", r"B \setminus A", "wrong"),
    (
        r"\begin{pmatrix} 1/7 \\ 2/7 \end{pmatrix}",
        r"\frac{1}{7}\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        "correct",
    ),
    (
        r"\begin{pmatrix} 1/7 \\ 2/7 \end{pmatrix}",
        r"\frac{1}{7}\begin{pmatrix} 2 \\ 1 \end{pmatrix}",
        "wrong",
    ),
    (r"-\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{bmatrix} -1 & -2 \end{bmatrix}", "correct"),
    (r"7:30 \text{ p.m.}", "19:30", "correct"),
    (r"7:30 \text{ a.m.}", "19:30", "wrong"),
    ("19:30", "7:30", "wrong"),
    ("0:15", "12:15 am", "correct"),
    (r"500 \text{ nm}", r"0.5\ \mu\text{m}", "correct"),
    # Functions of several numbers, and derivatives, are no constants.
    (r"m+n-\gcd(m,n)", r"n+m-\gcd(n,m)", "correct"),
    (r"m+n-\gcd(m,n)", "m+n-1", "wrong"),
    (r"\operatorname{lcm}(m,n)", r"\frac{mn}{\gcd(m,n)}", "correct"),
    (r"\operatorname{lcm}(m,n)", "mn", "wrong"),
    (r"\gcd(2a,2b)", r"2\gcd(a,b)", "correct"),
    (r"\gcd(a,b,c)", r"\gcd(a,b)", "wrong"),
    ("6", r"\gcd(12,18)", "correct"),
    (r"\max(a,b)", r"\max\{b,a\}", "correct"),
    (r"\max(a,b)", r"\min(a,b)", "wrong"),
    (r"\max(a,b)", r"\frac{a+b+|a-b|}{2}", "correct"),
    (r"\frac{\partial f}{\partial x}", r"\frac{\partial f}{\partial y}", "wrong"),
    (r"\frac{\partial f}{\partial x}", "0", "wrong"),
    (r"\frac{\partial^2 f}{\partial x^2}", "0", "unparsable"),
    # What is said of a name: its values, what it is in, and for which integers.
    (r"\{x \mid x>2\}", r"(2,\infty)", "correct"),
    (r"\{x \mid x>2\}", r"[2,\infty)", "wrong"),
    (r"\{x \mid x>2\}", "x>2", "correct"),
    (r"(1,2]", r"\{x : 1 < x \le 2\}", "correct"),
    (r"\{x \mid x \ne 1\}", r"(-\infty,1)\cup(1,\infty)", "correct"),
    (r"\{x\in\mathbb{Z} \mid x>2\}", r"(2,\infty)", "wrong"),
    (r"a\in(0,1)", "0<a<1", "correct"),
    (r"a\in(0,1)", "0<b<1", "wrong"),
    ("(0,1)", "0<a<1", "wrong"),
    (r"x\in R", r"\mathbb{R}", "correct"),
    (r"k\pi, k\in\mathbb{Z}", r"k\pi", "correct"),
    ("2n-1", r"a_n=2n-1\ (n\in\mathbb{N}^*)", "correct"),
    (r"k\pi, k\in\mathbb{Z}", r"n\pi", "wrong"),
    (r"x>3, x\in\mathbb{Z}", "x>3", "wrong"),
    (r"m=2, n\in\mathbb{N}", "m=2", "wrong"),
    ("y=x^2 (x>0)", "y=x^2, x>0", "correct"),
    ("y=x^2 (x>0)", "y=x^2, x<0", "wrong"),
    ("(1,2)", r"\begin{cases}x=1\\y=2\end{cases}", "correct"),
    ("(1,2)", r"\left\{\begin{array}{l}x=1\\y=2\end{array}\right.", "correct"),
    ("(2,1)", r"\begin{cases}x=1\\y=2\end{cases}", "wrong"),
    (r"A\cap B=\{1,2\}", r"\{1,2\}", "correct"),
    (r"A\cap B=\{1,2\}", r"A\cup B=\{1,2\}", "wrong"),
    (r"x>-1 \text{ and } x \ne 2", r"(-1,2)\cup(2,\infty)", "correct"),
    (r"x>-1 \text{ and } x \ne 2", r"(-1,\infty)", "wrong"),
    (r"k\in(-1,0)\cup(0,1)", r"-1<k<0 \text{ or } 0<k<1", "correct"),
    (r"k\in(-1,0)\cup(0,1)", "-1<k<1", "wrong"),
    ("x-2y+1=0 \\text{ or } x=1", r"x=1 \text{ or } y=\frac{x+1}{2}", "correct"),
    (r"f(x)=cx, c\in\mathbb{R}", "f(x)=cx", "correct"),
    (r"f(x)=kx, k\in\mathbb{R}", r"f(x)=cx, c\in\mathbb{R}", "correct"),
    ("a_n=2^n", r"a_n = 2^n \text{ for all } n \ge 1", "correct"),
    ("f(x)=cx", r"f(x)=cx, \text{ where } c \text{ is a real constant}", "correct"),
    ("n^2+n", r"n^2+n \text{ for all } n", "correct"),
    ("n^2+n", r"n^2 \text{ for all } n", "wrong"),
    (r"n^2, n\in\mathbb{N}^*", r"n^2\ (n\in\mathbb{Z}_+)", "correct"),
    (r"n^2, n\in\mathbb{N}^*", r"n^2\ (n\in\mathbb{Z})", "wrong"),
    ("y=x", r"y=x, x \ge 1", "wrong"),
    # A ratio, a relation and a matrix are no lists of what they hold.
    ("1:2", "2, 1", "wrong"),
    ("1, 2", "1:2", "wrong"),
    ("x=1, y=2", "1:2", "wrong"),
    (r"\{1,2\}", "1:2", "wrong"),
    ("1, 2", "1<2", "wrong"),
    ("1, 2", r"1 \to 2", "wrong"),
    ("a=b=c=1", "(1,1,1)", "correct"),
    ("a=b=c=1", "(1,1,2)", "wrong"),
    ("540", r"N \equiv 540 \pmod{1000}", "correct"),
    (r"x \equiv 3(\bmod 7)", r"3 \pmod{7}", "correct"),
    (r"x \equiv 3 \pmod{7}", "3", "wrong"),
    # A bound is no number, and a sign before a product leaves it one.
    *(
        ("12", boxed, "wrong")
        for boxed in ("> 12", r"\ge 12", r"\ne 12", r"\not= 12", r"\le 12x", r"\propto 12")
    ),
    *(("12", boxed, "wrong") for boxed in (r"\approx 12x", r"\approx 12 + x", r"-12 \to 12")),
    *(("12", boxed, "correct") for boxed in (r"\approx 12", r"\therefore 12", "= 12", r"\equiv 12")),
    (r"\pi", r"\pi \approx 3.14", "correct"),
    # An eccentricity is e, a current i.
    *((r"\frac12", boxed, "correct") for boxed in (r"e = \frac12", "e = 0.5", r"e \approx 0.5", "i = 0.5")),
    (r"e = \frac12", "0.5", "correct"),
    (r"e = \frac12", "e = 0.5", "correct"),
    (r"\frac12", "e = 0.4", "wrong"),
    (r"\frac12", r"e = \frac14 = \frac12", "wrong"),
    ("e", "e = 3", "wrong"),
    ("3", r"\pi \approx 3", "wrong"),
    # Numbers are exact, whatever they are written in.
    ("243", r"2.43 \times 10^{2}", "correct"),
    (r"2.43 \times 10^2 \text{ kPa}", "243", "correct"),
    ("57", r"0.57 \cdot 10^2", "correct"),
    ("57", r"0.58 \cdot 10^2", "wrong"),
    ("-0.0029", "-2.9e-3", "correct"),
    ("1.6e-19", r"1.6 \cdot 10^{-19} \text{ C}", "correct"),
    ("0.238%", r"\frac{119}{50000}", "correct"),
    ("193", r"\mathbf{193}", "correct"),
    (".721", r"\text{0.721}", "correct"),
    ("193", r"\mathbf{194}", "wrong"),
    (r"x_{12}", r"x_{\text{12}}", "correct"),
    # Primes, transposes and derivatives; `and` is not `or`.
    ("y'", "y''", "wrong"),
    ("y'", "y", "wrong"),
    ("f'(x)", r"f^{\prime}(x)", "correct"),
    ("f''(x)", r"f^{\prime\prime}(x)", "correct"),
    ("f'(x) = 2x", "2x", "correct"),
    ("2x", "f'(x) = 2x", "correct"),
    # A value at zero is a name; as a product it would be zero, and so would be all that it stands before.
    (r"I(0) e^{-\frac{t}{R C}}", r"I(0)e^{-t/(RC)}", "correct"),
    (r"I(0) e^{-\frac{t}{R C}}", r"I(0)\left(1-e^{-\frac{t}{RC}}\right)", "wrong"),
    (r"i(0)e^{-t/\tau}", r"i(0)\,e^{-\frac{t}{\tau}}", "correct"),
    (r"i(0)e^{-t/\tau}", r"i(0)e^{-2t/\tau}", "wrong"),
    ("x(0)+v(0)t", "v(0) t + x(0)", "correct"),
    ("x(0)+v(0)t", "0", "wrong"),
    (r"\dot{x}(0)t", r"\dot{x}(0)t^2", "wrong"),
    ("v(0)+gt", "v+gt", "wrong"),
    ("I(0)", "I(1)", "wrong"),
    ("2y[0]+1", "1", "wrong"),
    ("P(0)=3", "3", "correct"),
    ("P(0)=3", "P(0)=5", "wrong"),
    ("5", "5'", "correct"),
    ("y", "'y'", "correct"),
    ("A^T", "A", "wrong"),
    ("A^T", "A^{T}", "correct"),
    (r"\frac{dy}{dx}", r"\frac{dx}{dy}", "wrong"),
    (r"\frac{dy}{dx}", r"\dfrac{dy}{dx}", "correct"),
    (r"\frac{d}{d+1}", r"1-\frac{1}{d+1}", "correct"),
    (r"x<1 \text{ or } x>2", r"x<1 \text{ and } x>2", "wrong"),
    (r"x<1 \text{ or } x>2", r"x>2 \text{ or } x<1", "correct"),
    (r"x<1 \text{ or } x>2", "x<1, x>2", "correct"),
    (r"\angle ABC", r"\angle ACB", "wrong"),
    (r"\angle ABC", r"\angle CBA", "correct"),
    (r"\angle ABC = 60^\circ", r"60^\circ", "correct"),
    # Times of day are no quotients, and a ratio of three parts has them in their order.
    *(("12:30", boxed, "wrong") for boxed in ("2:5", "0.4", "12:31", r"\frac{2}{5}")),
    *(("12:30 PM", boxed, "correct") for boxed in ("12:30", r"12:30\text{ p.m.}", r"12:30 \, \text{PM}")),
    *(("3:00 pm", boxed, status) for boxed, status in (("3:00 am", "wrong"), (r"3\text{ pm}", "correct"))),
    *(("8", boxed, "correct") for boxed in ("8 PM", "8:00")),
    ("3:10", r"\frac{3}{10}", "correct"),
    ("3:10", "0.3", "correct"),
    ("16:9", r"\frac{16}{9}", "correct"),
    ("3:4:5", "3:5:4", "wrong"),
    ("3:4:5", "3 : 4 : 5", "correct"),
    (r"1:\sqrt{3}:2", r"1:\sqrt3:\frac{4}{2}", "correct"),
    ("a:b:c", "a:c:b", "wrong"),
    # An answer that is said to be one.
    *(("5", said, "correct") for said in (r"\text{The answer is }5", r"\text{Answer: 5}", "Result = 5")),
    ("5", r"\text{The answer is }6", "wrong"),
    ("2, 3", r"\text{2 and 3}", "correct"),
    ("2, 3", r"\text{2 and 4}", "wrong"),
    # Signs that are said in words.
    (r"\emptyset", r"\text{no solution}", "correct"),
    ("no solution", r"\varnothing", "correct"),
    ("No solutions", r"\text{No Solution}", "correct"),
    ("no solution", "0", "wrong"),
    *((r"\mathbb{R}", boxed, "correct") for boxed in (r"\text{all real numbers}", r"(-\infty, \infty)")),
    ("All real numbers", r"\mathbb{R}", "correct"),
    (r"\mathbb{Q}", r"\text{all real numbers}", "wrong"),
    (r"\infty", r"\text{infinity}", "correct"),
    (r"\infty", r"\text{negative infinity}", "wrong"),
    (r"\text{does not exist}", r"\text{DNE}", "correct"),
    # Further units, and those of siunitx.
    *(("25", boxed, "correct") for boxed in (r"25\,°C", r"25\ ^\circ\text{C}", r"\qty{25}{\celsius}")),
    *(("10", boxed, "correct") for boxed in (r"10\ \Omega", r"10\,\text{k}\Omega", r"10\ \mu\text{F}")),
    *(("10", boxed, "correct") for boxed in (r"\SI{10}{m}", r"10\ \frac{\text{m}}{\text{s}^2}", r"\num{10}")),
    *(("10", boxed, "wrong") for boxed in (r"\SI{11}{m}", r"11\ \frac{\text{m}}{\text{s}^2}", r"11\ \Omega")),
    # Known units on both sides count, in whatever size.
    *(("5 km", boxed, "correct") for boxed in ("5000 m", r"5\text{ kilometers}", r"\qty{5}{\km}", "5")),
    *(("5 km", boxed, "wrong") for boxed in ("5 m", "5 kg", r"5\text{ km}^2", r"5\text{ km/h}")),
    *(
        (r"9.8\text{ m/s}^2", boxed, "correct")
        for boxed in (r"9.8\ \frac{\text{m}}{\text{s}^2}", "9.8 m/s^2")
    ),
    (r"9.8\text{ m/s}^2", r"9.8\text{ m/s}", "wrong"),
    (r"\$0.50", r"50\text{ cents}", "correct"),
    (r"\$5", r"5\text{ cents}", "wrong"),
    ("3 hours 20 minutes", r"200\text{ minutes}", "correct"),
    (r"\frac{\pi}{3}", r"60^\circ", "correct"),
    # Lists, chains and bounds.
    ("1,1,2", "1,2", "wrong"),
    ("1,2", "1,1,2", "wrong"),
    ("a < x < b", "b > x > a", "correct"),
    ("a < x < b", "b < x < a", "wrong"),
    (r"x>1 \text{ and } x>2", r"(1,\infty)", "wrong"),
    (r"A \cup B \cap C", r"A \cup B \cup C", "wrong"),
    *(
        ("18", boxed, status)
        for boxed, status in (("19=18", "wrong"), ("9+9=18", "correct"), ("x=18", "correct"))
    ),
    *(("A, C, D", boxed, "correct") for boxed in ("ACD", "D, C, A", r"\text{A, C and D}")),
    *(("A, C, D", boxed, "wrong") for boxed in ("AC", "A", "ABCD")),
    # Numbers and functions.
    (r"e^{i\pi/3}", r"\frac12+\frac{\sqrt3}{2}i", "correct"),
    (r"e^{i\pi/3}", r"\frac12-\frac{\sqrt3}{2}i", "wrong"),
    *(("5!", boxed, "correct") for boxed in ("120", r"5\cdot4\cdot3\cdot2\cdot1", r"5\cdot4!")),
    *(("70k", boxed, status) for boxed, status in (("70,000", "correct"), ("70", "wrong"))),
    *((r"\ln 2", boxed, status) for boxed, status in ((r"\log 2", "correct"), (r"\log_{10} 2", "wrong"))),
    ("3", r"\log 1000", "correct"),
    (r"\sqrt[3]{-8}", "-2", "correct"),
    (r"\sqrt[13]{-1}", "-1", "correct"),
    (r"\sqrt[2025]{-x}", r"-\sqrt[2025]{x}", "correct"),
    (r"\cos n\pi", "(-1)^n", "correct"),
    (r"\sqrt{-4}\sqrt{-9}", "-6", "correct"),
    (r"\sqrt{-4}\sqrt{-9}", "6", "wrong"),
    (r"\sqrt{x^2}", "x", "wrong"),
    ("5", "5'1", "wrong"),
    ("2^{100}", "1267650600228229401496703205377", "wrong"),
    # What is read by nobody, and numbers of which not every digit can be compared.
    *(("5", boxed, "unparsable") for boxed in ("5+", r"\frac{1}{", "x^", r"\int", "10^{500}", "58477793!")),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\left(\begin{array}{c}1\\2\end{array}\right)", "correct"),
    ("18", r"{\bf 18}", "correct"),
    # Unit vectors and angle brackets.
    *((r"2\mathbf{i}-\mathbf{j}", boxed, "correct") for boxed in ("2i-j", r"2\hat{i} - \hat{j}")),
    (r"2\mathbf{i}-\mathbf{j}", r"2\hat{\imath} - \mathbf{\hat{j}}", "correct"),
    *(
        (r"2\mathbf{i}-\mathbf{j}", boxed, "wrong")
        for boxed in ("2i+j", r"2\hat{i}-\hat{k}", r"\vec i - 2\vec j")
    ),
    ("(1,2)", r"\langle 1,2 \rangle", "correct"),
    ("(1,2)", r"\left\langle 2,1 \right\rangle", "wrong"),
    # Absolute values part where the signs of two variables differ; lengths and masses have one sign.
    *(("|a|+|b|", boxed, status) for boxed, status in (("|b|+|a|", "correct"), ("|a+b|", "wrong"))),
    *(("|xy|", boxed, status) for boxed, status in (("|x||y|", "correct"), ("xy", "wrong"))),
    ("|a|+|b|+|c|", "|a+c|+|b|", "wrong"),
    (r"\sqrt{\frac{2GM}{R}}", r"\frac{1}{R}\sqrt{2GMR}", "correct"),
    # A number within words is not left out.
    *(("3", boxed, "unparsable") for boxed in (r"3 \text{ boys and 2 girls}", r"3\text{ red, 5 blue}")),
    # Rupees, metric tonnes, and hyperbolic functions by their definitions.
    *(("450", boxed, "correct") for boxed in ("Rs. 450", "Rs 450", r"\text{Rs. }450", r"\text{Rs.}\ 450")),
    *(
        ("Rs. 450", boxed, status)
        for boxed, status in (("450", "correct"), ("540", "wrong"), (r"\$450", "wrong"))
    ),
    ("5", r"\text{USD }5", "correct"),
    (r"2000\text{ kg}", r"2\text{ tonnes}", "correct"),
    (r"2\text{ tonnes}", r"200\text{ kg}", "wrong"),
    *((r"\operatorname{sech}^2 x", boxed, "correct") for boxed in (r"\frac{1}{\cosh^2 x}", r"1-\tanh^2 x")),
    (r"\coth x", r"\tanh x", "wrong"),
]


@pytest.mark.parametrize(
    ("gold", "boxed", "status"),
    [
        ("C", r"\textbf{(C) }5", "correct"),
        ("C", r"\mathrm{(C)}\ 5", "correct"),
        ("(C)", r"(C): no solution", "correct"),
        ("C", r"\textbf{(D) }5", "wrong"),
        ("5", r"\textbf{(C) }5", "wrong"),
        ("C", "(C) + 1", "wrong"),
        ("C", "(C)^2", "wrong"),
        ("C", "(C) (D)", "wrong"),
        ("C", "(C) or (D)", "wrong"),
        ("C", r"\text{(C) and (D)}", "wrong"),
        ("C", "(C) and so on", "correct"),
        *(("C", boxed, "correct") for boxed in ("C)", "C.", r"\text{C) 5}", r"\text{C. yes}", "C: 5")),
        *(("C", boxed, "correct") for boxed in ("Option C", r"\text{Choice (C)}", "answer: C")),
        *(("C", boxed, "wrong") for boxed in ("D) C", "Option D", "C 5", "C:D", "C. + 1", "C, D")),
        *(("C", boxed, "wrong") for boxed in (r"(C)\ + 1", "(C)(D)", r"\text{(C) }^2")),
        # As NuminaMath writes gold answers of multiple choice: the letter is right, and what it stands for.
        *(
            (gold, boxed, "correct")
            for gold in (r"\textbf{(C)}\ 5", r"\mathrm{(C) \ }5", r"\textbf{(C)}5", "C. 5", "(C) 5", "C) 5")
            for boxed in ("C", "(C)", r"\text{C}", "5", r"\frac{10}{2}", r"\textbf{(C)}\ 5", "C. 5")
        ),
        *((r"\textbf{(C)}\ 5", boxed, "wrong") for boxed in ("D", "6", r"\textbf{(D)}\ 5", "C + 5")),
        (r"\mathrm{(E)}\ \text{none}", "none", "correct"),
    ],
)
def test_a_choice_may_say_what_it_stands_for(gold: str, boxed: str, status: str) -> None:
    assert verify_answer(f"\\boxed{{{boxed}}}", gold) == status


@pytest.mark.parametrize(("gold", "boxed", "status"), TABLE)
def test_a_boxed_answer_is_judged(gold: str, boxed: str, status: str) -> None:
    assert verify_answer(f"So it is \\boxed{{{boxed}}}.", gold) == status


SAME, APART = True, False
BRACKETS = [
    (r"\{1,2,3\}", "(1,2,3)", APART),
    (r"\{1,2,3\}", "[1,2,3]", APART),
    (r"\{1,2,3\}", r"\left(1,2,3\right)", APART),
    (r"\{1,2,3\}", r"\left\{1,2,3\right\}", SAME),
    (r"\{1,2,3\}", r"\lbrace 1,2,3\rbrace", SAME),
    (r"\{1,2,3\}", r"\{3,2,1\}", SAME),
    (r"\{1,2,3\}", "1,2,3", SAME),
    (r"\{1,2,3\}", "3, 1, 2", SAME),
    (r"\{1,2,3\}", r"$(1,2,3)$", APART),
    (r"\{1,2\}", "(1,2)", APART),  # the open interval has more than two numbers
    (r"\{1,2\}", "[1,2]", APART),
    (r"\{1,2\}", r"x \in \{1,2\}", SAME),
    (r"\{1,2\}", r"1 \text{ and } 2", SAME),
    (r"\{1,2\}", "x=1, x=2", SAME),
    (r"(x,y)=(1,2)", r"\{1,2\}", APART),
    (r"(x,y)=(1,2)", "(1,2)", SAME),
    (r"x \in \{1,2\}", "(1,2)", APART),
    ("(1,2,3)", "1,2,3", SAME),
    ("(1,2,3)", "[1,2,3]", SAME),
    ("(1,2,3)", "(1,3,2)", APART),
    ("(3,1)", r"\{3,1\}", APART),
    ("(3,1)", r"\{1,3\}", APART),
    (r"\left(3, \frac{\pi}{2}\right)", r"\left\{3, \frac{\pi}{2}\right\}", APART),
    (r"\left(3, \frac{\pi}{2}\right)", r"\Big(3, \tfrac{\pi}{2}\Big)", SAME),
    ("(a,b)", r"\{a,b\}", APART),
    (r"\{1\}", "1", SAME),
    (r"\{(1,2)\}", r"\{\{1,2\}\}", APART),
    (r"\{(1,2),(3,4)\}", "(3,4), (1,2)", SAME),
    (r"\{(1,2),(3,4)\}", "((1,2),(3,4))", APART),
    (r"\{(1,2),(3,4)\}", r"\{\{1,2\},\{3,4\}\}", APART),
    ("(1,2), (3,4)", r"\{1,2\}, \{3,4\}", APART),
    (r"\{-1,1\}", r"\pm 1", SAME),
]


@pytest.mark.parametrize(("one", "other", "same"), BRACKETS)
def test_a_set_is_no_tuple_and_no_interval(one: str, other: str, same: bool) -> None:
    for gold, boxed in ((one, other), (other, one)):
        assert verify_answer(f"\\boxed{{{boxed}}}", gold) == ("correct" if same else "wrong"), gold


@pytest.mark.parametrize("boxed", ["1, 2, 3", "3, 1, 2", r"\{2,3,1\}", "(1,2,3)", "(2,1,3)", "[1,2,3]"])
def test_solutions_that_the_gold_lists_without_brackets_come_in_any_order(boxed: str) -> None:
    assert verify_answer(f"\\boxed{{{boxed}}}", "1, 2, 3") == "correct"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("It is 42.", "no_answer"),
        ("", "no_answer"),
        (r"\boxed{}", "unparsable"),
        (r"\boxed{ }", "unparsable"),
        (r"\boxed", "unparsable"),
        (r"\boxed 42", "correct"),
        (r"$\boxed 42$.", "correct"),
        (r"\boxed 42 is it", "correct"),
        (r"\[ \boxed 4 2 \]", "wrong"),
        (r"\fbox{42}", "correct"),
        (r"\boxed{41}, or \fbox{42}", "correct"),
        (r"\fbox", "unparsable"),
        (r"\boxed.", "unparsable"),
        (r"\boxedin{42}", "no_answer"),
        (r"\boxed{42", "unparsable"),
        (r"\boxed{" + "1" * 1001 + "}", "unparsable"),
        (r"\boxed{41} no, \boxed{42}", "correct"),
        (r"\boxed{42} no, \boxed{41}", "wrong"),
        (r"\boxed {42}", "correct"),
    ],
)
def test_the_last_box_counts_and_a_missing_one_is_told_apart(text: str, status: str) -> None:
    assert verify_answer(text, "42") == status


@pytest.mark.parametrize(
    ("answer", "other"),
    [
        ("(1, 2)", "(2, 1)"),
        ("[0, 1)", "(0, 1)"),
        (r"\text{no solution}", r"\text{Monday}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
        ("x > 3", "x < 3"),
        ("72", "27"),
    ],
)
@pytest.mark.parametrize(
    "gold", [r"\boxed{%s}", r"So $x$ is $\boxed{%s}$.", "48/2 = <<48/2=24>>24.\n#### %s"]
)
async def test_a_gold_answer_in_a_box_or_behind_its_solution_is_its_result(
    gold: str, answer: str, other: str
) -> None:
    async with VerifierPool(workers=1) as pool:
        for boxed, status in ((answer, "correct"), (other, "wrong")):
            assert verify_answer(rf"\boxed{{{boxed}}}", gold % answer) == status
            assert await pool.verify(rf"\boxed{{{boxed}}}", gold % answer) == status


@pytest.mark.parametrize(
    ("gold", "boxed", "status"),
    [
        ("The answer is 72.", "72", "correct"),
        ("The answer is 72.", "27", "wrong"),
        ("The final answer is $72$", "72", "correct"),
        ("Answer: 72", "72", "correct"),
        ("<answer>72</answer>", "72", "correct"),
        ("The answer is no.", "no", "correct"),
        ("The answer is no.", r"\text{The answer is no}", "correct"),
        ("The answer is no.", "yes", "wrong"),
        ("3 + 5 = 8", "8", "correct"),
        ("3 + 5 = 8", "3+5=8", "correct"),
        ("3 + 5 = 8", "9", "wrong"),
        ("8 = 3 + 5", "8", "correct"),
        (r"48 \div 2 = 24", "24", "correct"),
        ("3 + 5 = 9", "9", "wrong"),
        ("5x = 25", "25", "wrong"),
        ("5x = 25", "5", "wrong"),
        ("y = 2x + 1", "2x + 1", "correct"),
    ],
)
def test_a_gold_answer_may_be_said_in_words_or_as_a_calculation(gold: str, boxed: str, status: str) -> None:
    assert verify_answer(rf"\boxed{{{boxed}}}", gold) == status


@pytest.mark.parametrize(
    ("said", "gold", "status"),
    [
        (r"$\boxed{2}$ and $\boxed{3}$", "2, 3", "correct"),
        (r"$x = \boxed{3}, \boxed{2}$.", "2, 3", "correct"),
        (r"$\boxed{2} \text{ and } \boxed{3}$", "2, 3", "correct"),
        (r"$\boxed{2}\quad\text{and}\quad\boxed{3}$", "2, 3", "correct"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", r"\{1, 2, 3\}", "correct"),
        (r"\boxed{x=2}, \boxed{y=3}", "x=2, y=3", "correct"),
        (r"\boxed{5}, \boxed{5}", "5", "correct"),
        (r"\boxed{5}, \boxed{5}", "5, 5", "wrong"),
        (r"\boxed{2} and \boxed{3}", "3", "wrong"),
        (r"\boxed{3}", "2, 3", "wrong"),
        (r"\boxed{2} is no root, and \boxed{3} is", "3", "correct"),
        (r"\boxed{} and \boxed{3}", "3", "correct"),
        ("".join(rf"\boxed{{{i}}}, " for i in range(30_000)) + r"\boxed{3}", "3", "unparsable"),
    ],
)
def test_boxes_beside_each_other_are_one_answer(said: str, gold: str, status: str) -> None:
    assert verify_answer(said, gold) == status


HOSTILE = [
    "10^{10^{10}}",
    "9^{9^{9^{9}}}",
    "(10^{100000000})!",
    r"\frac{1}{" * 150 + "2" + "}" * 150,
    "(" * 450 + "1" + ")" * 450,
    r"\int_0^1 " * 60 + "x",
    r"\sqrt{" * 150 + "x" + "}" * 150,
    "x^" * 400 + "x",
    "1" * 900 + "^" + "9" * 90,
    "\\" * 900,
    "{" * 450 + "}" * 450,
    "\x00\ud800"[:1] + "∑∏√∞" * 100,
    r"\begin{pmatrix}" + "1&" * 300 + r"\end{pmatrix}",
    "__import__('os').system('touch /tmp/owned')",
    "exec('1')",
]


async def test_hostile_answers_end_in_time_and_the_pool_goes_on() -> None:
    async with VerifierPool(workers=2, deadline_s=0.5) as pool:
        began = time.monotonic()
        statuses = await asyncio.gather(*(pool.verify(f"\\boxed{{{text}}}", "42") for text in HOSTILE))
        assert time.monotonic() - began < 200
        assert set(statuses) <= {"wrong", "unparsable"} and statuses[0] == "unparsable"
        assert pool.counts["timeouts"] > 0
        pool.deadline_s = 60.0
        assert await pool.verify(r"\boxed{2/4}", "1/2") == "correct"
        with pytest.raises(ValueError, match=f"at most {MAX_GOLD_LENGTH} are compared"):
            await pool.verify(r"\boxed{1}", "1" * (MAX_GOLD_LENGTH + 1))


async def test_a_cancelled_question_does_not_answer_the_next_one() -> None:
    async with VerifierPool(workers=1, deadline_s=100.0) as pool:
        slow = asyncio.create_task(pool.verify(r"\boxed{10^{10^{10}}}", "1"))
        await asyncio.sleep(0.1)
        slow.cancel()
        assert await pool.verify(r"\boxed{2/4}", "1/2") == "correct"
        assert await pool.verify(r"\boxed{3/4}", "1/2") == "wrong"


async def test_the_loop_goes_on_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fork server imports the judge's packages, which takes seconds; a worker that nobody awaits ends."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __init__(self, *_: object) -> None:
            began.set()
            assert may_end.wait(100)  # nobody would set it if the loop waited here

        async def receive(self, _: float) -> bytes:
            return b"ready"

        def kill(self) -> None:
            ended.set()

    monkeypatch.setattr(judges, "_Worker", Slow)
    asked = asyncio.create_task(VerifierPool(workers=1).ask("1", "1"))
    assert await asyncio.to_thread(began.wait, 100)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not ended.is_set()
    may_end.set()
    assert await asyncio.to_thread(ended.wait, 100)


@pytest.mark.parametrize(
    "settings", [{"workers": 0}, {"deadline_s": 0}, {"memory_mb": 10}], ids=lambda s: next(iter(s))
)
def test_a_pool_that_cannot_work_is_refused(settings: dict[str, float]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        VerifierPool(**settings)  # type: ignore[arg-type]


NUMBERS = {
    "correct_answer_finished": 1.0,
    "correct_answer_not_finished": 0.5,
    "wrong_answer_finished": -0.1,
    "wrong_answer_not_finished": -0.2,
    "no_answer_finished": -0.3,
    "no_answer_not_finished": -0.4,
    "unparsable_finished": -0.5,
    "unparsable_not_finished": -0.6,
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("status", ["correct", "wrong", "no_answer", "unparsable"])
def test_each_status_has_its_number(status: str, finished: bool) -> None:
    prefix = {"correct": "correct_answer", "wrong": "wrong_answer"}.get(status, status)
    expected = NUMBERS[f"{prefix}_{'finished' if finished else 'not_finished'}"]
    assert get_reward(status, finished, RewardTable(**NUMBERS)) == expected


def test_unknown_statuses_and_incomplete_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="answer status 'right' is unknown; use one of correct"):
        get_reward("right", True, RewardTable(**NUMBERS))
    with pytest.raises(ValueError, match="correct_answer_finished"):
        RewardTable(**{name: value for name, value in NUMBERS.items() if name != "correct_answer_finished"})
    assert RewardTable(**NUMBERS).buffer_tokens == 0
