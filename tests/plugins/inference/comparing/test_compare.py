"""Two evaluations, task by task: numbers by hand, and what is refused."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_plugin_inference.comparing.command import compare
from rlhf_plugin_inference.comparing.pairing import paired
from rlhf_plugin_inference.comparing.report import compared
from rlhf_plugin_inference.comparing.results import EMPTY, read_results
from rlhf_plugin_inference.evaluate.records import EpisodeRecord
from rlhf_testing.errors import has_code


@pytest.fixture
def write(tmp_path):
    """Writes an evaluation: rewards of each task's episodes."""

    def folder(name, rewards, *, seed=1, digests=None, keys=None, temperature=1.0, threshold=1.0):
        place = tmp_path / name
        place.mkdir()
        lines = [
            EpisodeRecord(
                set="s",
                temperature=temperature,
                uid=f"-1.{task}.{sample}.0",
                task=keys[task] if keys else str(task),
                digest=digests[task] if digests else f"d{task}",
                prompt="",
                messages=None,
                response="",
                segments=None,
                reward=reward,
                end="finished",
                turns=1,
                tokens_in=1,
                tokens_out=1,
                truncated=False,
            ).to_line()
            for task, group in enumerate(rewards)
            for sample, reward in enumerate(group)
        ]
        (place / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
        summary = {"model": name, "seed": seed, "pass_threshold": threshold, "sets": []}
        (place / "summary.json").write_text(json.dumps(summary))
        return place

    return folder


def comparison(first, second):
    (tasks,) = paired(read_results(first), read_results(second))
    return compared(tasks, threshold=1.0, level=0.95, seed=0)


def test_a_comparison_by_hand(write):
    # Differences of the tasks' means: 0.5, 0.5, -0.5, 0; the mean is 0.125. Signs of the three that differ: the sum of
    # 6 of 8 choices is at least 0.5 in size, the other 2 are 1.5: all 8 reach |0.5|, so p = 1.
    # Passed: 0.5 to 1, 0 to 0.5, 1 to 0.5, 0 to 0: two wins, one loss, p = min(1, 2 * (1 + 3) / 8) = 1.
    found = comparison(
        write("a", [[1, 0], [0, 0], [1, 1], [0, 0]]), write("b", [[1, 1], [1, 0], [1, 0], [0, 0]])
    )

    assert found.reward.paired.difference.value == 0.125
    assert found.reward.paired.p_value == 1.0
    assert (found.passed.paired.wins, found.passed.paired.losses, found.passed.paired.ties) == (
        2,
        1,
        1,
    )
    assert (found.reward.first.value, found.reward.second.value) == (0.375, 0.5)


def test_with_one_episode_a_task_the_test_of_passes_is_mcnemars(write):
    # 6 tasks turned to passed, none to failed: 2 * (1/2)^6.
    found = comparison(write("a", [[0]] * 6 + [[1]] * 4), write("b", [[1]] * 10))

    assert found.passed.paired.sign_p_value == pytest.approx(2 / 64)


def test_a_model_against_itself_differs_in_nothing(write):
    rewards = [[1, 0], [0.5, 0.25], [0, 0]]
    found = comparison(write("a", rewards), write("b", rewards))

    assert found.reward.paired.difference.value == 0.0
    assert found.reward.paired.p_value == found.passed.paired.sign_p_value == 1.0
    assert found.reward.paired.ties == 3


def test_swapping_the_models_turns_the_sign(write):
    draw = np.random.Generator(np.random.Philox(2))
    one = write("a", draw.random((12, 3)).tolist())
    other = write("b", draw.random((12, 3)).tolist())

    there, back = comparison(one, other), comparison(other, one)

    assert there.reward.paired.difference.value == -back.reward.paired.difference.value
    assert there.reward.paired.p_value == back.reward.paired.p_value
    assert there.reward.paired.wins == back.reward.paired.losses


def test_tasks_without_a_reward_in_either_are_left_out(write):
    found = comparison(write("a", [[1], [None], [0]]), write("b", [[1], [1], [1]]))

    assert (found.tasks, found.unscored) == (2, 1)


def test_tasks_are_the_same_by_name_and_row_and_not_by_place(write):
    one = write("a", [[1], [0]], keys=["x", "y"], digests=["dx", "dy"])
    other = write("b", [[0], [1]], keys=["y", "x"], digests=["dy", "dx"])

    assert comparison(one, other).reward.paired.ties == 2


@pytest.mark.parametrize(
    ("first", "second", "said", "code"),
    [
        ({}, {"rewards": [[1]]}, r"1 of \S+a are not in \S+b: 1", "eval/other-tasks"),
        (
            {},
            {"digests": ["d0", "other"]},
            r"the row of task 1 is another one in \S+b",
            "eval/other-rows",
        ),
        ({}, {"temperature": 0.0}, r"has s at 1, \S+b has s at 0", "eval/other-sets"),
        (
            {"digests": [EMPTY] * 2},
            {"digests": [EMPTY] * 2, "seed": 2},
            r"its tasks come from the seed, which is 1 in \S+a and 2 in \S+b",
            "eval/other-seed",
        ),
        (
            {},
            {"rewards": [[None], [None]]},
            "expected tasks with rewards in both",
            "eval/no-rewards",
        ),
    ],
)
def test_other_tasks_are_refused(write, first, second, said, code):
    one = write("a", **({"rewards": [[1], [0]]} | first))
    other = write("b", **({"rewards": [[1], [0]]} | second))

    with pytest.raises(ConfigError, match=said, check=has_code(code)):
        list(paired(read_results(one), read_results(other)))


def test_the_command_prints_both_models_and_the_tasks_that_differ(write, capsys):
    one, other = write("a", [[1], [0]]), write("b", [[1], [1]])

    assert main(["eval", "compare", str(one), str(other), "--by-task"]) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"A: a ({one})\nB: b ({other})\n\ns, temperature 1\n")
    assert "tasks that B wins, loses, ties  1, 0, 1" in out
    assert out.rstrip().endswith("1     0  1  1")


def test_the_numbers_come_as_json(write, capsys):
    assert main(["eval", "compare", str(write("a", [[1]])), str(write("b", [[0]])), "--json"]) == 0

    values = json.loads(capsys.readouterr().out)
    assert values["sets"][0]["reward"]["paired"]["difference"]["value"] == -1.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "required"),
        (["a", "none"], "there is no such folder"),
        (["a", "."], "expected a finished evaluation"),
        (["a", "a", "--level", "1"], "--level 1: expected"),
        (["a", "a", "--seed", "-1"], "--seed -1: expected"),
        (["a", "lax"], "expected one threshold to pass; a has 1, lax 0.5. Set --pass-threshold."),
        (["a", "bad"], "expected the summary of rlhf eval"),
        (["a", "nan"], "it cannot be read"),
    ],
)
def test_bad_input_is_refused(write, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    write("a", [[1]])
    write("lax", [[1]], threshold=0.5)
    (write("bad", [[1]]) / "summary.json").write_text("[]")
    write("nan", [[float("nan")]])

    assert main(["eval", "compare", *words]) == 2

    assert said in capsys.readouterr().err


def test_the_table_for_other_tools_has_a_line_for_each_quantity(write, capsys):
    one, other = write("a", [[1], [0], [0]]), write("b", [[1], [1], [0]])

    assert main(["eval", "compare", str(one), str(other), "--table", "csv"]) == 0

    found = comparison(one, other)
    reward, passed = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (reward["set"], reward["temperature"], reward["quantity"]) == ("s", "1.0", "reward")
    assert float(reward["difference"]) == found.reward.paired.difference.value == 1 / 3
    assert float(reward["difference_low"]) == found.reward.paired.difference.low
    assert (reward["wins"], reward["losses"], reward["ties"]) == ("1", "0", "2")
    assert passed["quantity"] == "passed (reward >= 1)"
    assert float(passed["A"]) == found.passed.first.value


def test_the_tasks_that_differ_are_a_table_of_their_own(write, capsys):
    one, other = (
        write("a", [[1], [0]], keys=["x", "y|z"]),
        write("b", [[1], [1]], keys=["x", "y|z"]),
    )

    assert main(["eval", "compare", str(one), str(other), "--by-task", "--table", "markdown"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "| set | T | task | A | B | B - A |",
        "| --- | --- | --- | --- | --- | --- |",
        r"| s | 1 | y\|z | 0 | 1 | 1 |",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--table", "tsv"], "invalid choice: 'tsv'"), (["--table", "csv", "--json"], "not allowed")],
)
def test_no_form_and_two_forms_are_refused(words, said):
    with pytest.raises(ConfigError, match=said, check=has_code("usage/command-line")):
        compare(["a", "b", *words])
