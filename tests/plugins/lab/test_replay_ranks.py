"""Spans of a run whose policy is trained by two ranks, replayed to the bit and with an option changed."""

import json

import pytest
from tests.plugins.lab.replayed_runs import digests, go_on, train, write_task

from rlhf_plugin_lab.replay.command import main

pytest.importorskip("ray")
pytest.importorskip("deepspeed")

pytestmark = [pytest.mark.scale, pytest.mark.slow]

TWO_RANKS = ["--runtime", "ray", "--backend", "deepspeed", "--runtime.ray.ranks.policy", "2"]
RATE = ["--actor.adam.lr", "0.03"]


def test_a_span_of_two_ranks_is_replayed_and_its_first_changed_step_is_that_of_a_resumed_run(
    tmp_path, capsys
):
    write_task(tmp_path)
    run = train(tmp_path, *TWO_RANKS)
    span = [str(run), "--from", "3", "--to", "4"]

    assert main([*span, "--out", str(tmp_path / "out"), "--table", "json", *RATE]) == 0

    said = capsys.readouterr()
    assert "same weights to the bit at step 3, 4" in said.err
    first, _ = json.loads(said.out)
    assert first["update_norm_changed"] > 2 * first["update_norm_original"]
    resumed = go_on(run, 2, *RATE, name="resumed")
    assert digests(tmp_path / "out/changed", 3) == digests(resumed, 3)
