"""Options about memory: who gives them, who overrides them, and what a resumed run has."""

import pytest
from tests.core import sample_plugin

from rlhf_config import TRAIN, Layer, parse_flags, resolve, with_memory_options, write_toml
from rlhf_core import Component, RLHFError
from rlhf_core.capabilities import PLANS_MEMORY
from rlhf_core.component import Registered
from rlhf_core.contracts import MemoryOptions

TOKENS = "train.max_tokens_per_micro_batch"
CHOICE = MemoryOptions(values={TOKENS: 20_480}, reason="memory: micro-batches of 20,480 tokens")


class Fitter:
    """A command that gives one answer, or raises it."""

    def __init__(self):
        self.answer, self.given = CHOICE, None

    def __call__(self, arguments):
        return 0

    def memory_options(self, command, config, given, plugins):
        assert command == "train"
        assert config["train"]["max_tokens_per_micro_batch"] > 0
        self.given = given
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def fitter(plugins):
    found = Fitter()
    made = Component(name="fitter", factory=found, provides=frozenset({PLANS_MEMORY}))
    plugins.registries["rlhf_commands"].add(Registered(made, "some"))
    return found


@pytest.fixture
def fitted(plugins, fitter):
    def run(*words):
        typed = parse_flags([*sample_plugin.ENOUGH, *words])
        layers = [Layer.of(sample_plugin.DEFAULTS, "defaults"), typed]
        return with_memory_options(resolve(layers, plugins), layers, plugins, TRAIN)

    return run


def test_an_option_that_nobody_sets_is_the_planners(fitted, fitter):
    resolved = fitted()

    assert resolved.run.train.max_tokens_per_micro_batch == 20_480
    assert resolved.tree["train"]["max_tokens_per_micro_batch"] == 20_480, "config.toml says it"
    assert resolved.choices == (CHOICE.reason,)
    assert TOKENS not in fitter.given
    assert "model.path" in fitter.given


def test_what_is_set_wins_and_is_told_to_the_planner(fitted, fitter):
    resolved = fitted(f"--{TOKENS}", "12000")

    assert resolved.run.train.max_tokens_per_micro_batch == 12_000
    assert TOKENS in fitter.given


@pytest.mark.parametrize("answer", [None, RLHFError("no such shape")])
def test_without_an_answer_defaults_hold(fitted, fitter, answer, caplog):
    fitter.answer = answer

    resolved = fitted()

    assert resolved.run.train.max_tokens_per_micro_batch == 16_384
    assert resolved.choices == ()
    assert ("defaults hold: no such shape" in caplog.text) == (answer is not None)


def test_a_resumed_run_keeps_what_it_had_on_another_machine(fitted, fitter, tmp_path):
    words = ["--output", str(tmp_path)]
    write_toml(fitted(*words), tmp_path / "config.toml")
    fitter.answer = MemoryOptions(values={TOKENS: 30_000}, reason="memory: larger GPUs")

    resumed = fitted(*words, "--resume", "auto")

    assert resumed.run.train.max_tokens_per_micro_batch == 20_480
    assert resumed.choices == ("memory: as in the run that is resumed",)
