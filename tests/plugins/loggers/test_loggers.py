"""Whole runs that log to W&B, trackio and MLflow: what the libraries' own files hold afterwards."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from math import inf, nan
from pathlib import Path

import pytest
from PIL import Image
from tests.deadlines import HANG_S
from tests.images import noisy, saved
from tests.plugins.loggers import places
from tests.plugins.loggers.places import end, run_info
from tests.plugins.loggers.read_back import same

from rlhf_cli.main import main
from rlhf_core import RolloutError, component
from rlhf_core.contracts import RolloutSample
from rlhf_core.plugins import load
from rlhf_trainer.loop.listeners import build_loggers

ROOT = Path(__file__).parents[3]
EVALUATED = {"eval": {"fraction": 0.25, "every": 2}}
RESUMED = {"resume": {"checkpoint": "auto"}}

STATUSES = {
    "wandb": {"finished": "finished", "interrupted": "interrupted", "failed": "failed"},
    "trackio": {
        "finished": "run finished",
        "interrupted": "run interrupted",
        "failed": "run failed",
    },
    "mlflow": {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"},
}
"""Each library's word."""


def written(small_run):
    """Step and metrics of each line of metrics.jsonl."""
    for line in small_run.lines():
        timing = {f"timing/{name}": value for name, value in line.get("timing", {}).items()}
        yield line["step"], line["eval"] if "eval" in line else line["metrics"] | timing


def test_every_metric_is_there_with_its_step_and_its_name(small_run, place):
    small_run(place.log, EVALUATED)

    found = place.read(small_run.folder / "run")
    expected = [
        (place.metric(name), step, value)
        for step, metrics in written(small_run)
        for name, value in metrics.items()
    ]
    assert len(expected) > 60
    actual = [(name, step, value) for step, row in found.rows for name, value in row.items()]
    assert sorted(actual) == sorted(expected)
    names = {name for name, _, _ in actual}
    assert {"reward/mean", "timing/step_s"} < names
    assert any(name.startswith("eval/") for name in names)


def test_the_configuration_is_there(small_run, place):
    with small_run.configured(place.log) as (resolved, _):
        pass
    small_run(place.log)

    config = place.read(small_run.folder / "run").config
    assert config == resolved.tree
    assert config["log"]["to"] == [f"loggers:{place.name}"]


def test_samples_are_a_table_of_every_so_many_steps(small_run, place):
    small_run(place.log, {"log": {"samples": 2}})

    tables = place.read(small_run.folder / "run").tables
    assert list(tables) == [2]
    expected = [
        [2, line["uid"], line["prompt"], line["response"], line["reward"], line["truncated"]]
        for line in small_run.lines("samples.jsonl")
        if line["step"] == 2
    ]
    assert len(expected) == 2
    assert tables[2] == expected


def test_a_finished_run_is_finished_there(small_run, place):
    small_run(place.log)

    assert place.read(small_run.folder / "run").status == STATUSES[place.name]["finished"]


def test_an_interrupted_run_says_so_there_and_goes_on_as_the_same_run(small_run, place):
    small_run.diary.interrupt("learn", time=2)
    small_run(place.log)
    found = place.read(small_run.folder / "run")
    assert found.status == STATUSES[place.name]["interrupted"]
    assert found.message == "stopped by SIGTERM; continue with --resume auto"

    small_run(place.log, RESUMED)

    again = place.read(small_run.folder / "run")
    assert again.runs == found.runs
    assert len(again.runs) == 1
    assert [step for step, _ in again.values("reward/mean")] == [1, 2, 3]
    assert (again.status, again.message) == (STATUSES[place.name]["finished"], "")


def test_a_failed_run_says_why_there(small_run, place):
    small_run.diary.fail("learn", RolloutError("engine died\nwith details"), time=2)

    with pytest.raises(RolloutError):
        small_run(place.log)

    found = place.read(small_run.folder / "run")
    assert (found.status, found.message) == (STATUSES[place.name]["failed"], "engine died")


@pytest.mark.slow
def test_a_killed_run_goes_on_as_the_same_run(small_run, place):
    """Killed after step 3 is there, with a checkpoint of step 2: step 3 is done, and logged, again."""
    script = ROOT / "tests/plugins/loggers/places.py"
    # With WANDB_SERVICE the process would write through this one's wandb-core, which outlives it.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    killed = subprocess.run(
        [sys.executable, script, small_run.folder, place.name, "step 4", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * HANG_S,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    assert killed.returncode == -9, killed.stderr
    output = small_run.folder / "run"
    before = place.read(output, ended=False)
    assert [step for step, _ in before.values("reward/mean")] == [1, 2, 3]

    small_run(place.log, RESUMED, {"train": {"steps": 5}})

    after = place.read(output)
    assert after.runs == before.runs
    assert len(after.runs) == 1
    rewards = after.values("reward/mean")
    assert [step for step, _ in rewards] == [1, 2, 3, 3, 4, 5]
    assert rewards[2] == rewards[3]
    assert dict(rewards) == {step: row["reward/mean"] for step, row in written(small_run)}
    assert after.status == STATUSES[place.name]["finished"]


def test_a_start_without_a_step_leaves_no_run_of_its_own(place, tmp_path):
    for steps in ([], [1, 2]):
        logger = place.made()
        logger.start(run_info(tmp_path / "run"))
        for step in steps:
            logger.log_metrics(step, {"reward/mean": 1.0})
        logger.finish(end())

    found = place.read(tmp_path / "run")
    assert len(found.runs) == 1
    assert found.values("reward/mean") == [(1, 1.0), (2, 1.0)]


def test_runs_of_two_folders_are_two_runs(place, tmp_path):
    for name in ("first", "second"):
        logger = place.made()
        logger.start(run_info(tmp_path / name))
        logger.log_metrics(1, {"reward/mean": 1.0})
        logger.finish(end())

    folders = [tmp_path / name / "loggers" for name in ("first", "second")]
    identities = [(folder / place.name).read_text() for folder in folders]
    assert len(set(identities)) == 2
    found = [run for name in ("first", "second") for run in place.read(tmp_path / name).runs]
    assert len(set(found)) == 2


def test_values_that_are_not_finite_are_logged_too(place, tmp_path):
    metrics = {"a": nan, "b": inf, "c": -inf, "d": 1e300, "e": -5e-324}
    logger = place.made()
    logger.start(run_info(tmp_path / "run"))
    logger.log_metrics(1, metrics)
    logger.log_metrics(2, {"a": 0.5})
    logger.finish(end())

    found = place.read(tmp_path / "run")
    if place.name == "mlflow":  # its database has no infinity
        metrics |= {"b": sys.float_info.max, "c": -sys.float_info.max}
    read = {name: value for step, row in found.rows if step == 1 for name, value in row.items()}
    assert read.keys() == metrics.keys()
    assert [name for name in metrics if not same(read[name], metrics[name])] == []
    assert found.values("a")[-1] == (2, 0.5)


def test_texts_of_samples_come_back_as_they_are(place, tmp_path):
    texts = ["", "two\nlines", "“quotes” \\ % ☃ 🙂", "<b>&amp;</b>", "x" * 10_000]
    samples = [
        RolloutSample(
            uid=f"0.{n}.0.0", prompt=text, response=text[::-1], reward=0.5, truncated=True
        )
        for n, text in enumerate(texts)
    ]
    logger = place.made()
    logger.start(run_info(tmp_path / "run"))
    logger.log_samples(7, samples)
    logger.log_metrics(7, {"reward/mean": 0.5})
    logger.finish(end())

    (table,) = place.read(tmp_path / "run").tables.values()
    assert [row[2:4] for row in table] == [[text, text[::-1]] for text in texts]


def test_samples_of_one_prompt_are_a_line_of_the_table_of_groups(place, tmp_path):
    samples = [
        RolloutSample(uid=f"0.3.{n}.0", prompt="p", response=text, reward=reward, truncated=False)
        for n, (text, reward) in enumerate([("bad", 0.0), ("good", 1.0)])
    ]
    logger = place.made()
    logger.start(run_info(tmp_path / "run"))
    logger.log_samples(7, samples)
    logger.log_metrics(7, {"reward/mean": 0.5})
    logger.log_samples(8, samples[:1])
    logger.finish(end())

    found = place.read(tmp_path / "run")
    row = [7, "0.3", 2, 0.5, 0.5**0.5, 0.0, 1.0, 0.0, "p", "good", "bad"]
    assert found.groups == {7: [pytest.approx(row)]}
    assert sorted(found.tables) == [7, 8]


def test_the_first_images_of_a_few_samples_come_back(place, tmp_path):
    """As many as ``log.images`` says, which is 2 here; samples without an image are passed over."""
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        file.write_bytes(saved(noisy(8 + number, 6)))
    images = [(files[0], files[3]), (), (files[1],), (files[2],)]
    samples = [
        RolloutSample(
            uid=f"0.{n}.0.0", prompt="", response="", reward=0.5, truncated=False, images=own
        )
        for n, own in enumerate(images)
    ]
    logger = place.made()
    logger.start(run_info(tmp_path / "run"))
    logger.log_samples(5, samples)
    logger.log_metrics(5, {"reward/mean": 0.5})
    logger.log_samples(10, samples[1:2])
    logger.finish(end())

    found = place.read(tmp_path / "run")
    assert sorted(found.images) == [(5, "samples/image_0"), (5, "samples/image_1")]
    for (_, name), file in found.images.items():
        with Image.open(file) as logged, Image.open(files[int(name[-1])]) as given:
            assert logged.convert("RGB").tobytes() == given.convert("RGB").tobytes()
    assert sorted(found.tables) == [5, 10]
    assert found.values("reward/mean") == [(5, 0.5)]


SECRET = "0123456789abcdef0123456789abcdef01234567"
KEYS = ("WANDB_API_KEY", "HF_TOKEN", "TRACKIO_WRITE_TOKEN", "MLFLOW_TRACKING_TOKEN")


def test_no_key_is_written_anywhere(small_run, place, monkeypatch):
    for name in (*KEYS, "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, SECRET)

    small_run(place.log, {"log": {"samples_every": 1}})

    files = [file for file in small_run.folder.rglob("*") if file.is_file()]
    files += Path(os.environ["TRACKIO_DIR"]).rglob(f"{place.project}*")
    assert len(files) > 8
    assert [str(file) for file in files if SECRET.encode() in file.read_bytes()] == []


def test_no_logger_has_an_option_for_a_key():
    options = {
        name
        for entry in load("").registries["rlhf_loggers"]
        for name in entry.component.config.model_fields
    }

    assert {"project", "tracking_uri"} <= options
    assert [o for o in options if any(w in o for w in ("key", "token", "password", "secret"))] == []


def test_a_logger_whose_folder_cannot_be_written_does_not_end_the_run(small_run, place, caplog):
    """As on a full disk: nothing of the logger can be kept in the run folder."""
    (small_run.folder / "run").mkdir()
    (small_run.folder / "run" / "loggers").write_text("a file, where a folder has to be")

    assert small_run(place.log).status == "finished"

    assert f"logger loggers:{place.name} failed in start and is switched off" in caplog.text


def test_several_loggers_get_the_same_run(small_run, place_of):
    all_places = [place_of(name) for name in places.NAMES]
    sections = {place.name: place.options for place in all_places}

    small_run({"log": {"to": list(places.NAMES), **sections}})

    rewards = [place.read(small_run.folder / "run").values("reward/mean") for place in all_places]
    assert rewards[0] == rewards[1] == rewards[2]
    assert len(rewards[0]) == 3


def test_a_missing_library_is_an_error_of_check(small_run, place, monkeypatch, capsys):
    installed = component.version

    def version(name):
        if name.startswith(place.name):
            raise PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(component, "version", version)
    flags = ["--model", "model", "--data", "rows.jsonl", "--reward", "letters.py:score"]
    (small_run.folder / "letters.py").write_text("def score(response):\n    return 1.0\n")

    code = main(["train", "--check", *flags, "--log.to", place.name])

    assert code == 1
    said = capsys.readouterr().err
    assert f"loggers:{place.name} needs {place.name}" in said
    assert f"pip install 'rlhf-plugin-loggers[{place.name}]'" in said


def test_building_a_logger_touches_nothing(small_run, place):
    before = sorted(small_run.folder.rglob("*"))

    with small_run.configured(place.log) as (resolved, _):
        assert list(build_loggers(resolved)) == [f"loggers:{place.name}"]

    assert sorted(small_run.folder.rglob("*")) == before
