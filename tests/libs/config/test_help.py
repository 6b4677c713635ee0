"""Help follows the selection: which options there are now, what they are, and who set them."""

import pytest
from tests.core.sample_plugin import DEFAULTS

from rlhf_config import Layer, parse_flags, render_help
from rlhf_core import Component, Config, Registered


@pytest.fixture
def text(plugins):
    def of(*words, files=(), width=100):
        return render_help([Layer.of(DEFAULTS), *files, parse_flags(list(words))], plugins, width)

    return of


def entry(text, option):
    """The lines of one option, as one."""
    first, *rest = text[text.index(f" {option} ") :].splitlines()
    more = next((n for n, line in enumerate(rest) if not line.startswith(" " * 30)), len(rest))
    return " ".join(" ".join([first, *rest[:more]]).split())


def test_help_shows_the_options_of_what_is_selected(resolved, plugins):
    layers = [parse_flags(["--estimator", "discounted", "--actor.optim=momentum", "--seed", "7"])]

    text = render_help(layers, plugins)

    assert "--algo.advantage.discounted.gamma NUMBER" in text
    assert "uses a critic" in text
    assert "also installed: mean_baseline, temperature" in text
    assert "--actor.momentum.inner.lr NUMBER" in text
    assert "(now 7, by --seed)" in text
    assert "--algo.advantage.mean_baseline" not in text
    assert "note: --runtime: expected a runtime; installed: here" in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_longer_than_the_terminal(text, width):
    lines = text(width=width).splitlines()

    assert max(map(len, lines)) <= width
    (flag,) = (number for number, line in enumerate(lines) if line.startswith("  --gpus"))
    assert width == 100 or lines[flag + 1].startswith(" " * 21)


def test_an_option_says_its_type_its_meaning_and_its_default(text):
    assert entry(text(), "--train.inner_epochs") == (
        "--train.inner_epochs INT number of passes over each rollout batch (default 1)"
    )
    assert entry(text(), "--actor.max_norm").endswith("none: no clipping (default 1.0)")
    assert (
        entry(text(), "--rollout.stop")
        == "--rollout.stop TEXT... texts that end a turn of the policy"
    )


@pytest.mark.parametrize(
    ("words", "option", "now"),
    [
        (("--steps", "5"), "--train.steps", "(now 5, by --steps)"),
        (("--rollout.stop", "a", "b"), "--rollout.stop", "(now a b, by --rollout.stop)"),
        (
            ("--rollout.in_flight_updates",),
            "--rollout.in_flight_updates",
            "(now true, by --rollout.in_flight_updates)",
        ),
        (
            ("--optim", "simple", "--actor.simple.lr", "0.25"),
            "--actor.plain.lr",
            "(now 0.25, by --actor.simple.lr)",
        ),
        (
            ("--optim", "momentum", "--actor.momentum.limits.head", "3"),
            "--actor.momentum.limits",
            "(now head=3, by --actor.momentum.limits.head)",
        ),
    ],
)
def test_what_was_written_is_shown_with_the_place_where_it_was(text, words, option, now):
    assert entry(text(*words), option).endswith(now)


def test_a_files_values_are_shown_with_the_file(text):
    found = text(files=[Layer.of({"train": {"steps": 3}, "data": {"chat": False}}, "a.toml")])

    assert entry(found, "--train.steps").endswith("(now 3, by a.toml: train.steps)")
    assert entry(found, "--data.chat").endswith("(now false, by a.toml: data.chat)")


class Undescribed(Config):
    names: tuple[str, ...] = ()


def test_an_option_without_a_description_or_a_default_has_its_name_and_type(text, plugins):
    plugins.registries["rlhf_model_adapters"].add(
        Registered(Component(name="bare", factory=dict, config=Undescribed), "other")
    )

    lines = text("--actor.adapter", "bare").splitlines()

    assert "    --actor.bare.names TEXT..." in lines


def test_options_that_the_core_has_for_every_reward_stand_with_the_rewards_own(text):
    found = text("--reward", "pattern")

    assert "--reward.pattern.pattern" in found
    assert "--reward.pattern.on_error" in found
    assert "--actor.plain.weight" not in found


def test_the_path_of_a_wrapped_function_is_no_option(text, tmp_path):
    (tmp_path / "mine.py").write_text("def score(response, row):\n    return 0.0\n")

    found = text("--reward", f"{tmp_path / 'mine.py'}:score")

    assert "--reward.score.batch" in found
    assert "--reward.score.path" not in found


def test_a_name_that_does_not_exist_hides_nothing_else(text):
    found = text("--estimator", "nobody", "--optim", "momentum")

    assert "note: --estimator nobody: " in found
    assert "--actor.momentum.lr" in found


@pytest.mark.parametrize("width", [80, 140])
def test_lines_are_as_long_as_the_screen_is_wide(text, width):
    options = text("--optim", "momentum", width=width).partition("\nrun\n")[2].splitlines()

    names = [line for line in options if len(line) > width]
    assert [line for line in names if len(line.split()) > 3] == []
