"""Records of a run are read as far as they go, and what is missing is a line."""

import json
import math

import pytest
from tests.plugins.lab.run_folders import CHAT, sample, write_lines

from rlhf_plugin_lab.recorded.fates import read_fates
from rlhf_plugin_lab.recorded.lines import lines_of
from rlhf_plugin_lab.recorded.metrics import read_metrics
from rlhf_plugin_lab.recorded.options import read_options
from rlhf_plugin_lab.recorded.problems import Problems
from rlhf_plugin_lab.recorded.turns import turns_of


def test_lines_that_are_no_records_are_left_out_and_counted(tmp_path):
    path, problems = tmp_path / "samples.jsonl", Problems()
    path.write_text('{"step": 1}\nnot json\n[1]\n\n{"step": 2}\n{"step": 3')

    assert [line.value for line in lines_of(path, problems)] == [{"step": 1}, {"step": 2}]
    left_out, unfinished = problems.lines()
    assert "left out (2 times)" in left_out
    assert "line 2" in left_out
    assert "not finished" in unfinished


def test_a_line_that_is_nested_without_end_is_left_out(tmp_path):
    path, problems = tmp_path / "samples.jsonl", Problems()
    path.write_text('{"a": ' + "[" * 5000 + "]" * 5000 + '}\n{"step": 2}\n')

    assert [line.value for line in lines_of(path, problems)] == [{"step": 2}]


def test_a_line_above_the_limit_is_skipped_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_plugin_lab.recorded.lines.MAX_LINE_BYTES", 1 << 20)
    path, problems = tmp_path / "samples.jsonl", Problems()
    path.write_text('{"step": 1, "response": "' + "x" * (3 << 20) + '"}\n{"step": 2}\n')

    (line,) = lines_of(path, problems)

    assert line.value == {"step": 2}
    assert path.read_bytes()[line.start :] == b'{"step": 2}\n'
    assert "longer than 1 MiB" in problems.lines()[0]


def test_a_file_that_is_gone_is_a_line(tmp_path):
    problems = Problems()

    assert list(lines_of(tmp_path / "samples.jsonl", problems)) == []
    assert problems.lines() == ["samples.jsonl cannot be read: No such file or directory"]


def test_metrics_are_series_by_name(run):
    metrics = read_metrics(run / "metrics.jsonl", Problems())

    reward = metrics.series["reward/mean"]
    assert (reward.steps, reward.seconds, reward.values) == ([1, 2], [2.0, 4.0], [0.25, 0.5])
    assert metrics.series["timing/step_s"].values == [2.0, 2.0]
    assert metrics.last_step == 2


def test_a_value_that_is_not_finite_is_a_gap(tmp_path):
    path, problems = tmp_path / "metrics.jsonl", Problems()
    values = [0.5, math.nan, math.inf, "text", True]
    write_lines(path, [{"step": n, "metrics": {"loss": value}} for n, value in enumerate(values)])

    assert read_metrics(path, problems).series["loss"].values == [0.5, None, None]
    assert len(problems.lines()) == 2


def test_a_step_that_was_done_again_counts_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    steps = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35)]
    write_lines(
        path, [{"step": step, "time_s": 1.0, "metrics": {"loss": value}} for step, value in steps]
    )

    loss = read_metrics(path, Problems()).series["loss"]

    assert (loss.steps, loss.values) == ([1, 2, 3], [0.1, 0.25, 0.35])


def test_an_end_counts_unless_the_run_went_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    end = {"step": 2, "time_s": 1.0, "end": "ended by early_stop"}
    write_lines(path, [end])
    assert read_metrics(path, Problems()).end == "ended by early_stop"

    write_lines(path, [end, {"step": 3, "time_s": 2.0, "metrics": {}}])
    assert read_metrics(path, Problems()).end == ""


def test_options_are_paths_and_texts(run):
    options = read_options(run / "config.toml", Problems())

    assert options.values == {"seed": "42", "actor.adam.lr": "0.001", "data.train": '["a.jsonl"]'}
    assert (options.version, options.command) == ("rlhf-core 0.1.0", "train")


@pytest.mark.parametrize("text", ["= broken", "a = " + "[" * 5000, "\xff"])
def test_a_configuration_that_cannot_be_read_is_a_line(tmp_path, text):
    path, problems = tmp_path / "config.toml", Problems()
    path.write_text(text, encoding="latin-1")

    assert read_options(path, problems).values == {}
    assert "options are not known" in problems.lines()[0]


def test_what_was_dropped_is_told_by_reason_and_void_lines_do_not_count(tmp_path):
    path = tmp_path / "ledger.jsonl"
    planned = {"step": 1, "event": "planned", "groups": {"0.1": 4, "0.2": 4}}
    dropped = {"step": 1, "event": "dropped", "reason": "no_signal", "groups": {"0.2": 4}}
    begun = len(json.dumps(planned)) + 1
    resumed = {"event": "resumed", "step": 0, "num_bytes": begun}
    write_lines(path, [planned, dropped, resumed, dropped | {"reason": "stale"}])

    fates = read_fates(path, Problems())

    assert fates == {
        1: {
            "planned": 8,
            "trained": 0,
            "dropped": {"stale": {"episodes": 4, "number": 1, "groups": ["0.2"]}},
        }
    }


def test_turns_of_a_chat_have_roles_and_lose_no_text():
    answer = '<tool_call>{"name": "f"}</tool_call><|im_end|>\n'
    said = "<|im_start|>user\n<tool_response>391</tool_response><|im_end|>\n<|im_start|>assistant\n"
    parts = [["policy", answer], ["environment", said], ["policy", "391"]]

    turns = turns_of(sample(response=answer + said + "391", parts=parts))

    assert [(writer, role) for writer, role, _ in turns] == [
        ("prompt", "system"), ("prompt", "user"), ("prompt", "assistant"), ("policy", "tool call"),
        ("environment", "tool"), ("environment", "assistant"), ("policy", ""),
    ]  # fmt: skip
    assert "".join(text for _, _, text in turns) == CHAT + answer + said + "391"


@pytest.mark.parametrize(
    ("prompt", "roles"),
    [
        ("123=", [""]),
        ("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", ["", "user"]),
        (
            "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
            ["", "user", "model"],
        ),
        (
            "<|start|>developer<|message|>x<|end|><|start|>user<|message|>y<|end|>",
            ["developer", "user"],
        ),
        ("[gMASK]<sop><|user|>\nHi<|assistant|>", ["", "user", "assistant"]),
    ],
)
def test_roles_are_told_by_the_marks_of_known_templates(prompt, roles):
    assert [role for _, role, _ in turns_of({"prompt": prompt})] == roles


def test_a_mark_that_a_policy_wrote_stays_a_turn_of_the_policy():
    turns = turns_of(sample(prompt="?", response="<|im_start|>system\nObey."))

    assert turns[1] == ("policy", "system", "<|im_start|>system\nObey.")


@pytest.mark.parametrize(
    "broken", [{}, {"prompt": 3, "response": None}, {"parts": [["policy"], 3]}]
)
def test_a_sample_without_texts_has_no_turns(broken):
    assert turns_of(broken) == []
