"""Spans of runs on Ray, whose samples workers play, with an option changed on the same samples."""

import pytest

pytest.importorskip("ray")

from tests.plugins.lab.replayed_runs import digests, go_on, replay_rows, train, write_task

from rlhf_plugin_lab.replay.command import main

pytestmark = [pytest.mark.scale, pytest.mark.slow]

RAY = [
    *("--runtime", "ray", "--runtime.ray.rollout_workers", "2"),
    *("--runtime.ray.cpus_per.rollout", "0.5"),
]
CHANGES = {
    "learning rate": ["--actor.adam.lr", "0.03"],
    "reward": ["--reward", "rewards.py:length"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory, cluster):
    folder = tmp_path_factory.mktemp("on_ray")
    write_task(folder)
    return train(folder, "--estimator", "grpo", *RAY)


def test_a_span_is_as_recorded_where_workers_play_it(run):
    assert main([str(run), "--from", "3", "--to", "4"]) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_option_does_what_it_does_in_a_run_whose_workers_play(
    run, tmp_path, change, capsys
):
    words = [word.replace("rewards.py", str(run.parent / "rewards.py")) for word in CHANGES[change]]

    rows = replay_rows(run, 3, 4, "--out", str(tmp_path / "out"), *words, capsys=capsys)

    resumed = go_on(run, 2, *words, name=f"resumed {change}")
    assert digests(tmp_path / "out/changed", 3) == digests(resumed, 3)
    assert digests(tmp_path / "out/original", 4) == digests(run, 4)
    assert digests(tmp_path / "out/changed", 3) != digests(run, 3)
    assert rows[0]["beyond_clip"] == 0
