"""The file of completions: lines there and back, halves, and lines of other prompts."""

from __future__ import annotations

import pytest

from rlhf_core import ResumeError
from rlhf_plugin_inference.generate.records import (
    AnsweredPrompt,
    PromptIdentity,
    ScoredAnswer,
    check_same_prompts,
)
from rlhf_plugin_inference.worklist.record_lines import read_records
from rlhf_testing.errors import has_code


def line(index):
    answer = ScoredAnswer(
        text="ü\u2028\n", tokens=2, stop="eos", logprob=-0.1, seed=2**62, rewards={"a": 1.5}
    )
    return AnsweredPrompt(
        index=index,
        dataset="d",
        prompt=f"p{index}",
        messages=({"role": "user", "content": "x"},),
        prompt_tokens=1,
        completions=(answer,),
    )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(f"{line(index).to_line()}\n" for index in range(3)))
    return path


def test_a_line_is_read_as_it_was_written(path):
    assert list(read_records(path, AnsweredPrompt)) == [line(0), line(1), line(2)]


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    assert check_same_prompts(tmp_path / "none", [PromptIdentity(0, "p0")]) == 0


def test_lines_of_these_prompts_are_counted(path):
    assert check_same_prompts(path, [PromptIdentity(n, f"p{n}") for n in range(7)]) == 3


@pytest.mark.parametrize(
    "prompts",
    [
        [(0, "p0"), (2, "p1"), (2, "p2")],
        [(0, "p0"), (1, "P1"), (2, "p2")],
        [(0, "p0"), (1, "p1", ("media/ab/ab.png",)), (2, "p2")],
        [(0, "p0")],
    ],
    ids=["another index", "another text", "another image", "fewer prompts"],
)
def test_a_line_of_another_prompt_is_refused(path, prompts):
    with pytest.raises(ResumeError, match=":2:", check=has_code("resume/data-changed")):
        check_same_prompts(path, [PromptIdentity(*one) for one in prompts])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"messages": null}', '"x"'])
def test_a_line_of_something_else_is_refused_with_its_number(path, text):
    with path.open("a") as file:
        file.write(text + "\n")

    with pytest.raises(ResumeError, match=":4:", check=has_code("resume/damaged")):
        list(read_records(path, AnsweredPrompt))
