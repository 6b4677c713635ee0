"""Audits of configurations: the first step of a run that has not begun."""

import json
from dataclasses import replace

import pytest

from rlhf_cli.main import main as rlhf
from rlhf_config.common import SamplingOptions
from rlhf_core import ConfigError
from rlhf_plugin_lab.audit.command import main
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

CONFIG = """
output = "{folder}/runs/mine"
[model]
path = "{folder}/model"
[data]
train = ["{folder}/rows.jsonl"]
max_prompt_tokens = 8
[reward]
use = ["{folder}/reward.py:score"]
[rollout]
batch_size = 8
n_samples_per_prompt = 4
max_new_tokens = 6
filters = ["zero_variance"]
[train]
batch_size = 16
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, initializer_range=0.2)
    rows = [{"prompt": f"{number}="} for number in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text("def score(response):\n    return 1.0\n")
    path = folder / "run.toml"
    path.write_text(CONFIG.format(folder=folder))
    return path


def verdicts_of(capsys):
    return {each["side"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_sound_configuration_is_healthy_and_nothing_is_left(config, capsys):
    """Its filter would drop every group, as the reward is constant; the audit has the samples all the same."""
    assert main([str(config), "--json"]) == 0

    assert set(verdicts_of(capsys)) == {"sampler", "trainer"}
    assert not (config.parent / "runs").exists()


def test_the_cause_of_a_gap_is_named_before_training(config, capsys, monkeypatch):
    whole = SamplingOptions.params
    monkeypatch.setattr(
        SamplingOptions, "params", lambda options: replace(whole(options), temperature=0.6)
    )

    assert main([str(config), "--json", "--samples", "4"]) == 1

    verdicts = verdicts_of(capsys)
    assert verdicts["sampler"]["cause"] == "temperature", verdicts
    assert "temperature 0.6" in verdicts["sampler"]["detail"]
    assert verdicts["trainer"]["gap"] <= verdicts["trainer"]["allowed"]


def test_options_behind_the_file_count(config, capsys):
    words = [
        "--rollout.temperature",
        "0.7",
        "--algo.correction.kind",
        "tis",
        "--model.dtype",
        "bfloat16",
    ]

    assert main([str(config), *words]) == 0

    assert "trainer: gap" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--data.train", "gone.jsonl"], "gone.jsonl: there is no such file"),
        (["--engine", "nothing"], "nothing"),
        (["--rollout.temperatur", "1"], "temperatur"),
        (["--step", "2"], "has its first step alone"),
    ],
)
def test_what_cannot_be_done_is_one_error(config, capsys, words, says):
    assert rlhf(["audit", str(config), *words]) == 2

    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_options_of_a_run_that_has_begun_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")

    with pytest.raises(ConfigError, check=has_code("usage/options-of-a-run")):
        main([str(tmp_path), "--rollout.temperature", "0.7"])
