"""Commands that train by their names, in Python: found, listed, and refused with what there is."""

from pathlib import Path

import pytest
from huggingface_hub import constants

import rlhf
from rlhf.entry import CallableCommand
from rlhf_cli.training import TrainingCommand
from rlhf_config import TRAIN
from rlhf_core import ConfigError, UnknownComponent
from rlhf_data import hub
from rlhf_testing.errors import has_code


def test_a_command_is_found_by_its_name_and_as_a_name_of_the_package():
    assert rlhf.command("sft").name == rlhf.sft.name == "sft"
    assert "supervised fine-tuning" in repr(rlhf.sft)
    assert {"sft", "dpo", "rm", "prm", "distill", "train"} <= set(dir(rlhf))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sftt", "expected a command that trains .*dpo.*train.*Did you mean sft"),
        ("eval", "got a command that does something else. Choose one of these"),
        ("poems", "got a name that no installed plugin has .*install the plugin that has it"),
    ],
)
def test_an_unknown_command_is_refused_with_those_that_there_are(name, said):
    with pytest.raises(
        UnknownComponent,
        match=f"rlhf {name}: .*{said}",
        check=has_code("usage/no-training-command"),
    ):
        rlhf.command(name)
    with pytest.raises(AttributeError, match=f"rlhf {name}: .*{said}"):
        getattr(rlhf, name)


def test_a_private_name_is_no_command():
    with pytest.raises(AttributeError, match="module 'rlhf' has no attribute '_sft'"):
        rlhf._sft  # noqa: B018


def run_as_it_was(resolved, plugins):
    raise AssertionError("nothing runs")


def test_a_command_whose_runs_take_no_control_is_not_done_step_by_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    defaults = Path(rlhf.entry.COMMAND.defaults)
    mine = TrainingCommand(options=TRAIN, defaults=defaults, run=f"{__name__}:run_as_it_was",
                           describe="rlhf_trainer.loop.describe:describe")  # fmt: skip

    with pytest.raises(
        ConfigError,
        match=r"run_as_it_was takes no 'control'\.",
        check=has_code("run/not-steerable"),
    ):
        CallableCommand(mine).start(model="model", data=[{"prompt": "a"}], reward=len)


def score(response, answr, weight=1.0, **others):
    raise AssertionError("nothing runs")


def test_a_parameter_of_a_function_that_no_row_has_as_a_column_is_named_before_the_run(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")

    with pytest.raises(
        ConfigError, match=r"'answr'.*'answer'", check=has_code("data/missing-column")
    ):
        rlhf.train(model="model", data=[{"prompt": "a", "answer": "b"}], reward=score, steps=1)


def test_a_hub_that_cannot_be_reached_is_told_before_the_run(tmp_path, monkeypatch):
    def refuse(endpoint):
        raise ConnectionError("refused")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "_ask", refuse)
    monkeypatch.setattr(rlhf.entry, "function_of", lambda path: pytest.fail("a run starts"))

    with pytest.raises(ConfigError, check=has_code("model/hub-unreachable")):
        rlhf.train(model="nobody/nothing", data=[{"prompt": "a"}], reward=len, steps=1)
