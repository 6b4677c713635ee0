"""Columns that a component needs and no row has are refused before a run starts, by ``--check`` too."""

import json

import pytest
from pydantic import Field
from tests.core import sample_plugin

from rlhf_config import Layer, parse_flags, resolve
from rlhf_core import Component, Config, ConfigError, PluginError
from rlhf_core.component import Registered
from rlhf_data.checked.lacking_prompts import check_run
from rlhf_data.checked.needed_columns import check_needed_columns
from rlhf_data.forms import opened_sets
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code


class LabelConfig(Config):
    key: str = Field("answer", description="column of the label")
    plain: bool = Field(False, description="read no label")

    def columns_needed(self):
        return {} if self.plain else {self.key: "key"}

    def row_problem(self, row):
        return None if self.plain or row.get(self.key) != "?" else "nobody knows"


class FunctionConfig(Config):
    """Columns that no option names, as a function's parameters."""

    def columns_needed(self):
        return {"ground_truth": None}


class ListConfig(Config):
    def columns_needed(self):
        return ["answer"]


@pytest.fixture
def check(plugins, tmp_path, monkeypatch):
    """``check(files, *words)``: check a run whose reward needs a column, on files that have the rows."""
    monkeypatch.chdir(tmp_path)
    labeled = Component(name="labeled", factory=object, config=LabelConfig)
    function = Component(name="of_function", factory=object, config=FunctionConfig)
    listed = Component(name="listed", factory=object, config=ListConfig)
    for reward in (labeled, function, listed):
        plugins.registries["rlhf_rewards"].add(Registered(reward, "sample"))

    def run(files, *words):
        for name, rows in files.items():
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        sets = files or ["openai/gsm8k:main"]
        typed = ["--model", "some/model", "--data", *sets, "--reward", "labeled", *words]
        layers = [Layer.of(sample_plugin.DEFAULTS, "defaults"), parse_flags(typed)]
        resolved = resolve(layers, plugins)
        return resolved, check_needed_columns(resolved, layers)

    return run


ROWS = [{"prompt": "1 + 1 =", "answer": "2"}] * 3


def test_what_is_looked_through_for_a_label_is_not_opened_again_for_other_columns(
    check, monkeypatch
):
    names = []

    def noted(spec, **options):
        names.append(spec)
        return open_source(spec, **options)

    monkeypatch.setattr(opened_sets, "open_source", noted)

    resolved, opened = check(
        {"rows.jsonl": ROWS, "more.jsonl": ROWS}, "--eval.data", "own=rows.jsonl"
    )
    check_run(resolved, opened=opened)

    assert names == ["rows.jsonl", "more.jsonl", "rows.jsonl"]


def test_nothing_is_opened_where_nothing_is_needed(check):
    assert check({"rows.jsonl": ROWS}, "--reward.labeled.plain", "true")[1] is None


def test_a_column_that_no_row_has_is_refused_with_the_option_and_the_columns(check):
    with pytest.raises(ConfigError) as caught:
        check({"rows.jsonl": ROWS}, "--reward.labeled.key", "answr")

    assert str(caught.value) == (
        "--reward.labeled.key: labeled reads the column 'answr', which no row of rows.jsonl has. "
        "Did you mean 'answer'?\n"
        "  Columns: prompt, answer. Name one of them, or add this one to the rows."
    )


def test_columns_of_the_wrong_type_are_the_plugins_fault(check):
    with pytest.raises(
        PluginError, match=r"columns_needed\(\) returned", check=has_code("plugin/wrong-answer")
    ):
        check({"rows.jsonl": ROWS}, "--reward", "listed")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("solution_str", "The response is 'response' here, a text"),
        ("completion_ids", "Tokens are 'token_ids' here"),
        ("queries", "Prompt and response are 'prompts' and 'responses' here"),
    ],
)
def test_an_argument_of_another_trainer_is_answered_with_ours(check, name, hint):
    with pytest.raises(ConfigError, match=hint, check=has_code("data/missing-column")):
        check({"rows.jsonl": ROWS}, "--reward.labeled.key", name)


def test_the_name_that_another_trainer_gives_the_response_is_answered_with_ours(check):
    with pytest.raises(ConfigError, check=has_code("data/missing-column")) as caught:
        check({"rows.jsonl": ROWS}, "--reward.labeled.key", "completions")

    assert str(caught.value) == (
        "--reward.labeled.key: labeled reads the column 'completions', which no row of rows.jsonl has. "
        "The response is 'responses' here, a list of texts even where prompts are messages: call the parameter so.\n"
        "  Columns: prompt, answer. Name one of them, or add this one to the rows."
    )


def test_an_entry_of_an_object_counts_as_a_column(check):
    """Such as verl's rows have the right answer in."""
    inside = [{"prompt": "1 + 1 =", "reward_model": {"style": "rule", "ground_truth": "2"}}] * 3
    key = "--reward.labeled.key"

    check({"rows.jsonl": inside}, key, "reward_model.ground_truth")
    check({"rows.jsonl": [{"prompt": "x", "a.b": "2"}]}, key, "a.b")
    for lacking in ("reward_model.answer", "prompt.answer"):
        with pytest.raises(ConfigError, match=lacking, check=has_code("data/missing-column")):
            check({"rows.jsonl": inside}, key, lacking)


def test_the_object_that_has_the_column_is_named(check):
    inside = [{"prompt": "1 + 1 =", "reward_model": {"style": "rule", "ground_truth": "2"}}]

    with pytest.raises(
        ConfigError,
        match=r"Did you mean 'reward_model\.ground_truth'\?",
        check=has_code("data/missing-column"),
    ):
        check({"rows.jsonl": inside}, "--reward.labeled.key", "ground_truth")
    with pytest.raises(
        ConfigError,
        match=r"take reward_model\['ground_truth'\]",
        check=has_code("data/missing-column"),
    ):
        check({"rows.jsonl": inside}, "--reward", "of_function", "--reward.labeled.plain", "true")


def test_the_right_answer_of_another_trainers_rows_goes_before_a_worked_solution(check):
    row = {
        "prompt": "1 + 1 =",
        "reward_spec": {"method": "rule", "ground_truth": "2"},
        "extra_info": {"answer": "1 and 1 are 2 #### 2"},
    }

    with pytest.raises(
        ConfigError,
        match=r"Did you mean 'reward_spec\.ground_truth'\?",
        check=has_code("data/missing-column"),
    ):
        check({"rows.jsonl": [row]})


def test_an_entry_of_json_text_is_answered_with_the_way_to_objects(check):
    row = {"prompt": "1 + 1 =", "info": json.dumps({"ground_truth": "2"})}

    with pytest.raises(
        ConfigError, match="'info' is JSON text", check=has_code("data/missing-column")
    ):
        check({"rows.jsonl": [row]}, "--reward.labeled.key", "info.ground_truth")


def test_one_row_of_one_set_is_enough(check):
    check({"rows.jsonl": ROWS})
    check(
        {"a.jsonl": [{"prompt": "x"}] * 2, "b.jsonl": [{"prompt": "x"}, *ROWS]},
        "--reward.labeled.on_error",
        "drop",
    )


def test_a_component_that_reads_no_column_asks_for_none(check):
    check({"rows.jsonl": [{"prompt": "x"}]}, "--reward.labeled.plain", "true")


def test_the_columns_are_those_that_a_form_makes(check):
    """A row in Alpaca's form has the column ``prompt`` only once it is read."""
    rows = [{"instruction": "Add.", "input": "1 + 1", "output": "2"}]

    check({"rows.jsonl": rows}, "--data.form", "alpaca", "--reward.labeled.key", "prompt")


def test_what_is_not_on_this_machine_is_left_to_the_run(check):
    check({}, "--reward.labeled.key", "no_such_column")


BAD = [*ROWS, {"prompt": "x", "answer": "?"}, {"prompt": "x"}]


def test_all_rows_that_a_reward_cannot_score_are_named_before_a_run(check):
    with pytest.raises(ConfigError, check=has_code("reward/unusable-label")) as caught:
        check({"rows.jsonl": BAD})

    assert str(caught.value) == (
        "data.train: the reward labeled cannot score 2 of 5 rows\n"
        "  rows.jsonl:4: nobody knows\n"
        "  rows.jsonl:5: this row has no column 'answer', which the reward reads. Columns: prompt\n"
        "  Repair these rows or take them out, or set --reward.labeled.on_error drop, with which their samples are "
        "left out."
    )


def test_at_most_five_of_them_are_shown(check):
    with pytest.raises(
        ConfigError,
        match=r"7 of 10 rows\n(  rows\.jsonl:\d+: nobody knows\n){5}  and 2 more\n",
        check=has_code("reward/unusable-label"),
    ):
        check({"rows.jsonl": [*ROWS, *[BAD[3]] * 7]})


def test_held_out_rows_are_looked_at_too(check, tmp_path):
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in BAD[:4]))

    with pytest.raises(
        ConfigError, match=r"eval\.data: .* 1 of 4 rows", check=has_code("reward/unusable-label")
    ):
        check({"rows.jsonl": ROWS}, "--eval.data", "held.jsonl")
    check({"rows.jsonl": ROWS}, "--eval.data", "held.jsonl", "--eval.max_samples", "3")


@pytest.mark.parametrize(
    "words",
    [["--data.max_samples", "3"], ["--reward.labeled.on_error", "drop"]],
    ids=["rows beyond those that are used", "a reward that may fail"],
)
def test_a_row_that_does_not_end_the_run_is_not_refused(check, words):
    check({"rows.jsonl": BAD}, *words)


def test_a_row_that_is_bad_by_its_prompt_is_left_to_the_run(check):
    check({"rows.jsonl": [*ROWS, {"prompt": "", "answer": "?"}]}, "--data.on_bad_row", "skip")
