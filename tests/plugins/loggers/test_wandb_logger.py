"""What is W&B's own: its x axis, its options, and where its key comes from."""

import json
import shutil

import pytest
from pydantic import ValidationError
from tests.plugins.loggers.places import end, run_info
from tests.plugins.loggers.read_back import wait_for_end, wandb_records

from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_plugin_loggers.config import WandbConfig
from rlhf_plugin_loggers.wandb_logger import WandbLogger
from rlhf_testing.errors import has_code

ONLINE = WandbConfig(mode="online")


@pytest.fixture
def logged(place_of, tmp_path):
    """Log two steps with further options; return all records."""

    def log(**options):
        logger = place_of("wandb").made(**options)
        logger.start(run_info(tmp_path / "run", seed=7))
        for step in (1, 2):
            logger.log_metrics(step, {"reward/mean": 0.5})
        logger.finish(end())
        return records_of(tmp_path / "run")

    return log


def records_of(output):
    (file,) = (output / "wandb").glob("offline-run-*/*.wandb")
    wait_for_end(file)
    return list(wandb_records(file))


def of_kind(records, kind):
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


@pytest.mark.slow
def test_every_chart_is_over_the_steps_of_the_run(logged):
    """By W&B's own step, rows of a step that is done again would be refused."""
    (metric,) = of_kind(logged(), "metric")

    assert (metric.glob_name, metric.step_metric) == ("*", "step")


def test_options_are_those_of_the_run_there(logged):
    records = logged(project="p", entity="team", name="n", group="g", tags=["a", "b"])

    run = of_kind(records, "run")[0]
    assert (run.project, run.entity, run.display_name, run.run_group) == ("p", "team", "n", "g")
    assert list(run.tags) == ["a", "b"]


def test_a_run_is_called_like_its_folder(logged):
    assert of_kind(logged(), "run")[0].display_name == "run"


def test_the_project_is_that_of_the_environment_or_rlhf(logged, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "from_environment")

    assert of_kind(logged(project=None), "run")[0].project == "from_environment"


def test_a_copied_run_folder_does_not_write_into_the_first_one_s_run(place_of, tmp_path, caplog):
    """By what the package itself wrote: the identity of each start, and the rows under it."""

    def log(output, step, reward):
        before = {*output.glob("wandb/*-run-*")}
        logger = place_of("wandb").made()
        logger.start(run_info(output))
        logger.log_metrics(step, {"reward/mean": reward})
        logger.finish(end())
        (folder,) = {*output.glob("wandb/*-run-*")} - before
        (file,) = folder.glob("run-*.wandb")
        wait_for_end(file)
        records = list(wandb_records(file))
        rows = [
            {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in row.item
            }
            for row in of_kind(records, "history")
        ]
        (begun,) = of_kind(records, "run")
        return begun.run_id, begun.display_name, [row["reward/mean"] for row in rows]

    run, copy = tmp_path / "run", tmp_path / "copy"
    first, *_ = log(run, 1, 0.25)
    shutil.copytree(run, copy, symlinks=True)

    second, name, rows = log(copy, 2, 0.5)

    assert (second != first, name, rows) == (True, "copy", [0.5])
    assert f"{copy} is a copy of {run}, whose run at wandb is {first}" in caplog.text
    assert log(run, 2, 0.75) == (first, "run", [0.75])
    assert log(copy, 3, 1.0) == (second, "copy", [1.0])


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), ("interrupted", 130)])
def test_the_exit_code_is_that_of_the_command(place_of, tmp_path, status, code):
    logger = place_of("wandb").made()
    logger.start(run_info(tmp_path / "run"))
    logger.finish(end(status))

    ends = of_kind(records_of(tmp_path / "run"), "exit")
    assert [ended.exit_code for ended in ends] == [code]


def test_without_a_key_the_run_is_refused_before_it_starts():
    with pytest.raises(
        ConfigError,
        match=r"WANDB_API_KEY.*--log\.wandb\.mode offline",
        check=has_code("logger/no-key"),
    ):
        WandbLogger(ONLINE)


FLAGS = ["--model", "model", "--data", "rows.jsonl", "--reward", "letters.py:score"]


@pytest.mark.parametrize(
    ("switch", "code", "said"),
    [
        ("--check", 2, "error: --log.to wandb: expected a key in the environment"),
        ("--dry-run", 0, "not ready to run: --log.to wandb: expected a key in the environment"),
    ],
)
def test_a_missing_key_is_said_before_anything_is_loaded(small_run, capsys, switch, code, said):
    (small_run.folder / "letters.py").write_text("def score(response):\n    return 1.0\n")

    assert main(["train", switch, *FLAGS, "--log.to", "wandb"]) == code

    assert said in capsys.readouterr().err


def test_a_disabled_run_writes_nothing(place_of, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    logger = place_of("wandb").made(mode=None)
    logger.start(run_info(tmp_path / "run"))
    logger.log_metrics(1, {"reward/mean": 0.5})
    logger.finish(end())

    assert not (tmp_path / "run" / "wandb").exists()


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_who_sends_nothing_needs_no_key(monkeypatch, mode):
    monkeypatch.setenv("WANDB_MODE", mode)

    WandbLogger(WandbConfig())


def test_the_option_for_the_mode_is_above_the_environment(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")

    with pytest.raises(ConfigError):
        WandbLogger(ONLINE)


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"])
def test_a_key_comes_from_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, "x" * 40)

    WandbLogger(ONLINE)


def test_a_key_comes_from_wandb_login(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine my.server login user password x\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "https://my.server")

    WandbLogger(ONLINE)


@pytest.mark.parametrize(
    ("text", "part", "code"),
    [
        (
            "machine other.server login user password x\n",
            "WANDB_API_KEY is not set",
            "logger/no-key",
        ),
        ("machine my.server word\n", "netrc cannot be read", "logger/key-unreadable"),
    ],
)
def test_a_login_elsewhere_is_no_key(monkeypatch, tmp_path, text, part, code):
    """wandb would ask for a key on the terminal, while the run is training."""
    (tmp_path / "netrc").write_text(text)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "https://my.server")

    with pytest.raises(ConfigError, match=part, check=has_code(code)):
        WandbLogger(ONLINE)


def test_a_wait_for_a_server_that_is_not_asked_is_refused():
    with pytest.raises(ValidationError, match="so start_s 5 would change nothing"):
        WandbConfig(mode="offline", start_s=5.0)
