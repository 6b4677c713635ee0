"""``rlhf curve``: the learning curve, drawn again."""

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_loggers.curve_command import draw
from rlhf_testing.errors import has_code


@pytest.fixture
def drawn(monkeypatch):
    """What would be drawn: histories by path."""
    found = {}
    monkeypatch.setattr(
        "rlhf_plugin_loggers.curve_command.save_curve",
        lambda history, path, title: found.update({path: (history, title)}),
    )
    return found


def test_the_curve_is_drawn_again_and_the_command_says_where(write_metrics, drawn, capsys):
    output = write_metrics(rewards=(0.25, 0.5))

    assert draw([str(output)]) == 0

    assert list(drawn) == [output / "learning_curve.png"]
    assert capsys.readouterr().out == f"{output / 'learning_curve.png'}\n"


def test_a_line_that_is_still_being_written_is_left_out(write_metrics, drawn):
    output = write_metrics(rewards=(0.25, 0.5))
    with (output / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "met')

    draw([str(output)])

    ((history, title),) = drawn.values()
    assert history.reward.values == (0.25, 0.5)
    assert title == output.name


def test_a_mistyped_flag_is_an_error_of_the_command():
    with pytest.raises(ConfigError, match="rlhf curve: ", check=has_code("usage/command-line")):
        draw(["runs/run", "--outptu", "x"])


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"metrics\.jsonl.*--output", check=has_code("run/not-a-run")
    ):
        draw([str(tmp_path)])


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("", "finished no step", "lab/nothing-to-draw"),
        ("{broken}\n", "expected the metrics of a run", "lab/metrics-unreadable"),
        ('{"metrics": {"reward/mean": 1}}\n', "'step'", "lab/metrics-unreadable"),
    ],
)
def test_records_without_a_curve_are_refused(tmp_path, drawn, text, said, code):
    (tmp_path / "metrics.jsonl").write_text(text)

    with pytest.raises(ConfigError, match=said, check=has_code(code)):
        draw([str(tmp_path)])

    assert drawn == {}
