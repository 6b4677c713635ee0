"""The text of a configuration: TOML that reads back to the settings, with comments and the report."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from rlhf_plugin_migrate.document import MigrationReport, toml
from rlhf_plugin_migrate.table.outcome import OptionSetting, ReportRow, Status, shown

EMPTY = MigrationReport(origin="here", command="train", rows=(), defaults=(), warnings=())


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs",), max_codepoint=0x10FFFF)),
        st.booleans(),
        st.integers(-(2**62), 2**62),
        st.floats(allow_nan=False),
        st.lists(st.text(st.sampled_from("a\"\\'\n\t#"))),
    )
)
def test_values_read_back(value):
    assert tomllib.loads(f"x = {shown(value)}")["x"] == value


def test_sections_come_in_the_order_of_our_examples():
    settings = {
        path: OptionSetting(1, ())
        for path in (
            "train.steps",
            "actor.adam.lr",
            "seed",
            "runtime.ray.ranks.policy",
            "model.path",
            "algo.kl.coef",
        )
    }

    text = toml(settings, EMPTY, "head")

    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    sections = [line for line in lines if line.startswith("[")]
    assert lines[0] == "seed = 1"
    assert sections == ["[model]", "[runtime.ray.ranks]", "[algo.kl]", "[actor.adam]", "[train]"]
    assert tomllib.loads(text)["actor"]["adam"]["lr"] == 1


def test_a_comment_stands_beside_its_option_if_there_is_room():
    settings = {
        "train.steps": OptionSetting(1, (), "short"),
        "train.epochs": OptionSetting(2, (), "long " * 40),
    }

    lines = toml(settings, EMPTY, "head").splitlines()

    assert "steps = 1  # short" in lines
    assert lines[lines.index("epochs = 2") - 1].startswith("# long")
    assert max(map(len, lines)) <= 120


def test_the_report_has_all_rows_and_is_a_comment():
    rows = tuple(ReportRow(f"--{status.name}", status, "because\nof this") for status in Status)
    report = MigrationReport(
        origin="here",
        command="train",
        rows=rows,
        defaults=(ReportRow("--x 1", Status.DIFFERS, "why"),),
        warnings=("careful",),
        refusal="no",
    )

    text = toml({"seed": OptionSetting(1, ())}, report, "head")

    assert tomllib.loads(text) == {"seed": 1}
    for word in (*(f"--{status.name}" for status in Status), "--x 1", "careful", "refuses"):
        assert word in text


def test_a_report_is_complete_without_missing_and_unknown_options():
    for status in Status:
        report = MigrationReport(
            origin="",
            command="sft",
            rows=(ReportRow("x", status, "y"),),
            defaults=(),
            warnings=(),
        )
        assert report.is_complete == (status not in (Status.MISSING, Status.UNKNOWN))
