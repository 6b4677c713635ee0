"""Shares of tokens beyond a clip range against the sampler, in a step that is replayed with changed options."""

import math

import pytest
import torch
from tests.plugins.lab.replayed_runs import replay_rows, train, train_pairs, write_task

from rlhf_cli.runs import training_command
from rlhf_config import Layer, read_toml, resolve_options
from rlhf_core.plugins import load
from rlhf_plugin_lab.replay.behavior import ClipRange


def clip_range(**options):
    plugins = load()
    command = training_command("train", plugins)
    needed = {"model.path": "model", "data.train": ["rows.jsonl"], "reward.use": ["exact_match"]}
    layers = [
        read_toml(command.defaults, defaults=True),
        Layer.of_paths({**needed, **options}, "test"),
    ]
    resolved = resolve_options(layers, plugins, command.options)
    return ClipRange(resolved.one("algo.loss.policy"))


def share(clip, ratios, mask=None):
    policy = torch.tensor(ratios).log()
    mask = torch.ones_like(policy, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return clip.share_beyond(policy - 2.0, torch.full_like(policy, -2.0), mask)


PPO = {"algo.loss.ppo.clip_low": 0.2, "algo.loss.ppo.clip_high": 0.3}


def test_tokens_beyond_either_bound_count_whatever_their_advantage():
    # 0.7 < 0.8 and 1.4 > 1.3 are beyond; 0.9, 1.0 and 1.25 within: 2 of 5.
    assert share(clip_range(**PPO), [[0.7, 0.9, 1.0, 1.25, 1.4]]) == pytest.approx(0.4)


def test_tokens_that_do_not_count_are_no_part_of_the_share():
    mask = [[True, True, False], [True, True, False]]

    assert share(clip_range(**PPO), [[1.0, 1.4, 9.0], [1.0, 1.0, 9.0]], mask) == pytest.approx(
        1 / 4
    )
    assert share(clip_range(**PPO), [[1.4]], [[False]]) is None


def test_a_loss_with_the_ratio_of_a_sequence_is_asked_for_its_own_range():
    options = {
        "algo.loss.policy": "gspo",
        "algo.loss.gspo.clip_low": 0.2,
        "algo.loss.gspo.clip_high": 0.2,
    }

    # Geometric means: sqrt(1.5 / 1.5) = 1 within, sqrt(1.5 * 1.5) = 1.5 beyond with both of its tokens.
    assert share(clip_range(**options), [[1.5, 1 / 1.5], [1.5, 1.5]]) == pytest.approx(0.5)


def test_a_loss_that_does_not_report_clipping_is_taken_by_its_options():
    options = {
        "algo.loss.policy": "cispo",
        "algo.loss.cispo.clip_low": 0.5,
        "algo.loss.cispo.clip_high": 1.0,
    }

    assert share(clip_range(**options), [[0.4, 0.6, 1.9, 2.1]]) == pytest.approx(0.5)


def test_a_loss_without_a_range_has_no_share():
    options = {"algo.loss.policy": "topr", "algo.loss.aggregation": "seq-mean-token-sum-norm"}

    assert share(clip_range(**options), [[0.1, 9.0]]) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("behavior")
    write_task(folder)
    return train(folder, "--estimator", "grpo", "--train.batch_size", "8")


FAST = ["--actor.adam.lr", "0.05"]


def test_the_share_is_of_the_changed_loss_and_0_in_the_first_step(run, capsys):
    bounds = {"10": "1", "1e-6": "1e-6"}
    wide, narrow = (
        replay_rows(
            run,
            3,
            4,
            *FAST,
            "--algo.loss.ppo.clip_high",
            high,
            "--algo.loss.ppo.clip_low",
            low,
            capsys=capsys,
        )
        for high, low in bounds.items()
    )

    assert [row["beyond_clip"] for row in wide] == [0, 0]
    # Five times the learning rate moves more log-probs than not by more than a millionth.
    assert narrow[1]["off_policy_max"] > 1e-3
    assert 0.5 < narrow[1]["beyond_clip"] <= 1


@pytest.mark.slow
def test_the_share_agrees_with_the_largest_distance_from_the_sampler(run, capsys):
    """Nothing is beyond a range that is wider than the largest difference, and something beyond one just narrower. One
    update a step has a ratio of 1, so that the range itself changes no weight; a correction has all tokens compared."""
    words = [*FAST, "--train.batch_size", "16", "--algo.correction.kind", "tis"]
    (_, row) = replay_rows(run, 3, 4, *words, capsys=capsys)

    for factor, some in ((1.001, False), (0.999, True)):
        ratio = math.exp(row["off_policy_max"]) * factor
        bounds = [
            "--algo.loss.ppo.clip_high",
            str(ratio - 1),
            "--algo.loss.ppo.clip_low",
            str(1 - 1 / ratio),
        ]
        (_, again) = replay_rows(run, 3, 4, *words, *bounds, capsys=capsys)
        assert again["off_policy_max"] == row["off_policy_max"]
        assert (again["beyond_clip"] > 0) is some


@pytest.mark.slow
def test_pairs_have_no_such_column(tmp_path, capsys):
    write_task(tmp_path)
    rows = replay_rows(train_pairs(tmp_path), 3, 3, "--actor.adam.lr", "0.03", capsys=capsys)

    assert "beyond_clip" not in rows[0]
