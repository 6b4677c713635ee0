"""Curves of several runs: seeds of one label look alike, and the published points are those of the page."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.curves import Curve, curve_of, draw
from matplotlib.axes import Axes

METRIC = "eval/held_out/T0/pass@1"
RECIPE = Path(__file__).parents[2] / "examples" / "gsm_symbolic"
ROWS = {
    "grpo-42": "0.5B, GRPO, seed 42",
    "grpo-43": "0.5B, GRPO, seed 43",
    "grpo-44": "0.5B, GRPO, seed 44, on an NVIDIA H200",
    "reinforce_baseline-42": "0.5B, REINFORCE++-baseline",
    "trl-42": "0.5B, GRPO by TRL 1.16 with vLLM 0.26",
    "trl-43": "0.5B, GRPO by TRL 1.16 with vLLM 0.26, seed 43, on an NVIDIA H200",
    "trl-44": "0.5B, GRPO by TRL 1.16 with vLLM 0.26, seed 44, on an NVIDIA H200",
    "larger-42": "1.5B, GRPO (`larger.toml`)",
}
"""File of each run, and its row on the recipe's page."""
SHORTER = {"openrlhf-42": "0.5B, GRPO by OpenRLHF"}
"""File of a run with a table of its own, and what begins it."""


def write_run(file, *, values):
    lines = [
        {"step": step, "time_s": 60.0 * step, "eval": {METRIC: value}} for step, value in values
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in [{"step": 1}, *lines]))


def test_a_run_is_a_folder_or_a_file_of_its_records(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(folder / "metrics.jsonl", values=[(2, 0.25), (4, 0.5)])

    expected = Curve(steps=[2, 4], minutes=[2.0, 4.0], values=[0.25, 0.5])
    assert curve_of(folder, METRIC) == curve_of(folder / "metrics.jsonl", METRIC) == expected


def test_every_published_run_is_on_the_page():
    assert {path.stem for path in (RECIPE / "curves").glob("*.jsonl")} == {*ROWS, *SHORTER}


def test_seeds_of_one_label_have_one_color_and_one_entry_of_the_legend(tmp_path, monkeypatch):
    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda axes, *values, **style: drawn.append(plot(axes, *values, **style)[0])
    )
    curve = Curve(steps=[0, 1], minutes=[0.0, 1.0], values=[0.1, 0.2])

    draw({"ours": [curve, curve], "theirs": [curve]}, "right", tmp_path / "curve.png")

    by_step = drawn[::2]
    colors = [line.get_color() for line in by_step]
    assert colors[0] == colors[1] != colors[2]
    labels = [text.get_text() for text in by_step[0].axes.get_legend().get_texts()]
    assert labels == ["ours", "theirs"]


def test_the_points_of_a_shorter_run_are_those_of_its_table():
    page = (RECIPE / "README.md").read_text()
    table = page.split(f"| {SHORTER['openrlhf-42']} |")[1]
    [shares], [seconds] = (
        re.findall(rf"\| {name} \|(.*)\|\n", table)[:1] for name in ("held out", "seconds in steps")
    )

    curve = curve_of(RECIPE / "curves" / "openrlhf-42.jsonl", METRIC)

    assert curve.steps == [10, 20, 30]
    assert [round(value, 3) for value in curve.values] == _numbers(shares)
    assert [round(60 * minutes) for minutes in curve.minutes] == _numbers(seconds)


@pytest.mark.parametrize("file", sorted(ROWS))
def test_the_published_points_are_those_of_the_page(file):
    page = (RECIPE / "README.md").read_text()
    [row] = re.findall(rf"(?m)^\| {re.escape(ROWS[file])} \|(.*)\|$", page)
    shares = dict(zip((0, 40, 80, 120, 160), _numbers(row)[:5], strict=True))
    seconds = dict(zip((40, 80, 120), _numbers(row)[5:], strict=True))

    curve = curve_of(RECIPE / "curves" / f"{file}.jsonl", METRIC)

    points = dict(zip(curve.steps, curve.values, strict=True))
    assert {step: round(value, 3) for step, value in points.items()} == {
        step: value for step, value in shares.items() if value is not None
    }
    for step, minutes in zip(curve.steps, curve.minutes, strict=True):
        if step in seconds:
            assert round(60 * minutes) == seconds[step]


def _numbers(row: str) -> list[float | None]:
    cells = [cell.strip(" *") for cell in row.split("|")]
    return [float(cell) if cell else None for cell in cells]
