"""The table of ``rlhf show RUN --metrics``."""

import json
import math

import pytest

from rlhf_cli.main import main
from rlhf_cli.show import show
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


@pytest.fixture
def run_of(tmp_path):
    """Write a run folder whose metrics have these values, one a step; the last record is an evaluation."""

    def write(evaluated=(), **columns):
        names = [name.replace("_slash_", "/") for name in columns]
        records = [
            {"step": step, "time_s": 1.0, "metrics": dict(zip(names, values, strict=True)), "timing": {"step_s": 0.5}}
            for step, values in enumerate(zip(*columns.values(), strict=True), start=1)
        ]  # fmt: skip
        records += [
            {"step": step, "time_s": 1.0, "eval": {"eval/test/T0/pass@1": value}}
            for step, value in evaluated
        ]
        (tmp_path / "metrics.jsonl").write_text(
            "".join(f"{json.dumps(each)}\n" for each in records)
        )
        return tmp_path

    return write


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_a_metric_has_its_first_last_lowest_and_highest_value_with_their_steps(run_of, capsys):
    show(run_of(reward_slash_mean=[0.25, 0.75, 0.125, 0.5]), metrics="reward/mean")

    title, head, row = rows(capsys.readouterr().out)
    assert title[-2:] == ["4", "steps"]
    assert head == ["metric", "first", "last", "lowest", "highest"]
    assert row == ["reward/mean", "0.25", "(1)", "0.5", "(4)", "0.125", "(3)", "0.75", "(2)"]


def test_a_part_of_a_name_finds_all_that_have_it(run_of, capsys):
    run = run_of(
        [(0, 0.0), (2, 0.5)],
        kl_slash_ref=[0.1, 0.2],
        policy_slash_approx_kl=[1.0, 2.0],
        loss=[1.0, 2.0],
    )

    show(run, metrics="kl,pass@1")

    found = [row[0] for row in rows(capsys.readouterr().out)[2:]]
    assert found == ["kl/ref", "policy/approx_kl", "eval/test/T0/pass@1"]


def test_the_whole_name_of_a_metric_means_it_alone(run_of, capsys):
    show(run_of(reward_slash_mean=[1.0], reward_slash_mean_of_turns=[2.0]), metrics="reward/mean")

    assert [row[0] for row in rows(capsys.readouterr().out)[2:]] == ["reward/mean"]


def test_values_that_are_not_finite_are_first_or_last_and_never_best(run_of, capsys):
    show(run_of(loss=[math.nan, 2.0, 1.0, math.inf]), metrics="loss")

    row = rows(capsys.readouterr().out)[2]
    assert row == ["loss", "nan", "(1)", "inf", "(4)", "1", "(3)", "2", "(2)"]


def test_a_metric_without_a_finite_value_has_no_best(run_of, capsys):
    show(run_of(loss=[math.nan]), metrics="loss")

    assert rows(capsys.readouterr().out)[2] == ["loss", "nan", "(1)", "nan", "(1)", "-", "-"]


def test_the_table_is_json_for_programs(run_of, capsys):
    show(
        run_of(loss=[2.0, 1.0], reward_slash_mean=[math.nan, math.nan]),
        metrics="loss,mean",
        as_json=True,
    )

    loss, mean = map(json.loads, capsys.readouterr().out.splitlines())
    assert loss == {
        "metric": "loss",
        "first": [1, 2.0],
        "last": [2, 1.0],
        "lowest": [2, 1.0],
        "highest": [1, 2.0],
    }
    assert (mean["metric"], mean["first"], mean["lowest"]) == ("reward/mean", [1, None], None)


def test_a_name_that_no_metric_has_is_an_error_with_the_nearest_ones(run_of):
    with pytest.raises(
        ConfigError, match=r"--metrics reward/men.*reward/mean", check=has_code("metric/unknown")
    ):
        show(run_of(reward_slash_mean=[1.0], loss=[1.0]), metrics="reward/men")


@pytest.mark.parametrize("words", ["", ",", "loss,,"])
def test_an_empty_name_is_an_error(run_of, words):
    with pytest.raises(ConfigError, check=has_code("usage/names-of-metrics")):
        show(run_of(loss=[1.0]), metrics=words)


@pytest.mark.parametrize("step", [0, 1])
def test_flags_about_samples_are_refused_beside_it(run_of, step):
    with pytest.raises(ConfigError, match="--step", check=has_code("usage/about-samples")):
        show(run_of(loss=[1.0]), metrics="loss", step=step)


def test_a_run_without_metrics_is_an_error(tmp_path, capsys):
    assert main(["show", str(tmp_path), "--metrics", "loss"]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err
