"""Tables in the forms that other tools read."""

import csv
import io
import json
import math

import pytest

from rlhf_cli.tables import Column, Form, Parts, Table

TABLE = Table(
    [Column("set"), Column("reward", parts=("", "low")), Column("B - A", key="difference", right=True)],
    [["a|b", Parts("0.3333 [0.1]", (1 / 3, 0.1)), 3], ["c", None, 2e-7]],
)  # fmt: skip


def table_of(*cells):
    return Table([Column("name")], [[cell] for cell in cells])


def test_text_has_columns_below_each_other():
    assert TABLE.written(Form.TEXT).splitlines() == [
        "set  reward        B - A",
        "a|b  0.3333 [0.1]      3",
        "c    -             2e-07",
    ]


def test_markdown_escapes_what_would_be_a_cell():
    assert TABLE.written(Form.MARKDOWN).splitlines() == [
        "| set | reward | B - A |",
        "| --- | --- | ---: |",
        r"| a\|b | 0.3333 \[0.1\] | 3 |",
        "| c | - | 2e-07 |",
    ]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("two\nlines", r"two\\nlines"),
        ("<b>", r"\<b\>"),
        ("[x](http://y)", r"\[x\](http://y)"),
        ("policy/approx_kl", "policy/approx_kl"),
        ("_it_", r"\_it\_"),
        ("a\\|b", r"a\\\|b"),
        ("\x1b[2J", r"\\x1b\[2J"),
        ("\u2028", r"\\u2028"),
    ],
)
def test_a_name_is_no_markup(name, written):
    lines = table_of(name).written(Form.MARKDOWN).splitlines()

    assert lines[2:] == [f"| {written} |"]


def test_text_moves_no_cursor():
    assert table_of("\x1b[2J\n").written(Form.TEXT).splitlines() == ["name", r"\x1b[2J\n"]


def test_csv_has_every_digit_and_a_column_for_each_value():
    head, *rows = csv.reader(io.StringIO(TABLE.written(Form.CSV)))

    assert head == ["set", "reward", "reward_low", "difference"]
    assert rows == [["a|b", repr(1 / 3), "0.1", "3"], ["c", "", "", "2e-07"]]


def test_csv_gives_names_back_whole():
    name = 'a,"b"\nc'
    ((_,), (found,)) = csv.reader(io.StringIO(table_of(name).written(Form.CSV), newline=""))

    assert found == name


def test_numbers_that_are_not_finite_are_words_in_csv_and_null_in_json():
    table = table_of(math.nan, math.inf)

    assert table.written(Form.CSV).splitlines() == ["name", "nan", "inf"]
    assert json.loads(table.written(Form.JSON)) == [{"name": None}, {"name": None}]


def test_json_is_a_list_of_objects():
    assert json.loads(TABLE.written(Form.JSON)) == [
        {"set": "a|b", "reward": 1 / 3, "reward_low": 0.1, "difference": 3},
        {"set": "c", "reward": None, "reward_low": None, "difference": 2e-7},
    ]
