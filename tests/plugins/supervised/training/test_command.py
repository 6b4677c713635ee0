"""The commands as they are without options."""

import re
from pathlib import Path

import pytest

from rlhf_config import Layer, read_toml, resolve_options
from rlhf_core import ConfigError
from rlhf_core.plugins import load
from rlhf_plugin_supervised.training.command import COMMANDS
from rlhf_plugin_supervised.training.imitation.sft_options import FULL_RATE
from rlhf_testing.errors import has_code

RATES = {"sft": 2e-5, "dpo": 1e-6, "rm": 1e-4, "prm": 1e-4, "distill": 1e-6}
"""docs/supervised.md has their sources."""
GIVEN = {"model": {"path": "m"}, "data": {"train": ["d.jsonl"]}}


@pytest.fixture
def resolved():
    """``resolved(name, more, **actor)``: a command with a model and data, more sections, and options of ``actor``."""
    plugins = load("")

    def of(name, more=None, **actor):
        given = (
            GIVEN
            | {"actor": actor}
            | (more or {})
            | ({"teacher": {"path": "t"}} if name == "distill" else {})
        )
        layers = [read_toml(COMMANDS[name].defaults, defaults=True), Layer.of(given)]
        return resolve_options(layers, plugins, COMMANDS[name].options)

    return of


@pytest.mark.parametrize("optimizer", ["adam", "adam8bit"])
@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_learning_rate_for_what_it_trains(resolved, name, optimizer):
    run = resolved(name, optim=optimizer)

    assert run.one("actor.optim").options.lr == RATES[name]
    assert run.unused == (), "nobody wrote the sections of other optimizers"


def test_a_rate_that_is_given_counts_and_other_optimizers_keep_their_own(resolved):
    assert resolved("sft", adam={"lr": 3e-4}).one("actor.optim").options.lr == 3e-4
    assert resolved("sft", optim="sgd").one("actor.optim").options.lr == 1e-3
    assert resolved("sft", optim="sgd", adam={"lr": 3e-4}).unused == ("actor.adam",)


@pytest.mark.parametrize(
    ("name", "small", "enough"),
    [
        ("sft", 2e-5, 2e-4),
        ("dpo", 1e-6, 1e-5),
        ("distill", 1e-6, 1e-5),
        ("rm", 1e-5, 1e-4),
        ("prm", 1e-5, 1e-4),
    ],
)
def test_a_rate_that_is_copied_from_full_training_is_doubted_for_an_adapter(
    resolved, name, small, enough
):
    (caution,) = resolved(name, adapter="lora", adam={"lr": small}).cautions

    assert f"lora with a learning rate of {small:g}: adapters learn best" in caution
    assert f"Try --actor.adam.lr {enough:g} or more" in caution
    assert resolved(name, adapter="lora", adam={"lr": enough}).cautions == ()
    assert resolved(name, adam={"lr": small}).cautions == (), "full training"


def test_the_page_has_the_rates_that_the_commands_have():
    page = (Path(__file__).parents[4] / "docs" / "supervised.md").read_text()
    rows = re.findall(r"^\| ((?:`rlhf \w+`(?:, )?)+) \| (\d\S*) \|", page, re.MULTILINE)
    written = {
        name: float(rate) for names, rate in rows for name in re.findall(r"rlhf (\w+)", names)
    }

    assert written == RATES


def test_an_adapter_is_to_learn_at_ten_times_the_rate_of_full_training(resolved):
    (caution,) = resolved("sft", adapter="lora").cautions

    assert "with a learning rate of 2e-05" in caution
    assert "Try --actor.adam.lr 0.0002 or more" in caution
    assert resolved("sft", adapter="lora", adam={"lr": 2e-4}).cautions == ()
    assert resolved("sft").one("actor.optim").options.lr == FULL_RATE


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pass_holds_the_longest_row_unless_its_size_is_given(resolved, name):
    def size(length, **train):
        data = {"train": ["d.jsonl"], "max_length": length}
        return resolved(name, {"data": data, "train": train}).run.train.max_tokens_per_micro_batch

    assert size(16_000) == 16_384
    assert size(20_000) == 20_000
    assert size(20_000, max_tokens_per_micro_batch=30_000) == 30_000
    with pytest.raises(
        ConfigError,
        match=r"data\.max_length 20000: a sequence has to fit",
        check=has_code("config/pass-too-small"),
    ):
        size(20_000, max_tokens_per_micro_batch=16_384)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_without_an_engine_names_none(name, capsys):
    assert COMMANDS[name](["--help"]) == 0

    assert "engine" not in capsys.readouterr().out
