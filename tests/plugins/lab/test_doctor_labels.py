"""What ``rlhf doctor`` says of labels that are wrong in part, of rows at chance, and of turns and images."""

import pytest
from tests.plugins.lab.run_folders import sample, write_lines
from tests.plugins.lab.test_doctor import AT, CASES, HELD, STEPS, SURE, found, line, rollouts, texts

from rlhf_plugin_lab.doctor.record import read_record
from rlhf_plugin_lab.doctor.repeated import same_answer_of
from rlhf_plugin_lab.recorded.problems import Problems

PAID = {"metrics": SURE | {HELD: [0.5, 1.0, 1.0, 1.0, 1.0]}, "steps_of": AT, "texts": rollouts()}


@pytest.mark.parametrize(
    "options", [{"data.sampler": "curriculum"}, {"eval.max_samples": "8"}], ids=str
)
def test_prompts_that_are_chosen_and_few_held_out_ones_do_not_tell(options):
    """0.02, and 3 of 0.4 / sqrt(8), are 0.44: more than the 0.3 that held-out prompts are ahead."""
    assert "wrong_labels" in found(**PAID)
    assert "wrong_labels" not in found(**PAID, options=options)


def test_samples_that_differ_explain_what_the_most_probable_answer_is_ahead():
    unsure = SURE | {"group/reward_std": [0.05] * STEPS, HELD: PAID["metrics"][HELD]}

    assert "wrong_labels" not in found(unsure, steps_of=AT, texts=rollouts())


def test_a_model_that_learns_between_evaluations_is_no_sign():
    """It is evaluated at each step, and better than the mean of the last 20 steps at the last ones."""
    learning = line(0.3, 1.0)
    ahead = SURE | {"reward/mean": learning, HELD: [value + 0.01 for value in learning]}

    assert "wrong_labels" not in found(ahead, texts=rollouts())


def test_noise_in_updates_makes_training_rows_worse_by_itself():
    has, _ = CASES["wrong_rows"]

    assert "wrong_rows" not in found(**has, options={"train.neftune_alpha": "5.0"})


def test_pairs_that_are_swapped_in_part_are_told_by_held_out_ones():
    seen = {"loss/ranking": [0.5] * STEPS, "ranking/accuracy": [0.69, 0.71] * 50}
    at = {"eval/accuracy": [0, 30, 60, 90]}

    assert "wrong_rows" in found(seen | {"eval/accuracy": [0.5, 0.76, 0.9, 0.9]}, steps_of=at)
    assert "wrong_rows" not in found(seen | {"eval/accuracy": [0.5, 0.74, 0.9, 0.9]}, steps_of=at)


def test_a_loss_that_has_burst_is_too_high_a_rate_until_it_is_back():
    burst = [3.0, 2.8, *[70.0] * 20, *[10.0] * 10, *[4.0] * 20]

    assert "loss_rises" in found({"sft/nll": [*burst, *[2.4 / 0.8] * 40]})
    assert "loss_rises" not in found({"sft/nll": [*burst, *[2.3] * 40]})


def test_rows_known_by_heart_are_at_chance_where_they_are_new():

    heart = {
        "train/epoch": [at / STEPS for at in range(1, 2 * STEPS + 1)],
        "loss/ranking": [0.6] * 2 * STEPS,
        "ranking/accuracy": [0.4, 0.6] * (STEPS // 2) + [0.8, 0.9] * (STEPS // 2),
    }
    at = {"eval/accuracy": [0, 50, 100, 150, 200]}

    assert "at_chance" in found(
        heart | {"eval/accuracy": [0.5, 0.5, 0.53, 0.51, 0.52]}, steps_of=at
    )
    assert "at_chance" not in found(
        heart | {"eval/accuracy": [0.5, 0.5, 0.6, 0.6, 0.6]}, steps_of=at
    )
    assert "at_chance" not in found(heart)


def test_turns_of_a_policy_are_its_own_words_and_equal_ones_count_once(tmp_path):
    """Each prompt's answers are one text, said in one to three turns between words of the environment."""
    lines = []
    for at in range(80):
        parts = [["policy", "1"], ["environment", f"{at}:"]] * (1 + at % 3)
        said = "".join(text for _, text in parts)
        one = sample(step=1 + at // 4, uid=f"{at}.0.0.0", prompt=f"{at}", response=said)
        lines.append(one | {"parts": parts})
    write_lines(tmp_path / "samples.jsonl", lines)
    write_lines(tmp_path / "metrics.jsonl", [{"step": 20, "metrics": {"reward/mean": 0.0}}])

    same = same_answer_of(read_record(tmp_path, Problems()).texts)

    assert same is not None
    assert (same.answer, same.share) == ("1", 1.0)


def test_one_question_about_many_images_is_as_many_questions(tmp_path):
    lines = [
        sample(step=1 + at // 4, uid=f"{at}.0.0.0", prompt="Which color?", response="red")
        | {"images": [{"file": f"media/{at}.png"}]}
        for at in range(80)
    ]
    write_lines(tmp_path / "samples.jsonl", lines)
    write_lines(tmp_path / "metrics.jsonl", [{"step": 20, "metrics": {"reward/mean": 0.0}}])

    texts = read_record(tmp_path, Problems()).texts

    assert texts.last[0].question == "Which color?\nmedia/40.png"
    assert same_answer_of(texts) is not None


def test_a_model_that_could_its_task_before_the_run_has_not_collapsed():
    """Nearly all samples are right from the first step on, so that few differ, and their spread never falls."""
    steady = {"reward/mean": [0.98] * STEPS, "reward/std": [0.08] * STEPS}
    right = texts(lambda at: "red", lambda at: 1.0, copies=2)

    assert "same_samples" not in found(steady, texts=right)
    assert "same_samples" in found(steady | {"reward/mean": [0.94] * STEPS}, texts=right)
