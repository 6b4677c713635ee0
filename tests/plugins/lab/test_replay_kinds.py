"""Spans of other kinds of runs, replayed to the bit and with an option changed: critics, adapters, turns, pairs."""

import json

import pytest
from tests.plugins.lab.replayed_runs import digests, go_on, train, train_pairs, write_task

from rlhf_plugin_lab.replay.command import main

pytestmark = pytest.mark.slow

RATE = ["--actor.adam.lr", "0.03"]
KEEP_ALL = ["--rollout.filters", "dynamic_sampling", "--rollout.dynamic_sampling.low", "-9"]
KINDS = {
    "critic": (["--estimator", "gae", "--critic.adam.lr", "0.01"], ["--algo.advantage.gae.lambda_", "0.5"]),
    "adapter": (["--actor.adapter", "lora"], RATE),
    "turns": (["--executor", "multi_turn", "--env", "echo_digits", "--rollout.max_length", "96",
              "--data.max_prompt_tokens", "32"], RATE),
    "several updates": (["--train.batch_size", "8", "--train.inner_epochs", "2"], ["--train.inner_epochs", "1"]),
    "correction": (["--estimator", "grpo"], ["--algo.correction.kind", "tis"]),
    # With one update a step the ratio is 1, where the two losses have one gradient.
    "loss": (["--estimator", "grpo", "--train.batch_size", "8"], ["--loss", "gspo"]),
    "filter": (["--estimator", "grpo", "--rollout.filters", "zero_variance"], KEEP_ALL),
    "ahead": (["--rollout.max_staleness", "1"], RATE),
}  # fmt: skip


@pytest.mark.parametrize(("options", "change"), KINDS.values(), ids=KINDS)
def test_a_span_is_replayed_and_its_first_changed_step_is_that_of_a_resumed_run(
    tmp_path, options, change, capsys
):
    write_task(tmp_path)
    run = train(tmp_path, *options)
    # Groups that another filter keeps move later prompts to other steps, where their samples are too old.
    steps = [3] if change is KEEP_ALL else [3, 4]
    span = [str(run), "--from", "3", "--to", str(steps[-1])]

    assert main(span) == 0
    assert f"to the bit at step {', '.join(map(str, steps))}" in capsys.readouterr().err
    assert main([*span, "--out", str(tmp_path / "out"), "--table", "json", *change]) == 0

    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == steps
    resumed = go_on(run, 2, *change, name="resumed")
    assert digests(tmp_path / "out/changed", 3) == digests(resumed, 3)
    assert digests(tmp_path / "out/changed", 3) != digests(run, 3)


def test_pairs_are_replayed_to_the_bit_and_with_another_learning_rate(tmp_path, capsys):
    write_task(tmp_path)
    run = train_pairs(tmp_path)
    span = [str(run), "--from", "3", "--to", "4"]

    assert main(span) == 0
    assert "same weights to the bit at step 3, 4" in capsys.readouterr().err
    assert main([*span, "--table", "json", *RATE]) == 0

    first, _ = json.loads(capsys.readouterr().out)
    assert first["update_norm_changed"] > 2 * first["update_norm_original"]
