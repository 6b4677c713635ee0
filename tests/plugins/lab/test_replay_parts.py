"""Replays of runs that are not whole: going on, killed, with records or checkpoints that are gone, out of samples."""

import json
import shutil

import pytest
from tests.plugins.lab.replayed_runs import STEPS, replay_rows, train, write_task

from rlhf_core import ConfigError
from rlhf_plugin_lab.replay.command import held, main
from rlhf_plugin_lab.replay.sameness import checks_of
from rlhf_plugin_lab.replay.span import digests_of, find_span
from rlhf_testing.errors import has_code

GOOD = """
LATER = {later!r}


def score(response, row):
    return -1.0 if row["prompt"] in LATER else 0.4 + 0.1 * (len(response) % 2)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_task(folder)
    return train(folder, "--estimator", "grpo")


@pytest.fixture
def killed(whole, tmp_path):
    """The run as a kill in step 5 leaves it: four steps are recorded, the last line is not finished."""
    run = shutil.copytree(whole, tmp_path / "killed", symlinks=True)
    shutil.rmtree(run / "checkpoints/step-00000005")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] < STEPS]
    (run / "metrics.jsonl").write_text("".join(kept) + '{"step": 5, "metr')
    return run


def replay(run, first, last, *words):
    return main([str(run), "--from", str(first), "--to", str(last), *words])


def test_a_killed_run_is_replayed_to_its_last_step_and_the_rest_is_named(killed, capsys):
    assert replay(killed, 3, 5, "--table", "json") == 0

    printed = capsys.readouterr()
    assert [row["step"] for row in json.loads(printed.out)] == [3, 4]
    assert "steps 5 to 5 are not recorded: the run goes on, or ended before" in printed.err
    assert "metrics.jsonl" in printed.err
    assert "same weights to the bit at step 3, 4" in printed.err


def test_a_step_that_is_not_recorded_is_refused(killed):
    with pytest.raises(ConfigError, match="is 4", check=has_code("lab/no-such-step")):
        replay(killed, 5, 5)


def test_without_metrics_weights_alone_are_compared(killed, capsys):
    (killed / "metrics.jsonl").unlink()

    assert replay(killed, 3, 4) == 0

    said = capsys.readouterr().err
    assert "no metrics are recorded of step 3, 4" in said
    assert "same weights to the bit at step 3, 4" in said


@pytest.mark.slow
def test_a_step_whose_record_is_damaged_is_named_and_the_others_are_compared(killed, capsys):
    shutil.rmtree(killed / "checkpoints/step-00000003")
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    damaged = ["{" if line.startswith('{"step": 3,') else line for line in lines]
    assert damaged != lines
    (killed / "metrics.jsonl").write_text("\n".join(damaged))

    assert replay(killed, 3, 4, "--table", "json") == 0

    printed = capsys.readouterr()
    assert "no metrics are recorded of step 3" in printed.err
    assert "same metrics at step 4; same weights to the bit at step 4" in printed.err
    assert [row["metrics"] > 0 for row in json.loads(printed.out)] == [False, True]


@pytest.mark.slow
def test_a_span_of_which_nothing_is_recorded_is_not_told_to_be_as_recorded(killed, capsys):
    shutil.rmtree(killed / "checkpoints/step-00000003")
    text = (killed / "metrics.jsonl").read_text()
    (killed / "metrics.jsonl").write_text(text.replace('{"step": 3,', "{"))

    assert replay(killed, 3, 3) == 1

    assert "nothing is recorded of the span to compare with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_without_samples_is_sampled_again(killed, capsys):
    (killed / "samples.jsonl").unlink()

    assert replay(killed, 3, 4) == 0


def test_a_checkpoint_that_the_run_removes_meanwhile_is_still_compared(killed, whole):
    span = find_span(killed, 3, 4)
    shutil.rmtree(killed / "checkpoints/step-00000003")

    checks = checks_of(span, span.metrics, whole)

    assert [check.same for check in checks] == [True, True]
    assert all(check.files for check in checks)


def test_a_first_checkpoint_that_the_run_has_removed_is_named(killed, tmp_path):
    """The run removes it between the look at its folder and the replay."""
    start = find_span(killed, 3, 4).start
    shutil.rmtree(start)

    with pytest.raises(ConfigError, match="step-00000002", check=has_code("lab/checkpoint-gone")):
        held(start, tmp_path)


def test_a_checkpoint_of_which_the_run_has_removed_a_part_is_named(killed, tmp_path):
    start = find_span(killed, 3, 4).start
    shutil.rmtree(start / "policy")

    with pytest.raises(ConfigError, check=has_code("lab/checkpoint-gone")):
        held(start, tmp_path)


def test_a_first_checkpoint_is_held_while_the_run_removes_it(whole, killed, tmp_path):
    start = find_span(killed, 3, 4).start

    kept = held(start, tmp_path)
    shutil.rmtree(start)

    assert digests_of(kept) == digests_of(whole / "checkpoints/step-00000002")
    assert all((kept / name).is_file() for name in digests_of(kept))


@pytest.mark.slow
def test_nothing_but_the_runs_is_left_in_the_folder_of_out(whole, tmp_path):
    assert replay(whole, 3, 3, "--out", str(tmp_path / "new/out")) == 0

    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert sorted(path.name for path in (tmp_path / "new/out").iterdir()) == [
        "original",
        "replay.json",
    ]


def test_where_samples_run_out_the_steps_before_are_told_and_the_others_named(
    whole, tmp_path, capsys
):
    samples = [json.loads(line) for line in (whole / "samples.jsonl").read_text().splitlines()]
    later = {line["prompt"] for line in samples if line["step"] == 4}
    before = {line["prompt"] for line in samples if line["step"] == 3}
    assert later
    assert not later & before
    (tmp_path / "good.py").write_text(GOOD.format(later=later))
    words = [
        *("--reward", f"{tmp_path / 'good.py'}:score", "--rollout.filters", "dynamic_sampling"),
        *("--rollout.dynamic_sampling.low", "0", "--out", str(tmp_path / "out")),
    ]

    (row,) = replay_rows(whole, 3, 4, *words, capsys=capsys)

    assert row["step"] == 3
    assert row["update_norm_changed"] > 0
