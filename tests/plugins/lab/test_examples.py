"""Rows that a run learned of: what the page has of them, also in Chromium, and who leaves them alone."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.plugins.lab.run_folders import sample, write_run
from tests.plugins.lab.test_browser import BROWSER, HOSTILE, shown
from tests.plugins.lab.test_contents import PNG, contents, unpacked

from rlhf_core import ConfigError
from rlhf_plugin_lab.command import main
from rlhf_plugin_lab.doctor.record import read_record
from rlhf_plugin_lab.recorded.problems import Problems
from rlhf_testing.errors import has_code


def learned(uid, kind="row", loss=0.5, **changes):
    numbers = changes.pop("numbers", {"loss": loss})
    return sample(uid, example=kind, rewards=numbers, **changes)


def pair(number, margin, **changes):
    numbers = {"loss": 1.0 - margin, "margin": margin, "right": float(margin > 0)}
    return [
        learned(f"0.{number}.{at}.0", "pair", numbers=numbers, chosen=at == 0, reward=margin / 2)
        | changes
        for at in (0, 1)
    ]


def solution(uid):
    steps = [["first\n", 1.5, 1.0], ["then\n", 0.5, 0.0]]
    return learned(
        uid, "steps", steps=steps, response="first\nthen\n", numbers={"loss": 0.7, "right": 0.5}
    )


def write_tokens(run, uids):
    (run / "tokens").mkdir()
    columns = {
        "uid": [uid for uid in uids for _ in range(2)],
        "text": [HOSTILE, "391"] * len(uids),
        "token_id": [5, 6] * len(uids),
        "action": [False, True] * len(uids),
        "trainer_logprob": [None, -1.25] * len(uids),
        "reference_logprob": [None, -1.0] * len(uids),
    }
    parquet.write_table(pa.table(columns), run / "tokens/step-00000001.parquet")
    return run


def held_out(step, number, loss, **changes):
    """A row of two tokens, of which the second is learned."""
    tokens = {"texts": ["391", HOSTILE], "order": [1, 0], "learned": [[1, 2]], "loss": [loss]}
    plain = {"step": step, "eval": "unseen", "tokens": tokens, "numbers": {"nll": loss}}
    return learned(f"-1.{number}.0.0", **{**plain, **changes})


def test_a_step_of_rows_says_its_kind_and_which_answer_was_preferred(tmp_path):
    found = contents(write_run(tmp_path / "run", pair(3, 0.25)))
    (step,) = found.index["runs"][0]["steps"]
    table = unpacked(found, step["part"])

    assert step["kind"] == "pair"
    assert table["chosen"] == [1, 0]
    assert table["rewards"]["margin"] == [0.25, 0.25]


def test_labeled_steps_are_with_the_text(tmp_path):
    found = contents(write_run(tmp_path / "run", [solution("0.1.0.0")]))
    (step,) = found.index["runs"][0]["steps"]
    part, at, _ = unpacked(found, step["part"])["place"][0]

    assert unpacked(found, part)[at]["steps"] == [["first\n", 1.5, 1], ["then\n", 0.5, 0]]


def test_a_kind_that_is_not_known_is_shown_as_rollouts(tmp_path):
    found = contents(write_run(tmp_path / "run", [learned("0.1.0.0", HOSTILE)]))

    assert found.index["runs"][0]["steps"][0]["kind"] == ""


def test_nobody_takes_rows_for_answers_of_a_policy(tmp_path):
    run = write_run(tmp_path / "run", [learned(f"0.{n}.0.0") for n in range(4)])

    record = read_record(run, Problems())

    assert record.texts.steps == 0
    with pytest.raises(ConfigError, check=has_code("lab/no-rollouts")):
        main([str(run), "--export-traces", str(tmp_path / "traces.jsonl")])


def test_held_out_rows_are_a_set_of_their_own_with_their_tokens(tmp_path):
    rows = [held_out(step, 3, loss) for step, loss in ((0, 1.5), (2, 1.25))]
    found = contents(write_run(tmp_path / "run", [learned("0.3.0.0")], rows))
    names = [(step["step"], step["set"], step["kind"]) for step in found.index["runs"][0]["steps"]]
    assert names == [(0, "unseen", "row"), (1, "", "row"), (2, "unseen", "row")]
    last = found.index["runs"][0]["steps"][2]
    _, at, part = unpacked(found, last["part"])["place"][0]
    tokens = unpacked(found, part)[at]
    assert tokens["text"] == [HOSTILE, "391"]
    assert tokens["columns"] == {"action": [0, 1], "loss": [None, 1.25]}
    assert found.index["runs"][0]["problems"] == []


def tokens_in(tmp_path, tokens):
    found = contents(write_run(tmp_path / "run", [], [held_out(1, 3, 1.0, tokens=tokens)]))
    (described,) = found.index["runs"]
    _, at, part = unpacked(found, described["steps"][0]["part"])["place"][0]
    return part and unpacked(found, part)[at], described["problems"]


def test_the_distance_to_the_reference_is_made_of_both_log_probs(tmp_path):
    tokens = {"texts": ["a", "b"], "order": [0, 1, 0], "learned": [[0, 1], [2, 3]]}
    columns = {"trainer_logprob": [-1.0, None], "reference_logprob": [-1.5, -2.0]}

    found, problems = tokens_in(tmp_path, tokens | columns)

    assert found["text"] == ["a", "b", "a"]
    assert found["columns"]["reference_log_ratio"] == [0.5, None, None]
    assert problems == []


@pytest.mark.parametrize(
    "tokens",
    [
        [1],
        {"texts": "ab", "order": [0], "learned": []},
        {"texts": ["a", 1], "order": [0], "learned": []},
        {"texts": ["a"], "learned": []},
        {"texts": ["a"], "order": [0, 1], "learned": []},
        {"texts": ["a"], "order": [-1], "learned": []},
        {"texts": ["a"], "order": [0], "learned": [[0, 2]]},
        {"texts": ["a"], "order": [0, 0], "learned": [[0, 1], [0, 1]]},
        {"texts": ["a"], "order": [0], "learned": [["0", 1]]},
        {"texts": ["a"], "order": [0]},
    ],
)
def test_tokens_of_another_form_are_a_line(tmp_path, tokens):
    found, problems = tokens_in(tmp_path, tokens)

    assert found is None
    assert "tokens of rows that are of another form" in problems[0]


def test_a_column_that_does_not_fit_the_learned_tokens_is_left_out(tmp_path):
    found, _ = tokens_in(
        tmp_path, {"texts": ["a"], "order": [0, 0], "learned": [[1, 2]], "loss": [1.0, 2.0]}
    )

    assert found["columns"] == {"action": [0, 1]}


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_has_held_out_rows_apart_and_follows_each_over_the_evaluations(tmp_path):
    rows = [
        held_out(step, number, loss + number)
        for step, loss in ((0, 1.5), (1, 1.25))
        for number in (0, 1)
    ]
    rows[0] |= {"prompt": HOSTILE, "eval": "unseen"}
    run = write_run(tmp_path / "run", [learned("0.3.0.0", loss=0.75)], rows)
    page = tmp_path / "page.html"
    main([str(run), "--export", str(page)])

    _, step = shown(page, "/step/0//1", tmp_path / "profile")
    _, apart = shown(page, "/step/0/unseen/1", tmp_path / "profile")
    title, one = shown(page, "/rollout/0/unseen/0/-1.0.0.0/t1", tmp_path / "profile")

    assert title == "rlhf view"
    assert not {"script", "img", "iframe"} & set(one.tags)
    assert "1 recorded row of the step" in step.text
    line = "held out: unseen: 2 rows of each evaluation, mean loss 2 at step 0, 1.75 at step 1"
    assert line in step.text
    assert "trainingheld out: unseen" in step.text
    assert "2 recorded rows that are held out" in apart.text
    assert "0.3.0.0" not in apart.text
    assert "rlhf replay" not in apart.text
    assert "2 tokens, 1 of them learned" in one.text
    assert "token 1 391 loss: 1.5 mask: 1" in one.text
    assert "The same row at other evaluationssteplossmargintoldstep 11.25" in one.text


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_shows_the_images_of_rows_and_says_which_are_gone(tmp_path):
    there = {"file": "media/a.png", "width": 2, "height": 2, "tokens": [3, 5]}
    gone = there | {"file": "media/gone.png"}
    rows = [learned("0.1.0.0", images=[there, gone])]
    run = write_run(tmp_path / "run", rows, [held_out(1, 7, 1.0, images=[there])])
    pairs = write_run(tmp_path / "pairs", pair(3, 0.25, images=[there]))
    for folder in (run, pairs):
        (folder / "media").mkdir()
        (folder / "media/a.png").write_bytes(PNG)
    page = tmp_path / "page.html"
    main([str(run), str(pairs), "--export", str(page)])

    _, row = shown(page, "/rollout/0//1/0.1.0.0", tmp_path / "profile")
    _, held = shown(page, "/rollout/0/unseen/1/-1.7.0.0", tmp_path / "profile")
    _, both = shown(page, "/group/1//1/0.3", tmp_path / "profile")

    assert row.tags.count("img") == 1
    assert "the file is gone or cannot be read" in row.text
    assert row.text.count(", tokens 3") == 2
    assert held.tags.count("img") == 1
    assert both.tags.count("img") == 1


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_has_the_worst_first_and_a_pair_side_by_side(tmp_path):
    pairs = [*pair(3, 0.25), *pair(4, -0.5, prompt=HOSTILE, response=HOSTILE), *pair(5, 0.125)]
    run = write_tokens(write_run(tmp_path / "run", pairs), ["0.4.0.0", "0.4.1.0"])
    solved = write_run(
        tmp_path / "solved", [solution("0.1.0.0"), solution("0.2.0.0") | {"step": 2}]
    )
    page = tmp_path / "page.html"
    main([str(run), str(solved), "--export", str(page)])

    _, step = shown(page, "/step/0//1", tmp_path / "profile")
    title, both = shown(page, "/group/0//1/0.4", tmp_path / "profile")
    _, one = shown(page, "/rollout/0//1/0.4.1.0/t1", tmp_path / "profile")
    _, steps = shown(page, "/rollout/1//1/0.1.0.0", tmp_path / "profile")

    assert "3 recorded pairs of the step" in step.text
    assert "accuracy0.6667" in step.text
    assert step.text.index("margin -0.5") < step.text.index("margin 0.125")
    assert title == "rlhf view"
    for page_of_text in (step, both, one):
        assert not {"script", "img", "iframe"} & set(page_of_text.tags)
    assert "margin -0.5wrong" in both.text
    assert "chosen" in both.text
    assert "rejected" in both.text
    assert both.text.count("log-prob of the trainer above the reference") == 2
    assert "pair 1 of 3" in both.text
    assert "2 tokens, 1 of them learned" in one.text
    assert "log-prob of the trainer above the reference: -0.25" in one.text
    assert "No entropy" not in one.text
    assert "step 2: score 0.5, label 0 wrong" in steps.text
    assert "The same row at other steps" not in steps.text
