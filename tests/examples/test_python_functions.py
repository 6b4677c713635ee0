"""The recipe ``python_functions``: its tasks, and its reward in the sandbox."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "python_functions"


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"python_functions_{name}", EXAMPLE / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def steps():
    return imported("steps")


@pytest.fixture(scope="module")
def reward():
    return imported("reward")


@pytest.fixture
def prepare(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds its folder
    module = imported("prepare")
    yield module
    sys.modules.pop("steps", None)


def written(prepare: ModuleType, folder: Path, monkeypatch) -> dict[str, list[dict]]:
    flags = ("--train", "60", "--held-out", "20")
    monkeypatch.setattr(sys, "argv", ["prepare.py", "--output", str(folder), *flags])
    prepare.main()
    return {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held_out")
    }


def test_tasks_are_different_and_none_that_is_held_out_is_learned(prepare, tmp_path, monkeypatch):
    rows = written(prepare, tmp_path, monkeypatch)

    said = {name: {row["steps"] for row in part} for name, part in rows.items()}
    assert {name: len(part) for name, part in said.items()} == {"train": 60, "held_out": 20}
    assert not said["train"] & said["held_out"]
    assert all(row["tests"][0][0] == [] for part in rows.values() for row in part)


def test_the_same_flags_write_the_same_tasks(prepare, tmp_path, monkeypatch):
    once, twice = (written(prepare, tmp_path / name, monkeypatch) for name in "ab")

    assert once == twice


# Numbers, the step's own number if it has one, and what the sentence says, worked out by hand.
BY_HAND = {
    "Keep only the numbers that are divisible": ([-6, 3, 4, 0], 3, [-6, 3, 0]),
    "Remove the numbers that are divisible": ([-6, 3, 4, 0], 3, [4]),
    "Keep only the numbers that are greater": ([-6, 3, 4, 0], 3, [4]),
    "Keep only the numbers whose absolute": ([-6, 3, 4, 0], 4, [3, 0]),
    "Add ": ([-6, 3], 2, [-4, 5]),
    "Subtract each": ([-6, 3], 2, [8, -1]),
    "Multiply each number": ([-6, 3], 2, [-12, 6]),
    "Replace each number by its remainder": ([-7, 8], 3, [2, 2]),
    "Replace each number by its square": ([-3, 2], None, [9, 4]),
    "Replace each number by its absolute": ([-3, 2], None, [3, 2]),
    "Replace each number by the sum": ([-31, 205], None, [4, 7]),
    "Replace each even": ([-4, 3, 0], None, [-2, 3, 0]),
    "Replace each number that is less": ([-4, 3, 0], 1, [1, 3, 1]),
    "Reverse": ([1, 2, 3], None, [3, 2, 1]),
    "Sort the list from smallest": ([2, -3, 1], None, [-3, 1, 2]),
    "Sort the list from largest": ([2, -3, 1], None, [2, 1, -3]),
    "Sort the list by absolute": ([2, -1, -2, 1], None, [-1, 1, 2, -2]),
    "Sort the list by the remainder": ([5, 3, -1, 2], 3, [3, 5, -1, 2]),
    "Remove repeated": ([2, 1, 2, 1, 3], None, [2, 1, 3]),
    "Replace the list by its running": ([2, -3, 5], None, [2, -1, 4]),
    "Replace each element by the largest": ([2, -3, 5], None, [2, 2, 5]),
    "Replace the list by the differences": ([2, -3, 5], None, [-5, 8]),
    "Keep only the elements at positions": ([1, 2, 3, 4], 3, [1, 4]),
    "Remove every element at a position": ([1, 2, 3, 4], 3, [2, 3]),
    "Multiply each element by its position": ([7, 2, 3], None, [0, 2, 6]),
    "Move the first": ([1, 2, 3], 4, [2, 3, 1]),
    "Keep the first": ([1, 2, 3], 2, [1, 2]),
    "Keep the last": ([1, 2, 3], 2, [2, 3]),
    "Repeat each": ([1, 2], 2, [1, 1, 2, 2]),
    "Exchange": ([1, 2, 3, 4, 5], None, [2, 1, 4, 3, 5]),
    "Split the list": ([1, 2, 3, 4, 5], 2, [3, 7, 5]),
    "Replace each number by how often": ([4, 1, 4], None, [2, 1, 2]),
    "Append": ([4, 1], None, [4, 1, 5]),
    "Insert": ([4, 1], None, [2, 4, 1]),
}


def test_every_step_does_what_its_sentence_says(steps):
    assert len(BY_HAND) == len(steps.TEMPLATES)
    for start, (numbers, own, wanted) in BY_HAND.items():
        [template] = [one for one in steps.TEMPLATES if one.sentence.startswith(start)]
        given = () if own is None else (own,)
        assert template.function(list(numbers), *given) == wanted, template.sentence
        assert bool(template.drawn_from) == bool(given), template.sentence


@pytest.mark.parametrize("template", range(len(BY_HAND)))
def test_every_step_takes_an_empty_list_and_leaves_its_argument_as_it_is(steps, template):
    import random

    step = steps.TEMPLATES[template].drawn(random.Random(0))
    numbers = [3, -1, 3]

    assert isinstance(step([]), list)
    step(numbers)
    assert numbers == [3, -1, 3]
    assert "{" not in step.sentence


TESTS = [[[1, 2], [2, 1]], [[], []], [[5], [5]]]


def scored(reward: ModuleType, code: str) -> dict[str, float]:
    return asyncio.run(reward.unit_tests(f"Here:\n```python\n{code}\n```\nDone.", TESTS))


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("def transform(numbers):\n    return numbers[::-1]", 1.0),
        # What is printed is no output, also by the module itself.
        (
            "print('[[2, 1], [], [5]]')\ndef transform(xs):\n    print(xs)\n    return xs[::-1]",
            1.0,
        ),
        ("def transform(numbers):\n    return numbers", 2 / 3),
        ("def transform(numbers):\n    return [numbers[0]]", 1 / 3),  # fails for the empty list
        ("def other(numbers):\n    return numbers[::-1]", 0.0),
        ("def transform(numbers:\n    return", 0.0),
        ("def transform(numbers):\n    return {1, 2}", 0.0),  # no JSON
        ("import os\nos._exit(0)", 0.0),
        (
            "def transform(numbers):\n    import socket\n    socket.socket()\n    return numbers[::-1]",
            0.0,
        ),
    ],
    ids=[
        *("right", "prints", "some", "raises", "other name", "syntax", "no list", "exit"),
        "network",
    ],
)
def test_a_function_is_scored_by_its_hidden_tests(reward, code, passed):
    result = scored(reward, code)

    assert result == {"reward": float(passed == 1.0), "passed": passed, "has_code": 1.0}


def test_the_last_block_counts_and_an_answer_without_one_earns_nothing(reward):
    assert reward.last_block("```python\na\n```\n```py\nb\n```") == "b\n"
    assert asyncio.run(reward.unit_tests("return numbers[::-1]", TESTS)) == {
        "reward": 0.0,
        "passed": 0.0,
        "has_code": 0.0,
    }


@pytest.mark.parametrize("text", ["", "[[1]]", "{}", "null", "[" * 5000])
def test_output_of_another_form_is_none_for_each_input(reward, text):
    assert reward.outputs_of(text, 2) == [None, None]
