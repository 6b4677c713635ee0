"""Steps that a function applies to a list of whole numbers: what a task says, and what is meant by it.

Each of the templates has a sentence and a function, of the list and of the number that the sentence names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

Numbers = list[int]


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of step. ``{a}`` in its sentence is drawn from the range."""

    sentence: str
    function: Callable[..., Numbers]
    drawn_from: Sequence[int] = field(default=())

    def drawn(self, draw: random.Random) -> Step:
        """Return a step of this kind, with a number of the range where there is one."""
        given = (draw.choice(self.drawn_from),) if self.drawn_from else ()
        return Step(self.sentence.format(a=given[0] if given else ""), self.function, given)


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its number."""

    sentence: str
    function: Callable[..., Numbers]
    given: tuple[int, ...]

    def __call__(self, numbers: Numbers) -> Numbers:
        return self.function(list(numbers), *self.given)


def _paired(xs: Numbers) -> Numbers:
    """Return the list with the first and second element exchanged, the third and fourth, and so on."""
    for left in range(0, len(xs) - 1, 2):
        xs[left], xs[left + 1] = xs[left + 1], xs[left]
    return xs


def _rotated(xs: Numbers, by: int) -> Numbers:
    cut = by % len(xs) if xs else 0
    return xs[cut:] + xs[:cut]


def _digits(number: int) -> int:
    return sum(map(int, str(abs(number))))


TEMPLATES = (
    Template(
        "Keep only the numbers that are divisible by {a}.",
        lambda xs, a: [x for x in xs if x % a == 0],
        (2, 3, 4, 5),
    ),
    Template(
        "Remove the numbers that are divisible by {a}.",
        lambda xs, a: [x for x in xs if x % a],
        (2, 3, 4, 5),
    ),
    Template(
        "Keep only the numbers that are greater than {a}.",
        lambda xs, a: [x for x in xs if x > a],
        range(-9, 10),
    ),
    Template(
        "Keep only the numbers whose absolute value is less than {a}.",
        lambda xs, a: [x for x in xs if abs(x) < a],
        range(8, 40),
    ),
    Template("Add {a} to each number.", lambda xs, a: [x + a for x in xs], range(2, 20)),
    Template("Subtract each number from {a}.", lambda xs, a: [a - x for x in xs], range(1, 40)),
    Template("Multiply each number by {a}.", lambda xs, a: [x * a for x in xs], range(2, 8)),
    Template(
        "Replace each number by its remainder modulo {a} (as Python's % gives it).",
        lambda xs, a: [x % a for x in xs],
        range(3, 14),
    ),
    Template("Replace each number by its square.", lambda xs: [x * x for x in xs]),
    Template("Replace each number by its absolute value.", lambda xs: [abs(x) for x in xs]),
    Template(
        "Replace each number by the sum of the decimal digits of its absolute value.",
        lambda xs: [_digits(x) for x in xs],
    ),
    Template(
        "Replace each even number by half of it; odd numbers stay.",
        lambda xs: [x // 2 if x % 2 == 0 else x for x in xs],
    ),
    Template(
        "Replace each number that is less than {a} by {a}.",
        lambda xs, a: [max(x, a) for x in xs],
        range(-9, 10),
    ),
    Template("Reverse the list.", lambda xs: xs[::-1]),
    Template("Sort the list from smallest to largest.", sorted),
    Template("Sort the list from largest to smallest.", lambda xs: sorted(xs, reverse=True)),
    Template(
        "Sort the list by absolute value, smallest first; numbers of equal absolute value keep their "
        "order.",
        lambda xs: sorted(xs, key=abs),
    ),
    Template(
        "Sort the list by the remainder modulo {a}, smallest first; numbers of equal remainder keep "
        "their order.",
        lambda xs, a: sorted(xs, key=lambda x: x % a),
        range(3, 10),
    ),
    Template(
        "Remove repeated numbers: keep the first occurrence of each.",
        lambda xs: list(dict.fromkeys(xs)),
    ),
    Template(
        "Replace the list by its running sums: each element becomes the sum of all up to and including "
        "it.",
        lambda xs: list(accumulate(xs)),
    ),
    Template(
        "Replace each element by the largest up to and including it.",
        lambda xs: list(accumulate(xs, max)),
    ),
    Template(
        "Replace the list by the differences of neighbors, each element minus the one before it, which "
        "is one element fewer; a list of fewer than two becomes empty.",
        lambda xs: [b - a for a, b in pairwise(xs)],
    ),
    Template(
        "Keep only the elements at positions that are multiples of {a}, counting positions from 0.",
        lambda xs, a: xs[::a],
        (2, 3),
    ),
    Template(
        "Remove every element at a position that is a multiple of {a}, counting positions from 0.",
        lambda xs, a: [x for at, x in enumerate(xs) if at % a],
        (2, 3),
    ),
    Template(
        "Multiply each element by its position, counting positions from 0.",
        lambda xs: [at * x for at, x in enumerate(xs)],
    ),
    Template(
        "Move the first {a} elements to the end, as a rotation: a shorter list is rotated by {a} modulo "
        "its length.",
        _rotated,
        (1, 2, 3, 4),
    ),
    Template(
        "Keep the first {a} elements, or all if there are fewer.",
        lambda xs, a: xs[:a],
        range(3, 7),
    ),
    Template(
        "Keep the last {a} elements, or all if there are fewer.",
        lambda xs, a: xs[-a:],
        range(3, 7),
    ),
    Template(
        "Repeat each element {a} times in its place.",
        lambda xs, a: [x for x in xs for _ in range(a)],
        (2, 3),
    ),
    Template(
        "Exchange the first element with the second, the third with the fourth, and so on; without a "
        "partner an element stays.",
        _paired,
    ),
    Template(
        "Split the list into groups of {a} neighbors, the last of which may be shorter, and replace "
        "each group by its sum.",
        lambda xs, a: [sum(xs[at : at + a]) for at in range(0, len(xs), a)],
        (2, 3, 4),
    ),
    Template(
        "Replace each number by how often it occurs in the list.",
        lambda xs: [xs.count(x) for x in xs],
    ),
    Template("Append the sum of all elements (0 for an empty list).", lambda xs: [*xs, sum(xs)]),
    Template("Insert the number of elements at the front.", lambda xs: [len(xs), *xs]),
)
