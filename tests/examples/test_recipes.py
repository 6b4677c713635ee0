"""Every configuration under examples/ resolves with what is installed, without weights, data or network."""

import socket
from pathlib import Path

import pytest

from rlhf_config import parse_flags, read_toml, resolve
from rlhf_core.plugins import load

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/run.toml"))
DEFAULTS = ROOT / "cli/src/rlhf_cli/defaults.toml"


@pytest.fixture(autouse=True)
def _at_the_root_without_a_network(monkeypatch):
    """The paths in the examples start at the root of the repository."""

    def refuse(*_):
        raise AssertionError("an example's configuration reached for the network")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def name_of(path: Path) -> str:
    return path.parent.name


def resolved(path: Path, *flags: str):
    layers = [read_toml(DEFAULTS, defaults=True), read_toml(path), parse_flags(flags)]
    return resolve(layers, load())


def test_there_are_examples():
    expected = {"reverse_digits", "two_turn", "gsm8k_0.5b", "gsm8k_7b", "dapo_style", "prorl_style"}

    assert expected <= set(map(name_of, EXAMPLES))


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_the_configuration_resolves_and_uses_every_section(path):
    assert resolved(path).unused == ()


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_the_plan_can_be_described(path, capsys):
    from rlhf_cli.main import main

    assert main(["train", "--dry-run", "-c", str(path)]) == 0
    assert f"runs/{name_of(path)}" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_the_readme_shows_the_command_that_runs_it(path):
    readme = (path.parent / "README.md").read_text()

    assert f"rlhf train -c examples/{name_of(path)}/run.toml" in readme


def test_the_style_recipes_are_what_they_say():
    dapo = resolved(ROOT / "examples/dapo_style/run.toml")
    prorl = resolved(ROOT / "examples/prorl_style/run.toml")

    loss = dapo.one("algo.loss.policy").options
    assert (loss.clip_low, loss.clip_high, dapo.run.algo.kl.coef) == (0.2, 0.28, 0.0)
    assert dapo.run.algo.loss.aggregation == "token-mean"
    assert prorl.run.algo.kl.mode == "loss"
    assert prorl.run.algo.kl.coef > 0
    assert prorl.run.rollout.temperature > 1
    assert prorl.one("algo.loss.policy").options.clip_high == 0.4


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_data_templates_make_prompts(path):
    """With a row of the named set's columns; braces that are meant literally come out once."""
    from rlhf_data.rows import PromptFormat

    format = PromptFormat.of(resolved(path).run.data)
    prompt = format.prompt(dict.fromkeys(format.columns, "What is 1+1?"))

    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    assert text.startswith("What is 1+1?")
    assert "{{" not in text
