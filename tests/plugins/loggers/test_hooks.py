import logging
import subprocess
import sys

import pytest

import rlhf_plugin_loggers
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import RunResult
from rlhf_plugin_loggers.plain import PlainProgress
from rlhf_trainer.loop.listeners import observe

METRICS = {"reward/mean": 0.5}
FINISHED = RunResult(status="finished", steps=3, seconds=1.0)


@pytest.fixture
def plugins():
    loaded = plugin_loader.empty()
    loaded.manager.register(rlhf_plugin_loggers, name="loggers")
    loaded.manager.check_pending()
    yield loaded
    observe(loaded, "rlhf_run_end", result=FINISHED)


def test_every_hook_is_declared_by_the_core(plugins):
    assert len(plugins.manager.get_hookcallers(rlhf_plugin_loggers)) == 9


def test_a_whole_run_is_shown_and_leaves_its_files(plugins, run_info, write_metrics, capsys):
    output = write_metrics()
    observe(plugins, "rlhf_run_start", run=run_info(tensorboard=True, curve=True))
    for step in (1, 2, 3):
        observe(plugins, "rlhf_rollout_end", step=step, samples=[], metrics=METRICS)
        observe(plugins, "rlhf_step_end", step=step, metrics=METRICS)
    observe(plugins, "rlhf_eval_end", step=3, metrics={"eval/test/T0/pass@1": 0.5})
    observe(plugins, "rlhf_checkpoint_saved", step=3, path=output / "checkpoints")
    observe(plugins, "rlhf_run_end", result=FINISHED)

    printed = capsys.readouterr().out
    assert "step 1/3" in printed
    assert "evaluation: test T0 pass@1 0.500" in printed
    assert f"curve           {output / 'learning_curve.png'}" in printed
    assert list((output / "tensorboard").iterdir())


def test_without_progress_the_results_are_still_printed(plugins, run_info, write_metrics, capsys):
    write_metrics()
    observe(plugins, "rlhf_run_start", run=run_info(progress="off"))
    observe(plugins, "rlhf_step_end", step=1, metrics=METRICS)
    assert capsys.readouterr() == ("", "")

    observe(plugins, "rlhf_run_end", result=FINISHED)

    assert "status          finished" in capsys.readouterr().out


def test_without_progress_and_summary_nothing_is_printed(plugins, run_info, write_metrics, capsys):
    write_metrics()
    observe(plugins, "rlhf_run_start", run=run_info(progress="off", summary=False))
    observe(plugins, "rlhf_step_end", step=1, metrics=METRICS)
    observe(plugins, "rlhf_run_end", result=FINISHED)

    assert capsys.readouterr() == ("", "")


def test_nothing_is_drawn_or_written_unless_asked(plugins, run_info, write_metrics):
    output = write_metrics()
    observe(plugins, "rlhf_run_start", run=run_info())
    observe(plugins, "rlhf_step_end", step=1, metrics=METRICS)
    observe(plugins, "rlhf_run_end", result=FINISHED)

    assert [path.name for path in output.iterdir()] == ["metrics.jsonl"]


def test_an_end_without_a_start_is_silent(plugins, capsys):
    observe(plugins, "rlhf_run_end", result=RunResult(status="failed", steps=0, seconds=0.0))

    assert capsys.readouterr().out == ""


def test_an_observer_that_fails_leaves_the_others_alone(
    plugins, run_info, write_metrics, capsys, caplog
):
    write_metrics()
    observe(plugins, "rlhf_run_start", run=run_info(tensorboard=True))
    events = next(o for o in rlhf_plugin_loggers._displays if not isinstance(o, PlainProgress))
    events._file.close()  # as a full disk would, every write fails from now on

    with caplog.at_level(logging.ERROR):
        for step in (1, 2, 3):
            observe(plugins, "rlhf_step_end", step=step, metrics=METRICS)

    assert "step 3/3" in capsys.readouterr().out
    assert [record.message for record in caplog.records] == [
        "TensorBoardEvents failed and is switched off for the rest of this run"
    ]


def test_a_display_without_room_is_named_once_and_the_others_go_on(
    plugins, run_info, write_metrics, capsys, caplog
):
    """TensorBoard's folder and the curve's unfinished file are taken, as if nothing could be made there."""
    output = write_metrics()
    (output / "tensorboard").write_text("")
    (output / "learning_curve.png.tmp" / "taken").mkdir(parents=True)
    (output / "learning_curve.png").mkdir()

    with caplog.at_level(logging.ERROR):
        observe(plugins, "rlhf_run_start", run=run_info(tensorboard=True, curve=True))
        for step in (1, 2, 3):
            observe(plugins, "rlhf_step_end", step=step, metrics=METRICS)
        observe(plugins, "rlhf_run_end", result=FINISHED)

    printed = capsys.readouterr()
    assert "step 3/3" in printed.out
    assert "status          finished" in printed.out
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == [
        "TensorBoardEvents failed and is switched off for the rest of this run",
        "LearningCurve failed and is switched off for the rest of this run",
    ]
    assert all("could not be written: " in text for text in told)
    assert not any(record.exc_info for record in caplog.records)


def test_a_second_run_in_the_same_process_starts_afresh(plugins, run_info, write_metrics, capsys):
    write_metrics()
    for _ in range(2):
        observe(plugins, "rlhf_run_start", run=run_info())
        observe(plugins, "rlhf_step_end", step=1, metrics=METRICS)
        observe(plugins, "rlhf_run_end", result=FINISHED)

    assert capsys.readouterr().out.count("step 1/3") == 2


def test_auto_is_plain_where_there_is_no_terminal(plugins, run_info, capsys):
    observe(plugins, "rlhf_run_start", run=run_info(progress="auto"))

    assert isinstance(rlhf_plugin_loggers._displays[0], PlainProgress)


def test_the_plugin_itself_imports_nothing_heavy():
    heavy = "{'torch', 'rich', 'matplotlib', 'tensorboard', 'wandb', 'trackio', 'mlflow'}"
    code = f"import rlhf_plugin_loggers, sys; print({heavy} & sys.modules.keys())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
