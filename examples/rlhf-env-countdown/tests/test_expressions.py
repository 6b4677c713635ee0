"""The parser of expressions, against Python's own arithmetic and against hostile texts."""

import random
from fractions import Fraction

import pytest

from rlhf_env_countdown.expressions import MAX_CHARACTERS, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("8 - 3 - 2", 3),
        ("8 / 4 / 2", 1),
        ("1 / 3 * 3", 1),
        ("2 * (3 - 5)", -4),
        ("((((9))))", 9),
        ("6 \u00f7 4", Fraction(3, 2)),
        ("3 \u00d7 4 \u2212 1", 11),
        ("007", 7),
    ],
)
def test_values_by_hand(text, value):
    assert parse(text).value == value


def test_numbers_are_listed_in_order():
    assert parse("(3 + 3) * 25").numbers == (3, 3, 25)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "+", "1 +", "1 2", "(1", "1)", "()", "1 + * 2", "-1", "1 ** 2", "1 // 2", "1.5", "1e3", "x", "1_000",
        "\uff11", "²", "1 = 1", "2 % 2", "1 / 0", "1 / (3 - 3)", "9" * 10, "__import__('os')",
        "[1][0]", "1" + " + 1" * 99,
        "(" * 100 + "1" + ")" * 100, "(" * MAX_CHARACTERS, "\x00", "1,000",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)


def test_values_are_those_of_python():
    draw = random.Random(0)

    def expression(depth):
        if not depth or draw.random() < 0.3:
            number = draw.randint(1, 50)
            return str(number), Fraction(number)
        (left, a), (right, b) = expression(depth - 1), expression(depth - 1)
        operator = draw.choice("+-*/" if b else "+-*")
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[operator]
        return f"({left} {operator} {right})", value

    for _ in range(300):
        text, value = expression(4)
        if len(text) <= MAX_CHARACTERS:
            assert parse(text).value == value
