"""Training from Python: in a script, step by step, in a thread, beside an event loop, and in a kernel of a notebook."""

import asyncio
import hashlib
import json
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

import rlhf
from rlhf.callbacks import StepRecorder
from rlhf_core import CapabilityError, ConfigError, DataError, PluginError, RewardError, RLHFError
from rlhf_testing.errors import has_code

ROWS = [{"prompt": f"{n:03d}=", "answer": f"{n:03d}"} for n in range(0, 999, 37)]
SMALL = {
    "model": "model",
    "data": ROWS,
    "steps": 3,
    "rollout": {"batch_size": 3, "n_samples_per_prompt": 4, "max_new_tokens": 4},
    "data.max_prompt_tokens": 8,
    "log": {"progress": "off", "tensorboard": False, "curve": False},
    "actor.adam.lr": 1e-2,
}


def vary(response):
    """Differs between samples from the first step on, unlike an answer that has to be right."""
    return sum(map(ord, response)) % 7


def weights_of(run):
    return hashlib.sha256((Path(run) / "model/model.safetensors").read_bytes()).hexdigest()


def small(output, **more):
    return {"output": output, "reward": vary, **SMALL, **more}


@pytest.fixture
def as_command(train):
    """Digest of the weights that the command line trains, with the same data and the same function in a file."""
    train("cli", "--reward", "vary.py:vary", "--steps", "3", "--actor.adam.lr", "0.01")
    return weights_of("cli")


def test_a_script_a_thread_an_event_loop_and_steps_train_what_the_command_line_does(as_command):
    assert rlhf.train(**small("script")).status == "finished"
    thread = threading.Thread(target=lambda: rlhf.train(**small("thread")))
    thread.start()
    thread.join(HANG_S)

    async def cell():
        return rlhf.train(**small("loop"))

    assert asyncio.run(cell()).status == "finished"
    with rlhf.start(**small("steps")) as run:
        assert [step.number for step in run] == [1, 2, 3]

    trained = {name: weights_of(name) for name in ("script", "thread", "loop", "steps")}
    assert trained == dict.fromkeys(trained, as_command)


def test_the_recorded_configuration_names_the_rows_and_the_object(workspace, capsys):
    from rlhf_cli.main import main

    rlhf.train(**small("run"))

    record = json.loads(Path("run/plugins.json").read_text())["history"][0]["plugins"]
    assert record["python:vary"].startswith("source, sha256 ")
    assert main(["train", "-c", "run/config.toml", "--output", "again"]) == 2
    assert "It was an object of a Python program" in capsys.readouterr().err
    text = Path("run/config.toml").read_text().replace("python:vary", "vary.py:vary")
    Path("mine.toml").write_text(text)
    assert main(["train", "-c", "mine.toml", "--output", "again"]) == 0
    assert weights_of("again") == weights_of("run")


def test_the_result_has_metrics_samples_and_the_model(workspace):
    result = rlhf.train(**small("run"), eval={"fraction": 0.2})

    metrics = result.metrics()
    assert [row["step"] for row in metrics] == [0, 1, 2, 3]
    assert "eval/train/T0/reward" in metrics[0]
    assert {"reward/mean", "timing/step_s"} <= metrics[1].keys()
    assert list(result.frame().index) == [0, 1, 2, 3]
    assert {sample["step"] for sample in result.samples()} == {1, 2, 3}
    assert (result.model / "config.json").exists()
    assert "<svg" in result._repr_html_()


def test_a_stopped_run_is_saved_and_goes_on_to_the_same_weights(workspace):
    rlhf.train(**small("whole"))
    with rlhf.start(**small("run")) as run:
        for step in run:
            if step.number == 2:
                run.stop()
    assert (run.result.status, run.result.steps) == ("interrupted", 2)
    assert "run.stop()" in run.result.message

    assert rlhf.train(**small("run", resume="auto")).status == "finished"
    assert weights_of("run") == weights_of("whole")


def test_leaving_the_context_early_loses_nothing(workspace):
    def body(run):
        next(run)
        raise ZeroDivisionError

    run = rlhf.start(**small("run"))
    with pytest.raises(ZeroDivisionError), run:
        body(run)

    assert run.result.steps == 1
    assert "ZeroDivisionError" in run.result.message
    assert Path("run/checkpoints/step-00000001").exists()
    assert list(run) == []
    run.close()


def test_a_run_that_was_never_asked_for_a_step_leaves_nothing(workspace):
    with rlhf.start(**small("run")) as run:
        pass

    assert not Path("run/metrics.jsonl").exists()
    with pytest.raises(RuntimeError, match="has not ended"):
        run.result  # noqa: B018


def test_a_changed_learning_rate_is_recorded_and_resumes_exactly(workspace):
    with rlhf.start(**small("whole")) as run:
        for step in run:
            if step.number == 1:
                run.set_learning_rate(1e-3)
    with rlhf.start(**small("run")) as run:
        next(run)
        run.set_learning_rate(1e-3)
        assert next(run).metrics["policy/lr_factor"] == pytest.approx(0.1)
    result = rlhf.train(**small("run", resume="auto"))

    assert [row["policy/lr"] for row in result.metrics()] == pytest.approx([1e-2, 1e-3, 1e-3])
    assert weights_of("run") == weights_of("whole")
    rlhf.train(**small("plain"))
    assert weights_of("plain") != weights_of("whole")


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf"), "fast"])
def test_a_learning_rate_that_is_none_is_refused(workspace, lr):
    run = rlhf.start(**small("run"))

    said = f"learning rate of the policy: expected a finite number of at least 0, got {lr!r}"
    with pytest.raises(ConfigError, match=f"^{said}", check=has_code("run/learning-rate")):
        run.set_learning_rate(lr)
    with pytest.raises(
        ConfigError, match=f"^factor of the {said}", check=has_code("run/learning-rate")
    ):
        run.scale_learning_rate(lr)
    with pytest.raises(
        ConfigError, match="expected policy or critic", check=has_code("run/learning-rate")
    ):
        run.scale_learning_rate(0.5, role="teacher")


def test_an_interrupt_lets_the_step_end_and_saves(workspace):
    class Presser:
        def step_end(self, step):
            if step == 1:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)

    async def cell():
        return rlhf.train(**small("run", steps=50), callbacks=[Presser()])

    result = asyncio.run(cell())

    # Python hands the signal to the main thread soon, and not at once.
    assert result.status == "interrupted"
    assert 1 <= result.steps < 50
    assert Path(f"run/checkpoints/step-{result.steps:08d}").exists()
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_between_two_steps_counts_too(workspace, monkeypatch):
    """Drawing a step takes a while, and no step is under way then."""
    take = StepRecorder.take

    def press_and_take(recorder):
        step = take(recorder)
        if step is not None and step.number == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # Python hands the signal over between two of its instructions
        return step

    monkeypatch.setattr(StepRecorder, "take", press_and_take)

    async def cell():
        return rlhf.train(**small("run", steps=50))

    result = asyncio.run(cell())

    assert (result.status, result.steps) == ("interrupted", 2)
    assert "SIGINT" in result.message


def test_two_runs_at_once_are_refused(workspace):
    with rlhf.start(**small("run")) as run:
        next(run)
        with pytest.raises(RLHFError, check=has_code("run/under-way")):
            rlhf.train(**small("other"))
    assert rlhf.train(**small("third")).status == "finished"


def test_other_components_may_be_objects_too(workspace):
    def flat(batch):
        from rlhf_core.contracts import Advantages

        return Advantages(advantages=batch.token_rewards * 0.0 + 1.0)

    result = rlhf.train(**small("run", estimator=flat, steps=1))

    assert result.metrics()[-1]["advantage/abs_mean"] == 1.0


def test_functions_stand_where_a_file_names_functions(workspace):
    def numbers(start):
        for n in range(start, 99):
            yield {"prompt": f"{n:03d}=", "answer": f"{n:03d}"}

    options = small("run", eval={"data": ROWS[:3], "metrics": lambda episodes: {"one": 1.0}})
    del options["data"]
    result = rlhf.train(
        **options,
        **{
            "data.source": numbers,
            "data.max_samples": 6,
            "actor.lr_schedule": lambda point: 0.5,
            "algo.kl": {"coef": 0.1, "mode": "loss", "estimator": lambda ratio: ratio.square()},
        },
    )

    last = result.metrics()[-1]
    assert last["policy/lr"] == pytest.approx(0.5e-2)
    assert last["eval/eval/T0/one"] == 1.0
    assert last["kl/ref"] > 0.0
    assert {sample["prompt"] for sample in result.samples()} <= {f"{n:03d}=" for n in range(9)}


@pytest.mark.parametrize(
    ("option", "component", "said"),
    [
        (
            "estimator",
            lambda batch: 1 / 0,
            "division by zero (in plugin python (python), component given)",
        ),
        (
            "loss",
            lambda inputs: 1 / 0,
            "division by zero (in plugin python (python), component given)",
        ),
        (
            "loss",
            lambda inputs: 3,
            "python:given (python) returned 3 (int); expected TokenLoss",
        ),
    ],
)
def test_an_exception_of_a_function_names_it_and_how_to_go_on(
    workspace, capsys, option, component, said
):
    with pytest.raises((ZeroDivisionError, PluginError)):
        rlhf.train(**small("run", **{option: component}))

    shown = capsys.readouterr().out
    assert f"failed: {said}" in shown
    assert "in Python, with the same objects: rlhf.train(..., output='run', resume=" in shown
    # Nothing is lost: the run goes on once the function is mended.
    assert rlhf.train(**small("run", resume="auto")).status == "finished"


def test_one_callback_without_a_list_is_named(workspace):
    with pytest.raises(ConfigError, match="function", check=has_code("observer/not-a-list")):
        rlhf.train(**small("run"), callbacks=lambda step: None)


def test_describe_writes_nothing_and_says_what_is_missing(workspace):
    text = rlhf.describe(**small("run", model="nowhere/at/all"))

    assert "3 prompts x 4 samples" in text
    assert "python:vary" in text
    assert "not ready to run: keyword model nowhere/at/all" in text
    assert not Path("run").exists()


def needs_more(response, solution):
    return 0.0


def gives_text(response):
    return "good"


def test_a_reward_that_takes_or_gives_something_else_is_named(workspace):
    with pytest.raises(
        ConfigError, match=r"needs_more.*'solution'", check=has_code("data/missing-column")
    ):
        rlhf.train(**small("run", reward=needs_more))
    with pytest.raises(
        RewardError,
        match=r"python:gives_text.* 'good' \(str\)",
        check=has_code("reward/wrong-answer"),
    ):
        rlhf.train(**small("other", reward=gives_text))
    with pytest.raises(
        RewardError, match="takes no arguments", check=has_code("reward/not-started")
    ):
        rlhf.train(**small("third", reward=lambda: 0.0))


def test_objects_stay_in_this_process(workspace):
    with pytest.raises(
        ConfigError,
        match=r"vary.isolate.* is true, but vary is an object of this",
        check=has_code("config/in-process-only"),
    ):
        rlhf.train(**small("run", **{"reward.vary.isolate": True}))
    with pytest.raises(
        CapabilityError,
        match=r"vary needs 'in_process': .*nothing is pickled",
        check=has_code("config/missing-capability"),
    ):
        rlhf.train(**small("run", runtime="ray"))
    assert not Path("run").exists()


def test_wrong_options_and_rows_leave_no_folder(workspace):
    with pytest.raises(ConfigError, match=r"train\.step", check=has_code("config/unknown-option")):
        rlhf.train(**small("run", train={"step": 3}))
    with pytest.raises(DataError, match=r"data\[1\]", check=has_code("data/row-no-mapping")):
        rlhf.train(**small("run", data=[ROWS[0], 3]))
    assert not Path("run").exists()


def test_a_resumed_run_keeps_its_rows_and_says_that_its_function_changed(workspace, caplog):
    def score(response):
        return len(response)

    rlhf.train(**small("run", reward=score, steps=1))

    def score(response):
        return 2 * len(response)

    with pytest.raises(
        ConfigError,
        match=r"--data.train is .* but the checkpoint",
        check=has_code("resume/option-changed"),
    ):
        rlhf.train(**small("run", reward=score, resume="auto", data=ROWS[:9]))
    with caplog.at_level(logging.WARNING):
        rlhf.train(**small("run", reward=score, resume="auto", steps=2))
    assert "resuming with another version: python:score: source, sha256" in caplog.text


def test_a_callback_that_raises_does_not_end_the_run(workspace, caplog):
    def broken(step):
        raise ValueError("mine")

    assert rlhf.train(**small("run"), callbacks=[broken]).status == "finished"
    assert caplog.text.count("python:broken (callbacks[0]) failed in rlhf_step_end") == 1
