"""What a training left in its folder, read from Python."""

import pytest

from rlhf.result import TrainingResult
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


def result_of(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.jsonl").write_text(text)
    return TrainingResult(status="interrupted", output=folder, steps=1, seconds=1.0)


def test_sections_of_a_step_are_one_row(tmp_path):
    lines = (
        '{"step": 1, "time_s": 2.0, "metrics": {"reward/mean": 0.5}, "timing": {"step_s": 1.5}}\n'
        '{"step": 1, "time_s": 2.5, "eval": {"eval/test/T0": 0.25}}\n'
    )

    rows = result_of(tmp_path, metrics=lines).metrics()

    expected = {"step": 1, "time_s": 2.0, "reward/mean": 0.5}
    assert rows == [expected | {"eval/test/T0": 0.25, "timing/step_s": 1.5}]


def test_a_run_without_records_has_none(tmp_path):
    result = result_of(tmp_path)

    assert (result.metrics(), result.samples(), result.eval_samples()) == ([], [], [])


def test_half_of_a_last_line_is_left_out(tmp_path):
    """A run that was killed may have left it."""
    result = result_of(tmp_path, samples='{"step": 1, "reward": 1.0}\n{"step": 2, "rew')

    assert result.samples() == [{"step": 1, "reward": 1.0}]


@pytest.mark.parametrize("line", ["[]", "{}", '{"step": "2"}', '{"step": 2.0}'])
@pytest.mark.parametrize("name", ["metrics", "samples", "eval_samples"])
def test_a_line_that_is_no_record_of_a_step_is_refused_by_its_number(tmp_path, name, line):
    result = result_of(tmp_path, **{name: f'{{"step": 1, "time_s": 2.0}}\n{line}\n'})

    with pytest.raises(
        ConfigError, match=rf"{name}\.jsonl:2", check=has_code("run/damaged-record")
    ):
        getattr(result, name)()
