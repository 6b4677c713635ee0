"""Command ``rlhf replay``: spans that come out to the bit, options changed on the same samples, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from tests.plugins.lab.replayed_runs import STEPS, digests, go_on, train, write_task
from tests.plugins.lab.run_folders import write_run

from rlhf_cli.training import TrainingCommand
from rlhf_config import TRAIN
from rlhf_core import ConfigError, RLHFError
from rlhf_plugin_lab.recorded.replay_note import note_of, with_replayed
from rlhf_plugin_lab.replay.command import main
from rlhf_plugin_lab.replay.playing import play
from rlhf_plugin_lab.replay.sameness import checks_of
from rlhf_plugin_lab.replay.span import find_span
from rlhf_testing.errors import has_code

GRPO = ["--estimator", "grpo", "--algo.kl.coef", "0.01"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replayed")
    write_task(folder)
    return train(folder, *GRPO)


@pytest.fixture
def sparse(run, tmp_path):
    """The same run with the checkpoint of step 2 alone."""
    shutil.copytree(run, tmp_path / "sparse")
    for step in (1, *range(3, STEPS + 1)):
        shutil.rmtree(tmp_path / f"sparse/checkpoints/step-{step:08d}")
    return tmp_path / "sparse"


def replay(run, first, last, *words):
    return main([str(run), "--from", str(first), "--to", str(last), *words])


def table_of(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_span_without_changes_has_the_same_weights_to_the_bit(run, capsys):
    assert replay(run, 2, 4) == 0

    assert "same weights to the bit at step 2, 3, 4" in capsys.readouterr().err


def test_the_whole_run_is_replayed_from_its_beginning(run):
    assert replay(run, 1, STEPS) == 0


def test_a_span_is_reached_from_an_earlier_checkpoint_and_compared_by_metrics(sparse, capsys):
    assert replay(sparse, 4, 5, "--table", "json") == 0

    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert [row["step"] for row in rows] == [4, 5]
    assert all(row["metrics"] > 20 and row["files"] is None for row in rows)
    assert "no checkpoint in the span" in printed.err


def test_a_record_that_differs_is_named_with_step_and_metric(sparse, capsys):
    lines = (sparse / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    (fourth,) = [record for record in records if record["step"] == 4 and "metrics" in record]
    fourth["metrics"]["policy/grad_norm"] += 1e-9
    (sparse / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))

    assert replay(sparse, 3, 5) == 1

    assert "step 4 is the first that differs, in policy/grad_norm" in capsys.readouterr().err


def test_other_weights_in_a_checkpoint_are_named(run, tmp_path):
    changed = go_on(run, 2, "--actor.adam.lr", "0.02", name="other_weights")
    span = find_span(run, 3, 3)

    (check,) = checks_of(span, span.metrics, changed)

    assert (check.same, check.metric) == (False, "")
    assert check.file.startswith("policy/")


CHANGES = {
    "learning rate": ["--actor.adam.lr", "0.03"],
    "clip range": ["--algo.loss.ppo.clip_high", "0.3"],
    "kl coefficient": ["--algo.kl.coef", "0.5"],
    "entropy coefficient": ["--algo.loss.entropy_coef", "0.3"],
    "estimator": ["--estimator", "rloo"],
    "batch size": ["--train.batch_size", "8"],
    "denominator": ["--algo.loss.old_logprobs", "rollout"],
}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=[] if name == "learning rate" else pytest.mark.slow)
        for name, change in CHANGES.items()
    ],
)
def test_the_first_changed_step_is_that_of_a_run_that_goes_on_with_the_option(
    run, tmp_path, change, capsys, request
):
    assert replay(run, 3, 4, "--out", str(tmp_path / "out"), "--table", "json", *change) == 0

    rows = table_of(capsys)
    resumed = go_on(run, 2, *change, name=request.node.name.replace(" ", "_"))
    assert digests(tmp_path / "out/changed", 3) == digests(resumed, 3)
    assert digests(tmp_path / "out/original", 4) == digests(run, 4)
    assert [row["step"] for row in rows] == [3, 4]
    assert [path.name for path in with_replayed([tmp_path / "out"])] == ["original", "changed"]
    note = note_of(tmp_path / "out/changed")
    assert (note.run, note.first, note.last) == (str(run.resolve()), 3, 4)
    assert note.changed == tuple(change)


def test_later_steps_learn_from_the_samples_of_the_original_and_are_off_policy(
    run, tmp_path, capsys
):
    assert (
        replay(
            run, 3, 4, "--out", str(tmp_path / "out"), "--table", "json", "--actor.adam.lr", "0.05"
        )
        == 0
    )

    first, second = table_of(capsys)
    texts = [
        (tmp_path / f"out/{name}/samples.jsonl").read_text().splitlines()
        for name in ("original", "changed")
    ]
    was, now = ([json.loads(line)["response"] for line in lines] for lines in texts)
    assert was == now
    # Rounding of log-probs near 1 nat is 1e-7; five times the learning rate moves them by far more.
    assert first["off_policy_max"] < 1e-5
    assert second["off_policy_max"] > 1e-3
    # Adam's step is in proportion to its learning rate: 5 times as far in the same direction.
    assert first["update_norm_changed"] == pytest.approx(
        5 * first["update_norm_original"], rel=1e-3
    )
    assert first["update_cosine"] == pytest.approx(1, abs=1e-4)
    assert first["relative_distance"] == pytest.approx(4, rel=1e-3)


def test_a_changed_reward_scores_the_same_samples(run, tmp_path, capsys):
    reward = f"{run.parent / 'rewards.py'}:length"

    assert (
        replay(run, 3, 3, "--out", str(tmp_path / "out"), "--table", "json", "--reward", reward)
        == 0
    )

    (row,) = table_of(capsys)
    for line in (tmp_path / "out/changed/samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert sample["reward"] == len(sample["response"])
    assert row["reward_changed"] > row["reward_original"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--rollout.temperature", "0.5"], "lab/option-of-samples"),
        (["--rollout.max_new_tokens", "3"], "lab/option-of-samples"),
        (["--model", "elsewhere"], "lab/option-of-samples"),
        (["--data", "elsewhere.jsonl"], "lab/option-of-samples"),
        (["--seed", "7"], "lab/option-of-samples"),
        (["--steps", "9"], "lab/option-of-samples"),
        (["--output", "elsewhere"], "lab/output-elsewhere"),
        (["--checkpoint.every", "2"], "lab/option-not-replayed"),
    ],
    ids=lambda words: words[0],
)
def test_an_option_that_says_which_samples_there_are_is_refused_by_name(run, words, code):
    with pytest.raises(ConfigError, match="rlhf replay --", check=has_code(code)):
        replay(run, 3, 4, *words)


def test_a_span_beyond_the_run_is_refused(run):
    with pytest.raises(ConfigError, match="is 5", check=has_code("lab/no-such-step")):
        replay(run, 3, 6)


def test_a_span_without_a_checkpoint_before_it_is_refused(sparse):
    with pytest.raises(ConfigError, match="--from 3", check=has_code("lab/no-checkpoint")):
        replay(sparse, 2, 3)


def test_steps_that_are_not_in_order_are_refused(run):
    with pytest.raises(
        ConfigError, match="1 <= --from <= --to", check=has_code("lab/malformed-span")
    ):
        replay(run, 4, 3)


def test_a_run_of_another_version_is_refused(tmp_path):
    folder = write_run(tmp_path / "old")
    text = (folder / "config.toml").read_text().replace("0.1.0", "0.0.9")
    (folder / "config.toml").write_text(text)

    with pytest.raises(
        ConfigError, match=r"rlhf-core 0\.0\.9", check=has_code("lab/other-version")
    ):
        replay(folder, 1, 1)


def test_a_folder_that_is_there_is_not_written_into(run, tmp_path):
    with pytest.raises(ConfigError, check=has_code("output/not-empty")):
        replay(run, 3, 3, "--out", str(tmp_path))


def test_a_killed_run_is_replayed_to_its_last_recorded_step(sparse):
    with (sparse / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "metr')

    assert replay(sparse, 3, 5) == 0


def test_a_filter_that_drops_more_groups_than_the_run_has_samples_says_so(run):
    with pytest.raises(
        RLHFError, match="a replay samples nothing", check=has_code("lab/samples-differ")
    ):
        replay(
            run,
            5,
            5,
            "--rollout.filters",
            "dynamic_sampling",
            "--rollout.dynamic_sampling.low",
            "0.99",
        )


def test_a_replay_that_a_signal_ends_compares_nothing():
    command = TrainingCommand(
        options=TRAIN,
        defaults=Path(),
        describe="",
        run="tests.plugins.lab.replayed_runs:interrupted",
    )

    play(command, None, None, 2)
    with pytest.raises(KeyboardInterrupt):
        play(command, None, None, 3)
