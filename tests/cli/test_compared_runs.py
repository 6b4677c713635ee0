"""``rlhf show RUN RUN --metrics``: runs beside each other, in every form."""

import csv
import io
import json

import pytest

from rlhf_cli.main import main
from rlhf_cli.show import show
from rlhf_cli.tables import Form
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


@pytest.fixture
def run_of(tmp_path):
    """Write a run folder with values of one metric by step, and a configuration."""

    def write(name, values, config="", metric="reward/mean"):
        folder = tmp_path / name
        folder.mkdir()
        lines = [
            json.dumps({"step": step, "time_s": 1.0, "metrics": {metric: value}})
            for step, value in values.items()
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if config:
            (folder / "config.toml").write_text(f'output = "{name}"\n{config}')
        return folder

    return write


@pytest.fixture
def two(run_of):
    """A run of 4 steps and one of 6, which differ in a rate and in a list that only one has."""
    return (
        run_of("a", dict(enumerate((0.5, 0.25, 1.0, 0.75), 1)), "[actor]\nlr = 1e-6\nseed = 1\n"),
        run_of("b", dict(enumerate((0.0, 0.5, 0.5, 0.625, 0.75, 0.875), 1)),
               '[actor]\nlr = 2e-6\nseed = 1\nnames = ["x|y"]\n'),
    )  # fmt: skip


def rows_of(capsys):
    return list(csv.reader(io.StringIO(capsys.readouterr().out)))


def test_runs_have_last_lowest_highest_and_equal_steps_beside_each_other(two, capsys):
    show(two[0], metrics="reward", others=[two[1]], table=Form.CSV)

    head, *rows = rows_of(capsys)
    a, b = map(str, two)
    assert head == ["name", "what", a, f"{a}_step", b, f"{b}_step"]
    metric = [row[1:] for row in rows if row[0] == "reward/mean"]
    assert metric == [
        ["last", "0.75", "4", "0.875", "6"],
        ["lowest", "0.25", "2", "0.0", "1"],
        ["highest", "1.0", "3", "0.875", "6"],
        ["at step 1", "0.5", "1", "0.0", "1"],
        ["at step 2", "0.25", "2", "0.5", "2"],
        ["at step 4", "0.75", "4", "0.625", "4"],
    ]


def test_options_that_differ_are_rows(two, capsys):
    show(two[0], metrics="reward", others=[two[1]], table=Form.CSV)

    options = [row for row in rows_of(capsys) if row[1] == "option"]
    assert options == [
        ["actor.lr", "option", "1e-06", "", "2e-06", ""],
        ["actor.names", "option", "", "", '["x|y"]', ""],
    ]


def test_text_and_markdown_have_a_column_for_each_run(two, capsys):
    show(two[0], metrics="reward", others=[two[1]])
    text = capsys.readouterr().out.splitlines()
    show(two[0], metrics="reward", others=[two[1]], table=Form.MARKDOWN)
    marked = capsys.readouterr().out.splitlines()

    assert text[0].split() == ["name", "what", *map(str, two)]
    assert text[1].split() == ["reward/mean", "last", "0.75", "(4)", "0.875", "(6)"]
    assert marked[2] == "| reward/mean | last | 0.75 (4) | 0.875 (6) |"
    assert marked[-1] == r"| actor.names | option | - | \[\"x\|y\"\] |".replace(r"\"", '"')


def test_json_is_an_object_for_each_row(two, capsys):
    show(two[0], metrics="reward", others=[two[1]], as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    show(two[0], metrics="reward", others=[two[1]], table=Form.JSON)

    assert json.loads(capsys.readouterr().out) == lines
    assert (lines[0]["what"], lines[0][str(two[0])], lines[0][f"{two[0]}_step"]) == ("last", 0.75, 4)  # fmt: skip


def test_a_metric_that_one_run_lacks_has_no_equal_steps(two, run_of, capsys):
    other = run_of("c", {1: 2.0}, metric="sft/nll")

    show(two[0], metrics="nll", others=[other], table=Form.CSV)

    assert [row[1:] for row in rows_of(capsys)[1:]] == [
        [what, "", "", "2.0", "1"] for what in ("last", "lowest", "highest")
    ]


def test_a_step_that_was_done_again_counts_as_its_later_value(two, run_of, capsys):
    other = run_of("c", {1: 0.0})
    with (other / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "time_s": 1.0, "metrics": {"reward/mean": 0.5}}\n')

    show(two[0], metrics="reward", others=[other], table=Form.CSV)

    assert [row[4] for row in rows_of(capsys) if row[1] == "at step 1"] == ["0.5"]


def test_the_table_of_one_run_has_every_digit(run_of, capsys):
    show(run_of("a", {1: 1 / 3, 2: 2e-7}), metrics="reward", table=Form.CSV)

    assert rows_of(capsys) == [
        ["metric", "first", "first_step", "last", "last_step", "lowest", "lowest_step", "highest", "highest_step"],
        ["reward/mean", repr(1 / 3), "1", "2e-07", "2", "2e-07", "2", repr(1 / 3), "1"],
    ]  # fmt: skip


def test_the_command_takes_several_runs(two, capsys):
    assert main(["show", *map(str, two), "--metrics", "reward", "--table", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| name | what |")


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        ({"metrics": "reward", "as_json": True, "table": Form.CSV}, "--table csv: --json is a form", "usage/two-forms"),
        ({"metrics": "reward", "plot": True}, "expected one run; rlhf view", "usage/plot-of-one-run"),
        ({"metrics": "reward", "again": True}, "named twice", "usage/run-twice"),
        ({"metrics": "rewart"}, "a and .*b has no such metric.*reward/mean", "metric/unknown"),
        ({}, "a second run is about metrics", "usage/about-metrics"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(two, options, said, code):
    others = [two[0] if options.pop("again", False) else two[1]]

    with pytest.raises(ConfigError, match=said, check=has_code(code)):
        show(two[0], others=others, **options)


@pytest.mark.parametrize("options", [{"table": Form.CSV}, {"as_json": True}])
def test_a_chart_is_text_alone(run_of, options):
    with pytest.raises(ConfigError, match="--plot", check=has_code("usage/plot-is-text")):
        show(run_of("a", {1: 1.0}), metrics="reward", plot=True, **options)
