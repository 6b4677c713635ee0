"""A run on rows of a data source: resumed exactly, also where the rows have grown, and stopped where they changed."""

import json

import pytest

from rlhf_core import Component, ConfigError, DataError
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import replay

STEPS = {
    "train": {"steps": 6},
    "checkpoint": {"every": 1},
    "data": {"train": [], "source": "file_of_rows"},
}
AUTO = {"resume": {"checkpoint": "auto"}}
AHEAD = {"rollout": {"max_staleness": 1}}


class FileOfRows:
    def __init__(self, path):
        self.path = path
        self.read = []

    def rows(self, start):
        lines = self.path.read_text().splitlines()
        for number in range(start, len(lines)):
            self.read.append(number)
            yield json.loads(lines[number])

    def where(self, number):
        return f"source.jsonl:{number + 1}"


@pytest.fixture
def path(small_run):
    """Five rows, so that a run of 12 prompts goes through them more than twice."""
    path = small_run.folder / "source.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n:02d}="}) + "\n" for n in range(5)))
    component = Component(name="file_of_rows", factory=lambda config: FileOfRows(path))
    small_run.with_component("rlhf_data_sources", component)
    return path


def trained(small_run, output="run"):
    """Prompts of each step, by what the sample records show."""
    return [(line["step"], line["prompt"]) for line in small_run.lines("samples.jsonl", output)]


def append(path, *numbers):
    with open(path, "a") as file:
        file.writelines(json.dumps({"prompt": f"{n:02d}="}) + "\n" for n in numbers)


EVERY = {"log": {"samples": 4}}


def test_rows_come_in_their_order_and_begin_again(small_run, path):
    small_run(STEPS, EVERY)

    prompts = [prompt for _, prompt in trained(small_run)][::2]  # two samples of each
    assert prompts == [f"{n % 5:02d}=" for n in range(12)]


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["on policy", "ahead"])
@pytest.mark.parametrize("time", [2, 4])
def test_a_run_that_broke_off_goes_on_with_the_next_row(small_run, path, ahead, time):
    small_run(STEPS, EVERY, ahead, output="whole")
    small_run.diary.__init__()
    small_run.diary.fail("learn", RuntimeError("killed"), time=time)
    with pytest.raises(Exception, match="killed"):
        small_run(STEPS, EVERY, ahead)

    small_run(STEPS, EVERY, ahead, AUTO)

    assert trained(small_run) == trained(small_run, "whole")
    assert replay(small_run.folder / "run" / "ledger.jsonl").unsettled() == []


def test_rows_that_were_appended_between_come_behind_the_others(small_run, path):
    small_run(STEPS, EVERY, {"train": {"steps": 2}})
    append(path, 5, 6)

    small_run(STEPS, EVERY, AUTO)

    prompts = [prompt for _, prompt in trained(small_run)][::2]
    assert prompts == [f"{n:02d}=" for n in (0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4)]


def test_rows_that_were_changed_between_are_named(small_run, path):
    small_run(STEPS, {"train": {"steps": 2}})
    path.write_text(path.read_text().replace("02=", "20="))

    with pytest.raises(
        DataError,
        match=r"^source\.jsonl:3: the row of --data\.source",
        check=has_code("data/changed-rows"),
    ):
        small_run(STEPS, AUTO)


def test_a_row_that_cannot_be_used_is_named_by_its_place(small_run, path):
    path.write_text(path.read_text() + '{"question": "?"}\n')

    with pytest.raises(
        DataError, match=r"^source\.jsonl:6.*'prompt'", check=has_code("data/missing-column")
    ):
        small_run(STEPS)


def test_the_columns_of_data_make_the_prompt(small_run, path):
    path.write_text('{"a": "01", "prompt": "unused"}\n')

    small_run(STEPS, EVERY, {"data": {"template": "{a}="}, "train": {"steps": 1}})

    assert {prompt for _, prompt in trained(small_run)} == {"01="}


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        (
            {"data": {"train": ["rows.jsonl"]}},
            "rows come from one of them",
            "config/source-and-sets",
        ),
        (
            {"train": {"steps": None}},
            "a source has no known end.* Set --steps 100",
            "config/steps-missing",
        ),
    ],
)
def test_what_cannot_go_with_a_source_is_refused(small_run, path, change, said, code):
    with pytest.raises(ConfigError, match=said, check=has_code(code)):
        small_run(STEPS, change)


def test_max_samples_make_an_epoch(small_run, path):
    result = small_run(STEPS, {"train": {"steps": None}, "data": {"max_samples": 8}})

    assert result.steps == 4  # two prompts a step


def test_rows_of_a_source_are_read_in_the_form_that_is_named(small_run, path):
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
    path.write_text("".join(json.dumps({"conversations": turns}) + "\n" for _ in range(5)))

    small_run(
        STEPS, EVERY, {"data": {"form": "sharegpt", "max_prompt_tokens": 18}, "train": {"steps": 1}}
    )

    assert {prompt for _, prompt in trained(small_run)} == {"user:Hi\nassistant:"}
