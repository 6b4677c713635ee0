import fcntl
import json

import pytest

from rlhf_cli.show import read_samples, show
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


def sample(step, index, **changes):
    return {
        "step": step,
        "uid": f"0.{index}.0.0",
        "prompt": f"prompt {index}",
        "response": f"response {index} of step {step}",
        "reward": 0.75,
        "rewards": {"exact": 1.0, "length": -0.25},
        "truncated": False,
    } | changes


@pytest.fixture
def run_of(tmp_path):
    """Write a run folder with the given samples."""

    def write(*samples, tail=""):
        text = "".join(json.dumps(line) + "\n" for line in samples)
        (tmp_path / "samples.jsonl").write_text(text + tail)
        return tmp_path

    return write


def test_the_latest_step_is_shown(run_of, capsys):
    run = run_of(sample(1, 0), sample(2, 0), sample(2, 1))

    show(run)

    text = capsys.readouterr().out
    assert "step 2: 2 samples" in text
    assert "response 1 of step 2" in text
    assert "of step 1" not in text


def test_prompt_response_and_each_reward_are_shown(run_of, capsys):
    show(run_of(sample(3, 0, truncated=True)), step=3)

    text = capsys.readouterr().out
    assert "0.0.0.0  reward 0.75 (exact 1, length -0.25)  truncated" in text
    assert "prompt:\nprompt 0\nresponse:\nresponse 0 of step 3\n" in text


def test_how_an_episode_ended_is_shown_unless_it_finished(run_of, capsys):
    show(run_of(sample(3, 0, end="context"), sample(3, 1, end="finished")), step=3)

    text = capsys.readouterr().out
    assert "ended by context" in text
    assert "finished" not in text


def test_each_part_of_a_conversation_has_its_speaker(run_of, capsys):
    parts = [["policy", "is it 4?"], ["environment", "higher"], ["policy", "5"]]

    show(run_of(sample(1, 0, response="is it 4?higher5", parts=parts)))

    text = capsys.readouterr().out
    assert "prompt:\nprompt 0\npolicy:\nis it 4?\nenvironment:\nhigher\npolicy:\n5\n" in text


def test_the_unshaped_reward_stands_beside_the_shaped_one(run_of, capsys):
    show(run_of(sample(1, 0, unshaped=1.5)))

    assert "reward 0.75 (exact 1, length -0.25)  unshaped 1.5" in capsys.readouterr().out


def test_a_single_reward_of_weight_one_is_not_written_twice(run_of, capsys):
    show(run_of(sample(1, 0, reward=1.0, rewards={"exact": 1.0})))

    assert "exact" not in capsys.readouterr().out


def test_a_weighted_single_reward_is_written_beside_the_sum(run_of, capsys):
    show(run_of(sample(1, 0, reward=0.5, rewards={"exact": 1.0})))

    assert "reward 0.5 (exact 1)" in capsys.readouterr().out


def test_who_ended_the_run_is_shown_until_it_goes_on(run_of, capsys):
    run = run_of(sample(1, 0))
    step = '{"step": 1, "time_s": 1.0, "metrics": {}}\n'
    end = '{"step": 1, "time_s": 1.0, "end": "ended by early_stop (mine 1): enough"}\n'
    evaluation = '{"step": 1, "time_s": 1.0, "eval": {}}\n'
    (run / "metrics.jsonl").write_text(step + end + evaluation)

    show(run)
    assert (
        "the run was ended by early_stop (mine 1): enough, after step 1\n"
        in capsys.readouterr().out
    )

    (run / "metrics.jsonl").write_text(step + end + step.replace('"step": 1', '"step": 2'))
    show(run)
    assert "early_stop" not in capsys.readouterr().out


FAILED = (
    "2026-11-30 10:00:00,000 INFO acme.driver: a checkpoint every 30 minutes\n"
    "2026-11-30 10:00:09,000 INFO acme.driver: the run failed: RewardError: no label (mine 1)\n"
    "Traceback (most recent call last):\n"
    '  File "mine.py", line 3, in score\n'
    "2026-11-30 10:00:10,000 WARNING acme.logger: the last record was not sent\n"
)


def test_why_a_run_failed_is_shown_until_it_goes_on(run_of, capsys):
    run = run_of(sample(2, 0))
    (run / "metrics.jsonl").write_text('{"step": 2, "time_s": 1.0, "metrics": {}}\n')
    (run / "run.log").write_text(FAILED)

    show(run)
    text = capsys.readouterr().out
    assert "the run failed after step 2: RewardError: no label (mine 1)\n" in text
    assert "run.log has more" in text

    went_on = "2026-11-30 10:05:00,000 INFO acme.driver: a checkpoint every 30 minutes\n"
    (run / "run.log").write_text(FAILED + went_on)
    show(run)
    assert "no label" not in capsys.readouterr().out


def test_a_run_that_was_killed_says_so_unless_it_still_goes_on(run_of, capsys):
    run = run_of(sample(2, 0))
    (run / "metrics.jsonl").write_text('{"step": 2, "time_s": 1.0, "metrics": {}}\n')
    (run / "config.toml").write_text("[train]\nsteps = 5\n")
    (run / ".lock").touch()

    show(run)
    text = capsys.readouterr().out
    assert "the run was stopped or killed after step 2, for no process is in it" in text
    assert "--resume restart" in text  # it left no checkpoint

    step = run / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    show(run)
    assert "Its command with --resume auto continues it." in capsys.readouterr().out

    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        show(run)
    assert "or killed" not in capsys.readouterr().out

    (run / "config.toml").write_text("[train]\nsteps = 2\n")
    show(run)
    assert "or killed" not in capsys.readouterr().out

    (run / "config.toml").write_text("[checkpoint]\nexport = true\n")
    show(run)
    assert "or killed" in capsys.readouterr().out
    (run / "model").mkdir()
    show(run)
    assert "or killed" not in capsys.readouterr().out


def test_a_run_that_failed_in_its_first_step_says_why(run_of):
    run = run_of()
    (run / "run.log").write_text(FAILED)

    with pytest.raises(
        ConfigError,
        match="failed before its first step had finished: RewardError: no label",
        check=has_code("run/no-step-yet"),
    ):
        read_samples(run, None)


def test_a_missing_step_lists_those_that_there_are(run_of):
    steps = [1, 2, 3, 7, 9, 10]

    with pytest.raises(
        ConfigError, match=r"--step 5.*steps 1-3, 7, 9-10\.", check=has_code("run/no-such-step")
    ):
        read_samples(run_of(*(sample(step, 0) for step in steps)), 5)


def test_many_scattered_steps_are_listed_in_short(run_of):
    steps = range(10, 1010, 10)

    with pytest.raises(
        ConfigError,
        match=r"steps 10, 20, 30, 40, 50, \.\.\., 980, 990, 1000\.",
        check=has_code("run/no-such-step"),
    ):
        read_samples(run_of(*(sample(step, 0) for step in steps)), 5)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nowhere", check=has_code("run/no-folder")):
        read_samples(tmp_path / "nowhere", None)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"samples\.jsonl", check=has_code("run/not-a-run")):
        read_samples(tmp_path, None)


def test_a_folder_of_another_command_says_where_its_records_are(tmp_path):
    (tmp_path / "episodes.jsonl").touch()

    with pytest.raises(
        ConfigError, match=r"records are in episodes\.jsonl", check=has_code("run/not-a-run")
    ):
        read_samples(tmp_path, None)


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "run.toml").touch()

    with pytest.raises(ConfigError, check=has_code("run/no-folder")):
        read_samples(tmp_path / "run.toml", None)


def test_a_run_that_kept_no_samples_says_which_option_keeps_them(tmp_path):
    (tmp_path / "metrics.jsonl").touch()

    with pytest.raises(
        ConfigError, match=r"--log\.samples 4", check=has_code("run/kept-no-samples")
    ):
        read_samples(tmp_path, None)


def test_a_run_before_its_first_step_says_so(run_of):
    with pytest.raises(ConfigError, check=has_code("run/no-step-yet")):
        read_samples(run_of(), None)


def test_a_run_without_samples_says_what_it_has(run_of, tmp_path):
    run = run_of()
    (run / "metrics.jsonl").write_text('{"step": 1, "metrics": {}}\n{"step": 2, "metrics": {}}\n')

    with pytest.raises(ConfigError, match="2 steps", check=has_code("run/no-samples")):
        read_samples(run, None)


def test_a_run_without_samples_says_how_it_learned(run_of):
    run = run_of()
    lines = [
        {
            "step": step,
            "metrics": {"sft/nll": nll, "preference/accuracy": 0.5, "timing/loss_s": 1.0},
        }
        for step, nll in ((1, 2.5), (2, 1.25))
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    with pytest.raises(
        ConfigError,
        match=r"sft/nll 2\.5 -> 1\.25, preference/accuracy 0\.5 -> 0\.5; rlhf show \S+ --metrics",
        check=has_code("run/no-samples"),
    ):
        read_samples(run, None)


def test_half_a_last_line_is_left_out(run_of):
    run = run_of(sample(1, 0), tail='{"step": 2, "uid": "0.')

    assert read_samples(run, None) == (1, [sample(1, 0)])


def test_a_damaged_line_is_named(run_of):
    run = run_of(sample(1, 0), tail="{broken}\n")

    with pytest.raises(
        ConfigError, match=r"samples\.jsonl:2", check=has_code("run/damaged-record")
    ):
        read_samples(run, None)


def test_limit_shows_the_first_ones(run_of, capsys):
    show(run_of(*(sample(1, index) for index in range(4))), limit=2)

    text = capsys.readouterr().out
    assert "response 1" in text
    assert "response 2" not in text


def test_json_gives_back_the_records(run_of, capsys):
    samples = [sample(1, 0, response="lone \ud800 surrogate"), sample(1, 1)]

    show(run_of(*samples), as_json=True)

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == samples


def test_text_is_neither_markup_nor_terminal_commands(run_of, capsys):
    """A policy may sample anything: brackets, escape sequences, halves of characters."""
    response = "[bold]x[/nope] \x1b[31mred\x07 \x9b2J \ud83d tab\there\nnext :smile:"

    show(run_of(sample(1, 0, response=response)))

    text = capsys.readouterr().out
    assert "[bold]x[/nope] \\x1b[31mred\\x07 \\x9b2J \\ud83d tab" in text
    assert "\nnext :smile:\n" in text
    assert "\x1b" not in text


def test_long_lines_are_not_cut_or_wrapped(run_of, capsys):
    rewards = {f"reward_of_number_{index}": 1.0 for index in range(20)}

    show(run_of(sample(1, 0, response="word " * 100 + "end", rewards=rewards)))

    lines = capsys.readouterr().out.splitlines()
    assert "word " * 100 + "end" in lines
    assert any("reward_of_number_0 1" in line and "reward_of_number_19 1" in line for line in lines)


def with_images(run):
    (run / "media/ab").mkdir(parents=True)
    (run / "media/ab/abc.png").write_bytes(b"pixels")
    image = {"file": "media/ab/abc.png", "width": 16, "height": 8, "tokens": [3, 5]}
    return sample(1, 0, images=[image])


def test_images_are_shown_by_place_and_size(run_of, tmp_path, capsys):
    show(run_of(with_images(tmp_path)))

    assert f"image: {tmp_path}/media/ab/abc.png  16 x 8, tokens 3-4" in capsys.readouterr().out


def test_an_image_that_is_gone_is_said_to_be(run_of, tmp_path, capsys):
    run = run_of(with_images(tmp_path))
    (tmp_path / "media/ab/abc.png").unlink()

    show(run)

    assert "tokens 3-4, which is gone" in capsys.readouterr().out


def test_images_can_be_copied(run_of, tmp_path):
    run = run_of(with_images(tmp_path), sample(1, 1))

    show(run, images=tmp_path / "out")

    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        "0.0.0.0-1.png": b"pixels"
    }
    (tmp_path / "media/ab/abc.png").unlink()
    with pytest.raises(
        ConfigError, match=r"--images.*No such file", check=has_code("output/cannot-copy-images")
    ):
        show(run, images=tmp_path / "out")


def test_rollouts_of_the_latest_evaluation_are_shown_with_their_set(run_of, capsys, tmp_path):
    run = run_of(sample(1, 0))
    played = [
        {**sample(step, number), "eval": f"held_out/T{number}"}
        for step in (0, 4)
        for number in (0, 1)
    ]
    (run / "eval_samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in played))

    show(run, evaluation=True)

    text = capsys.readouterr().out
    assert "step 4: 2 samples" in text
    assert "held_out/T1  0.1.0.0  reward 0.75" in text
    show(run, step=0, evaluation=True)
    assert "step 0: 2 samples" in capsys.readouterr().out


def test_a_run_without_rollouts_of_evaluations_says_how_to_get_some(run_of):
    with pytest.raises(ConfigError, match=r"--eval\.data", check=has_code("run/no-evaluations")):
        read_samples(run_of(sample(1, 0)), None, evaluation=True)


def learned(step, index, answer=0, **numbers):
    kind = "pair" if "margin" in numbers else "row"
    return sample(step, index, uid=f"-1.{index}.{answer}.0", example=kind, rewards=numbers)


def write_held_out(run, *rows):
    lines = (json.dumps({"eval": "unseen", **row}) + "\n" for row in rows)
    (run / "eval_samples.jsonl").write_text("".join(lines))


def test_held_out_rows_are_a_line_behind_the_rows_of_a_step(run_of, capsys):
    run = run_of(learned(1, 0, nll=0.5), learned(6, 0, nll=0.25))
    write_held_out(
        run,
        *(learned(step, number, nll=step + number) for step in (0, 4, 8) for number in (0, 1)),
        {**learned(4, 0, nll=2.0), "eval": "other"},
    )

    show(run)
    shown = capsys.readouterr().out
    show(run, step=1)
    before = capsys.readouterr().out
    show(run, as_json=True)

    # The evaluation of step 4 is the last one up to step 6.
    assert "held out at step 4, unseen: 2 rows, mean nll 4.5\n" in shown
    assert "held out at step 4, other: 1 row, mean nll 2\n" in shown
    assert f"rlhf show {run} --eval has each of them" in shown
    assert "held out at step 0, unseen: 2 rows, mean nll 0.5\n" in before
    assert "held out" not in capsys.readouterr().out


def test_a_held_out_pair_counts_once(run_of, capsys):
    numbers = [
        {"loss": 1.0, "margin": -0.5, "right": 0.0},
        {"loss": 0.5, "margin": 0.25, "right": 1.0},
    ]
    pairs = [learned(1, at, answer, **each) for at, each in enumerate(numbers) for answer in (0, 1)]
    run = run_of(*pairs)
    write_held_out(run, *pairs)

    show(run)

    line = "held out at step 1, unseen: 2 pairs, mean loss 0.75, mean margin -0.125, 50 % right"
    assert line in capsys.readouterr().out


def test_rollouts_of_an_evaluation_are_no_held_out_rows(run_of, capsys):
    run = run_of(sample(1, 0))
    write_held_out(run, sample(0, 0))

    show(run)

    assert "held out" not in capsys.readouterr().out


def test_a_run_that_was_not_evaluated_says_what_evaluations_need(run_of):
    run = run_of(sample(1, 0))
    (run / "eval_samples.jsonl").touch()

    with pytest.raises(ConfigError, match=r"--eval\.data", check=has_code("run/not-evaluated")):
        read_samples(run, None, evaluation=True)
