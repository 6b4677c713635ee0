import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from rlhf_core.contracts import RunResult
from rlhf_plugin_loggers.curve import LearningCurve
from rlhf_plugin_loggers.history import read_history
from rlhf_plugin_loggers.summary import Summary, best_line, command_of, resume_line, summary_rows

FINISHED = RunResult(status="finished", steps=3, seconds=65.0)


def rows_of(output, result, total_steps=3, vision=None):
    resume = resume_line(output, "train", {"reward": {"use": ["mine.py:score"]}})
    history = read_history(output / "metrics.jsonl")
    return summary_rows(output, result, history, total_steps, resume, vision)


def test_a_finished_run_shows_where_it_began_and_ended(write_metrics):
    output = write_metrics(evals=(0.0, 0.5))

    rows = rows_of(output, FINISHED)

    assert rows == [
        ("status", "finished"),
        ("steps", "3 of 3 in 1:05 min"),
        ("reward", "0.100 -> 0.400"),
        ("test T0 pass@1", "0.000 -> 0.500, best 0.500 at step 3"),
        ("metrics", str(output / "metrics.jsonl")),
    ]


def test_the_best_evaluation_need_not_be_the_last(write_metrics):
    output = write_metrics(evals=(0.75, 0.5))

    assert ("test T0 pass@1", "0.750 -> 0.500, best 0.750 at step 0") in rows_of(output, FINISHED)


def test_an_evaluation_that_became_nan_is_not_the_best(write_metrics):
    output = write_metrics(evals=(0.25, float("nan")))

    assert ("test T0 pass@1", "0.250 -> nan, best 0.250 at step 0") in rows_of(output, FINISHED)


def test_of_a_held_out_loss_less_is_better(write_metrics):
    output = write_metrics(evals=(1.0, 1.5), name="eval/nll")

    row = ("held-out nll", "1.000 -> 1.500, best 1.000 at step 0")
    assert row in rows_of(output, FINISHED)


@pytest.fixture
def passed_its_best(tmp_path):
    """A run whose second of three evaluations was the best."""

    def written(name, values):
        lines = [{"step": step, "time_s": step, "eval": {name: value}} for step, value in values]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path

    return written


@pytest.mark.parametrize(
    ("name", "values"),
    [("eval/test/T0/pass@1", (0.1, 0.75, 0.5)), ("eval/nll", (3.0, 1.0, 1.5))],
)
def test_where_the_last_is_not_the_best_and_that_is_not_kept_it_says_what_keeps_it(
    passed_its_best, name, values
):
    output = passed_its_best(name, enumerate(values))
    checkpoint = output / "checkpoints" / "step-00000001"

    advice = (
        "",
        f"the model is that of the last step; --checkpoint.best_metric {name} keeps the best",
    )
    assert advice in rows_of(output, FINISHED)
    assert advice not in rows_of(output, replace(FINISHED, best=checkpoint))


def test_a_best_checkpoint_that_is_not_the_newest_is_named_with_what_writes_its_model(
    passed_its_best,
):
    output = passed_its_best("eval/nll", enumerate((3.0, 1.0, 1.5)))
    first, last = (output / "checkpoints" / f"step-0000000{step}" for step in (1, 2))
    first.mkdir(parents=True)
    result = replace(FINISHED, checkpoint=last, best=first)

    line = best_line(output, "sft", {}, result)

    assert line == (
        f"rlhf sft -c {output}/config.toml --resume {first} --train.steps 1 --output {output}-best"
        f"  # writes the model of the best evaluation to {output}-best/model"
    )
    history = read_history(output / "metrics.jsonl")
    rows = summary_rows(output, result, history, 3, "", best=line)
    assert ("best", str(first)) in rows
    assert ("next", line) in rows
    assert best_line(output, "sft", {}, replace(result, best=last)) is None
    assert best_line(output, "sft", {"reward": {"use": ["python:mine"]}}, result) is None


def test_a_best_evaluation_that_was_reached_again_needs_no_command(passed_its_best):
    output = passed_its_best("eval/nll", enumerate((3.0, 1.0, 1.0)))
    history = read_history(output / "metrics.jsonl")

    rows = summary_rows(output, FINISHED, history, 3, "", best="rlhf sft")

    assert "rlhf sft" not in [text for _, text in rows]


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        (({"sft/nll": 3.0}, {"sft/nll": 1.5}), [("loss", "3.000 -> 1.500")]),
        (
            (
                {"loss/preference": 0.7, "preference/accuracy": 0.5},
                {"loss/preference": 0.2, "preference/accuracy": 0.875},
            ),
            [("loss", "0.700 -> 0.200"), ("accuracy", "0.500 -> 0.875")],
        ),
        (
            ({"reward/mean": 0.0, "sft/nll": 3.0}, {"reward/mean": 1.0, "sft/nll": 1.5}),
            [("reward", "0.000 -> 1.000")],
        ),
    ],
)
def test_a_run_on_rows_shows_its_first_and_last_loss_and_draws_them(tmp_path, metrics, rows):
    lines = [
        {"step": step, "time_s": step, "metrics": each} for step, each in enumerate(metrics, 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    LearningCurve(tmp_path).run_end(FINISHED)

    assert rows_of(tmp_path, FINISHED)[2 : 2 + len(rows)] == rows
    assert (tmp_path / "learning_curve.png").stat().st_size > 1000


def test_an_interrupted_run_shows_the_command_that_goes_on(write_metrics):
    output = write_metrics()
    result = RunResult(status="interrupted", steps=2, seconds=1.0, message="stopped by SIGTERM")

    rows = rows_of(output, result)

    assert ("status", "interrupted: stopped by SIGTERM") in rows
    assert ("next", f"rlhf train -c {output}/config.toml --resume auto") in rows


@pytest.mark.parametrize(
    ("steps", "saved", "how"), [(2, True, "auto"), (2, False, "restart"), (0, False, "auto")]
)
def test_a_failed_run_is_told_to_go_on_only_from_what_exists(
    write_metrics, capsys, steps, saved, how
):
    output = write_metrics()
    checkpoint = output / "checkpoints/step-00000002" if saved else None
    result = RunResult(status="failed", steps=steps, seconds=1.0, checkpoint=checkpoint)

    Summary(output, Console(file=io.StringIO()), 3, "sft", {}).run_end(result)

    assert f"rlhf sft -c {output}/config.toml --resume {how}\n" in capsys.readouterr().out


def test_a_run_with_objects_of_a_program_goes_on_there(tmp_path):
    config = {"reward": {"use": ["exact_match", "python:score"]}}

    line = resume_line(tmp_path, "sft", config)

    assert (
        line
        == f"in Python, with the same objects: rlhf.sft(..., output='{tmp_path}', resume=\"auto\")"
    )


def test_only_files_that_exist_are_shown(write_metrics):
    output = write_metrics()
    (output / "samples.jsonl").write_text("{}\n")
    (output / "tensorboard").mkdir()
    (output / "model").mkdir()
    (output / "learning_curve.png").touch()
    result = RunResult(status="finished", steps=3, seconds=1.0, model=output / "model")

    rows = rows_of(output, result)

    assert rows[-5:] == [
        ("model", str(output / "model")),
        ("metrics", str(output / "metrics.jsonl")),
        ("curve", str(output / "learning_curve.png")),
        ("next", f"rlhf show {output}"),
        ("", f"tensorboard --logdir {output}"),
    ]


@pytest.mark.parametrize(
    ("config", "vision", "command"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, None, "rlhf chat {}"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, None, "rlhf serve-rm {}"),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
            "mine.py:eyes",
            "rlhf chat {} --model.vision mine.py:eyes",
        ),
        (
            {"architectures": ["Qwen2VLForSequenceClassification"], "vision_config": {}},
            "mine.py:eyes",
            None,
        ),
    ],
)
def test_a_finished_run_says_how_its_model_is_used(write_metrics, config, vision, command):
    output = write_metrics()
    model = output / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    result = RunResult(status="finished", steps=3, seconds=1.0, model=model)

    used = [text for label, text in rows_of(output, result, vision=vision) if label == "next"]

    assert used == ([command.format(model)] if command else [])


@pytest.mark.parametrize(
    ("adapts", "command"), [("CAUSAL_LM", "rlhf chat"), ("SEQ_CLS", "rlhf serve-rm")]
)
def test_an_exported_adapter_is_used_as_what_it_adapts(tmp_path, adapts, command):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"task_type": adapts}))

    assert command_of(tmp_path) == command


def test_a_run_that_failed_before_its_first_step_has_a_summary(tmp_path):
    result = RunResult(status="failed", steps=0, seconds=0.5, message="no such model")

    rows = rows_of(tmp_path, result)

    assert rows[:2] == [("status", "failed: no such model"), ("steps", "0 of 3 in 0 s")]


def test_folders_with_spaces_are_quoted_in_commands(tmp_path):
    output = tmp_path / "my run"
    output.mkdir()
    (output / "samples.jsonl").write_text("{}\n")

    assert ("next", f"rlhf show '{output}'") in rows_of(output, FINISHED)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_summary_is_printed(write_metrics, capsys, terminal):
    output = write_metrics()
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=70, color_system=None)

    Summary(output, console, 3, "train", {}).run_end(FINISHED)

    text = file.getvalue() if terminal else capsys.readouterr().out
    assert "0.000 -> 0.500, best 0.500 at step 3" in text
    assert ("╭" in text) == terminal


def test_a_message_with_brackets_is_no_markup(write_metrics, capsys):
    output = write_metrics()
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, color_system=None)
    result = RunResult(status="failed", steps=1, seconds=1.0, message="bad value [/x] [red]")

    Summary(output, console, 3, "train", {}).run_end(result)

    assert "bad value [/x] [red]" in file.getvalue()


def test_the_curve_is_a_png_of_the_whole_run(write_metrics):
    output = write_metrics(rewards=(0.1, float("nan"), float("inf"), 0.4))

    LearningCurve(output).run_end(FINISHED)

    image = (output / "learning_curve.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 10_000


def test_a_run_without_steps_has_no_curve(tmp_path):
    LearningCurve(tmp_path).run_end(FINISHED)

    assert not (tmp_path / "learning_curve.png").exists()


def test_history_keeps_steps_seconds_and_values_together(write_metrics):
    history = read_history(write_metrics(rewards=(0.1, 0.2), evals=(0.0, 0.5)) / "metrics.jsonl")

    assert history.reward.steps == (1, 2)
    assert history.reward.seconds == (2.0, 4.0)
    assert history.reward.values == (0.1, 0.2)
    assert list(history.evals) == ["eval/test/T0/pass@1"]
    assert history.evals["eval/test/T0/pass@1"].steps == (0, 2)
