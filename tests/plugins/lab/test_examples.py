"""Rows that a run learned of: what the page has of them, also in Chromium, and who leaves them alone."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.plugins.lab.run_folders import sample, write_run
from tests.plugins.lab.test_browser import BROWSER, HOSTILE, shown
from tests.plugins.lab.test_contents import contents, unpacked

from rlhf_core import ConfigError
from rlhf_plugin_lab.command import main
from rlhf_plugin_lab.doctor.record import read_record
from rlhf_plugin_lab.recorded.problems import Problems


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
    with pytest.raises(ConfigError, match="expected recorded rollouts"):
        main([str(run), "--export-traces", str(tmp_path / "traces.jsonl")])


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
