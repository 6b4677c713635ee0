"""What is MLflow's own: names and numbers that it takes, parameters that cannot change, requests of limited size."""

import pytest
from pydantic import ValidationError
from tests.plugins.loggers.places import end, run_info

from rlhf_plugin_loggers.config import MlflowConfig
from rlhf_plugin_loggers.mlflow_logger import mlflow_name, params_of


@pytest.fixture
def place(place_of):
    return place_of("mlflow")


def only_run(place):
    from mlflow import MlflowClient

    client = MlflowClient(place.options["tracking_uri"])
    experiments = [e for e in client.search_experiments() if e.name != "Default"]
    assert len(experiments) == 1
    (run,) = client.search_runs([experiments[0].experiment_id])
    return experiments[0].name, run


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reward/mean", "reward/mean"),
        ("eval/gsm8k/T0.6/pass@1", "eval/gsm8k/T0.6/pass_at_1"),
        ("eval/my set/T1/reward", "eval/my set/T1/reward"),
        ("a:b(c)", "a_b_c_"),
    ],
)
def test_names_are_changed_only_where_mlflow_refuses_them(name, expected):
    assert mlflow_name(name) == expected


def test_options_are_parameters_by_their_path():
    config = {"seed": 1, "model": {"path": "m", "x": None}, "a": {"b": {"c": [1, "d"]}}, "e": {}}

    assert list(params_of(config)) == [
        ("seed", "1"),
        ("model.path", "m"),
        ("model.x", "null"),
        ("a.b.c", '[1, "d"]'),
        ("e", "{}"),
    ]


def test_parameters_are_those_of_the_first_start(place, tmp_path):
    for start_step, steps in ((0, 10), (3, 20)):
        logger = place.made()
        logger.start(run_info(tmp_path / "run", start_step, train={"steps": steps}))
        logger.finish(end())

    _, run = only_run(place)
    assert run.data.params["train.steps"] == "10"
    assert place.read(tmp_path / "run").config["train"] == {"steps": 20}


def test_more_than_one_request_takes_is_sent_in_several(place, tmp_path):
    metrics = {f"m/{n}": float(n) for n in range(1200)}
    logger = place.made()
    logger.start(run_info(tmp_path / "run", options={f"o{n}": n for n in range(130)}))
    logger.log_metrics(1, metrics)
    logger.finish(end())

    _, run = only_run(place)
    assert run.data.metrics == metrics
    assert len(run.data.params) == 132


def test_experiment_and_run_have_the_names_of_their_options(place, tmp_path):
    logger = place.made(experiment_name="mine", run_name="first")
    logger.start(run_info(tmp_path / "run"))
    logger.finish(end())

    name, run = only_run(place)
    assert (name, run.info.run_name) == ("mine", "first")


def test_the_experiment_is_that_of_the_environment(place, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from_environment")
    logger = place.made()
    logger.start(run_info(tmp_path / "run"))
    logger.finish(end())

    name, run = only_run(place)
    assert (name, run.info.run_name) == ("from_environment", "run")


def test_a_resumed_run_runs_again_until_its_end(place, tmp_path):
    first = place.made()
    first.start(run_info(tmp_path / "run"))
    first.finish(end("interrupted"))

    second = place.made()
    second.start(run_info(tmp_path / "run", 1))
    assert only_run(place)[1].info.status == "RUNNING"
    second.finish(end())

    assert only_run(place)[1].info.status == "FINISHED"


def test_a_uri_of_the_environment_may_hold_a_password_and_is_not_written_down(
    place, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.options["tracking_uri"])
    logger = place.made(tracking_uri=None)
    with caplog.at_level("INFO"):
        logger.start(run_info(tmp_path / "run"))
        logger.finish(end())

    assert len(place.read(tmp_path / "run").runs) == 1
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("rlhf_plugin_loggers")]
    assert len(ours) == 1
    assert "mlflow.db" not in ours[0]


def test_a_password_in_an_option_is_refused():
    with pytest.raises(ValidationError, match="set MLFLOW_TRACKING_URI instead"):
        MlflowConfig(tracking_uri="https://me:secret@host/mlflow")
    assert MlflowConfig(tracking_uri="https://host/m@x").tracking_uri == "https://host/m@x"
