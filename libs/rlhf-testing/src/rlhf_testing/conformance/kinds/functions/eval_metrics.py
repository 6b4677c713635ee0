"""Checks of evaluation metrics (``contracts.EvalMetric``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rlhf_core.contracts.functions.eval_metric import EvalEpisodes

from ...subject import Subject, checks_in

_TEXTS = ("4", "four it is", "4", "", "I do not know what it is", "4 4 4")


def _episodes(prompts: int, samples: int, *, passing: bool = True) -> EvalEpisodes:
    """Return episodes of so many prompts, with rewards of 0 to 1 and answers that come again."""
    count = prompts * samples
    # 0, 1/4, 1, 1/2, 1/2, 1, 1/4, and again: the samples that pass have no fixed place in their group.
    reward = np.arange(count) ** 2 % 7 / 4.0 if passing else np.zeros(count)
    return EvalEpisodes(
        set_name="held_out",
        temperature=1.0,
        prompt=np.repeat(np.arange(prompts), samples),
        reward=reward,
        passed=reward >= 1.0,
        num_actions=np.arange(count) % 7 + 1,
        responses=tuple(_TEXTS[episode % len(_TEXTS)] for episode in range(count)),
    )


def _cases() -> list[EvalEpisodes]:
    """Return new ones each time: a metric might write into them."""
    sizes = ((5, 4), (1, 1), (1, 8), (7, 1))
    return [*(_episodes(*size) for size in sizes), _episodes(3, 2, passing=False)]


def _where(episodes: EvalEpisodes) -> str:
    return f"of {len(episodes.responses)} episodes of {len(set(episodes.prompt.tolist()))} prompts"


def _chosen(episodes: EvalEpisodes, order: list[int]) -> EvalEpisodes:
    """Return the episodes in another order, with prompts numbered as they come."""
    prompt = episodes.prompt[order]
    numbers = {old: new for new, old in enumerate(dict.fromkeys(prompt.tolist()))}
    return replace(
        episodes,
        prompt=np.array([numbers[old] for old in prompt.tolist()], dtype=np.int64),
        reward=episodes.reward[order],
        passed=episodes.passed[order],
        num_actions=episodes.num_actions[order],
        responses=tuple(episodes.responses[one] for one in order),
    )


def _assert_same(found: Mapping[str, float], expected: Mapping[str, float], what: str) -> None:
    assert set(found) == set(expected), f"{what}: {sorted(found)}, expected {sorted(expected)}"
    for name, value in expected.items():
        assert math.isclose(found[name], value, rel_tol=1e-9, abs_tol=1e-12), (
            f"{what}: {name} is {found[name]:.9g}, expected {value:.9g}"
        )


def check_finite_numbers_with_names(subject: Subject) -> None:
    """Names without spaces and finite numbers, of one prompt, of one sample a prompt, and where nothing passes."""
    for episodes in _cases():
        for name, value in subject.make()(episodes).items():
            assert isinstance(name, str), f"name {name!r}, expected a string"
            assert name, "an empty name"
            assert not any(letter.isspace() for letter in name), f"name {name!r} has a space"
            assert math.isfinite(float(value)), f"{name} {_where(episodes)} is {value}"


def check_earlier_evaluations_do_not_count(subject: Subject) -> None:
    """The numbers are those of the episodes alone, whatever was evaluated before: runs are resumed anywhere."""
    used = subject.make()
    for episodes in _cases() + _cases():
        _assert_same(used(episodes), subject.make()(episodes), f"asked again {_where(episodes)}")


def check_the_order_does_not_count(subject: Subject) -> None:
    """Prompts and the samples of a prompt may come in any order."""
    episodes = _episodes(5, 4)
    expected = subject.make()(episodes)
    backwards = _chosen(episodes, list(range(len(episodes.responses)))[::-1])
    _assert_same(subject.make()(backwards), expected, "in reverse")
    turned = [start + (one + 1) % 4 for start in range(0, 20, 4) for one in range(4)]
    _assert_same(subject.make()(_chosen(episodes, turned)), expected, "with samples in turn")


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """The episodes are not changed in place: other metrics read them next."""
    for episodes in _cases():
        arrays = (episodes.prompt, episodes.reward, episodes.passed, episodes.num_actions)
        before = [array.copy() for array in arrays]
        subject.make()(episodes)
        for first, second in zip(before, arrays, strict=True):
            assert np.array_equal(first, second), f"{second[:5]} after, {first[:5]} before"


CHECKS = checks_in(__name__)
