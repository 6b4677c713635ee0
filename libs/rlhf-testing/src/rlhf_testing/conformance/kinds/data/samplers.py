"""Checks of prompt samplers (``contracts.PromptSampler``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from rlhf_core.contracts.data.sampler import PromptResult
from rlhf_core.errors import PluginError
from rlhf_trainer.rollouts.prompts import CheckedSampler

from ...prompt_draws import Draws, NumberedPrompts
from ...subject import Subject, as_saved, checks_in, traits

COUNTS = (4, 1, 7, 12, 30, 4, 4)
"""Prompts of each step: fewer, as many, and more than there are."""


def check_a_draw_is_what_was_asked_for(subject: Subject) -> None:
    """A draw has as many prompts as it was asked for, also more than there are, and only prompts that there are."""
    for prompts in (NumberedPrompts(), NumberedPrompts(1)):
        with _mistakes_shown():
            Draws(CheckedSampler(subject.make(), subject.label), prompts).rounds(*COUNTS)


def check_no_prompt_for_ever(subject: Subject) -> None:
    """Within a few epochs several prompts are drawn, whatever the results are: a run must not learn one prompt."""
    for reward in (0.0, 1.0):
        draws = Draws(subject.make())
        for _ in range(20):
            drawn = draws(4)
            draws.sampler.note(
                [
                    replace(result, rewards=(reward,) * len(result.rewards))
                    for result in draws.results(drawn)
                ]
            )
        assert len(set(draws.drawn)) > 1, f"80 draws of prompt {draws.drawn[0]}"


@traits(usual=True)
def check_draws_of_a_step_differ(subject: Subject) -> None:
    """A step has no prompt twice while there are others: equal prompts in a batch teach less."""
    draws = Draws(subject.make())
    drawn = draws.rounds(8)
    assert len(set(drawn)) == 8, f"{drawn} at once, of {len(draws.prompts)} prompts"


def check_same_input_same_output(subject: Subject) -> None:
    """Two instances draw the same, whatever the state of the global generators."""
    with _global_generators(1):
        first = Draws(subject.make()).rounds(*COUNTS)
    with _global_generators(2):
        second = Draws(subject.make()).rounds(*COUNTS)
    _assert_drawn(second, first, "with other states of random and numpy.random", "before")


def check_state_continues(subject: Subject) -> None:
    """The state is JSON, and a fresh instance that loads it goes on exactly as the first, at every step."""
    for num_steps in range(1, len(COUNTS)):
        first = Draws(subject.make())
        first.rounds(*COUNTS[:num_steps])
        state = as_saved(subject.label, first.sampler.state_dict())
        second = Draws(subject.make())
        second.sampler.load_state_dict(state)
        second.drawn, second.step = list(first.drawn), first.step
        expected, actual = first.rounds(*COUNTS), second.rounds(*COUNTS)
        _assert_drawn(actual, expected, "after loading", "without it")


def check_timing_of_results_does_not_count(subject: Subject) -> None:
    """Results of different prompts in another order, or in parts, change no later draw."""
    expected = _after(subject, lambda results: [results])
    for name, cut in (
        ("in reverse", lambda results: [results[::-1]]),
        ("one by one", lambda results: [[result] for result in results]),
        ("one by one, in reverse", lambda results: [[result] for result in results[::-1]]),
    ):
        actual = _after(subject, cut)
        _assert_drawn(actual, expected, f"with results {name}", "at once")


def check_results_may_stay_away(subject: Subject) -> None:
    """A sampler goes on without results: prompts may be in flight, or dropped because they are too old."""
    draws = Draws(CheckedSampler(subject.make(), subject.label))
    waiting: list[int] = []
    with _mistakes_shown():
        for count in COUNTS:
            waiting += draws(count, in_flight=waiting)
        draws.sampler.note([])


def check_the_prompts_stay_as_they_are(subject: Subject) -> None:
    """Arrays of the prompt set are not changed in place."""
    prompts, fresh = NumberedPrompts(), NumberedPrompts()
    Draws(subject.make(), prompts).rounds(*COUNTS)
    assert np.array_equal(prompts.indices, fresh.indices), "PromptSet.indices was changed"
    for epoch in range(3):
        same = np.array_equal(prompts.order(epoch), fresh.order(epoch))
        assert same, f"what PromptSet.order({epoch}) returned was changed"


def _assert_drawn(actual: list[int], expected: list[int], how: str, otherwise: str) -> None:
    for number, (one, other) in enumerate(zip(actual, expected, strict=True), start=1):
        assert one == other, f"draw {number} is prompt {one} {how}, and prompt {other} {otherwise}"


@contextmanager
def _mistakes_shown() -> Iterator[None]:
    """Make of what a run would be refused for a promise that is broken."""
    try:
        yield
    except PluginError as error:
        raise AssertionError(str(error)) from error


def _after(
    subject: Subject, cut: Callable[[list[PromptResult]], list[list[PromptResult]]]
) -> list[int]:
    """Return what is drawn after results that came as ``cut`` divides them."""
    draws = Draws(subject.make())
    for count in (8, 6):
        drawn = list(dict.fromkeys(draws(count)))
        for part in cut(draws.results(drawn)):
            draws.sampler.note(part)
    return draws.rounds(*COUNTS)


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """Seed the generators of the process, and put them back."""
    state, state_of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(state_of_numpy)


CHECKS = checks_in(__name__)
