"""Charts of characters."""

import json
import math

import pytest

from rlhf_cli.chart import HEIGHT, chart
from rlhf_cli.show import show

LINE = [(step, float(step)) for step in range(1, 9)]


def test_a_line_goes_from_the_lower_left_to_the_upper_right():
    lines = chart(LINE, 6 + 10, braille=False)

    assert lines == [
        "   8 |         *",
        "     |        *",
        "     |      **",
        "     |     *",
        "     |    *",
        "     |   *",
        "     | **",
        "   1 |*",
        "step  1        8",
    ]


def test_braille_has_eight_dots_in_a_character():
    lines = chart([(0, 0.0), (1, 1.0)], 16, braille=True)

    assert ord(lines[0][-1]) & 0x08, "the dot at the upper right"
    assert ord(lines[HEIGHT - 1][6]) & 0x40, "the dot at the lower left"
    assert all(0x2800 < ord(each) < 0x2900 for line in lines[:HEIGHT] for each in line[6:].strip())


@pytest.mark.parametrize("braille", [True, False])
@pytest.mark.parametrize(
    "points",
    [
        LINE,
        LINE[:1],
        [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)],
        [(1, -1.7e308), (2, 1.7e308)],
        [(step, 1e-9 * step) for step in range(10_000)],
        [(2, 1.0), (1, 3.0), (2, -5.0)],
    ],
)
def test_a_chart_fits_its_width(points, braille):
    lines = chart(points, 60, braille=braille)

    assert len(lines) == HEIGHT + 1
    assert max(map(len, lines)) <= 60


def test_a_value_that_is_not_finite_is_a_gap():
    lines = chart([(0, 0.0), (1, 0.0), (2, math.nan), (3, 0.0)], 6 + 10, braille=False)

    assert lines[0] == "   0 |****     *"


def test_a_metric_without_a_finite_value_has_no_chart():
    assert chart([(1, math.nan)], 60, braille=True) == ["no value is finite"]


def test_a_pipe_gets_ascii(tmp_path, capsys):
    records = [{"step": step, "metrics": {"reward/mean": step / 4}} for step in range(1, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))

    show(tmp_path, metrics="reward/mean", plot=True)

    out = capsys.readouterr().out
    assert out.isascii()
    assert out.splitlines()[-HEIGHT - 2 : -HEIGHT] == ["reward/mean", out.splitlines()[-HEIGHT - 1]]
    assert out.splitlines()[-HEIGHT - 1].startswith("   1 |")
