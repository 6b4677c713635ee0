"""Checks of sample filters (``contracts.SampleFilter``)."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_core.batch.trajectory_columns import TrajectoryColumns

from ..columns import INFO, assert_same_arrays, batch_of, group_of
from ..subject import Subject, checks_in

_REWARDS = (
    (1.0, 0.0, 0.5),
    (1.0, 1.0, 1.0, 1.0),
    (0.0, 0.0),
    (0.1,) * 8,
    (2.0,),
    (-1e6, 1e6),
)


def _groups(*, gap: int = 3) -> Iterator[TrajectoryColumns]:
    return (batch_of(group_of(rewards, gap=gap)) for rewards in _REWARDS)


def _decide(subject: Subject, group: TrajectoryColumns) -> str | None:
    reason: str | None = subject.make().keep(group, INFO)
    return reason


def check_the_answer_is_none_or_a_word(subject: Subject) -> None:
    """None keeps the group; a short word says why it is dropped, since words are counted in the log."""
    for group in _groups():
        reason = _decide(subject, group)
        assert reason is None or isinstance(reason, str), f"{reason!r}, expected None or a word"
        assert reason is None or (0 < len(reason) <= 40 and "\n" not in reason), f"{reason!r}"
        if reason is not None:
            again = {_decide(subject, group) for _ in range(2)}
            assert again == {reason}, f"{reason!r}, then {again}"


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """The group is not changed in place."""
    for group in _groups():
        before = {name: array.copy() for name, array in group.arrays().items()}
        _decide(subject, group)
        assert_same_arrays(before, group)


def check_environment_text_does_not_count(subject: Subject) -> None:
    """The length of the environment's text does not change the answer."""
    for short, long in zip(_groups(gap=1), _groups(gap=9), strict=True):
        first, second = _decide(subject, short), _decide(subject, long)
        assert first == second, f"{first!r} with little environment text, {second!r} with more"


def check_groups_are_judged_alone(subject: Subject) -> None:
    """Groups seen before change no answer: the order of groups is a matter of timing."""
    fresh = [_decide(subject, group) for group in _groups()]
    used = subject.make()
    for _ in range(2):
        answers = [used.keep(group, INFO) for group in _groups()]
        assert answers == fresh, f"{answers} after other groups, {fresh} before"


def check_prompts_do_not_matter(subject: Subject) -> None:
    """The same rewards under another prompt's number get the same answer."""
    for rewards in _REWARDS:
        first, second = (
            _decide(subject, batch_of(group_of(rewards, prompt=prompt))) for prompt in (0, 41)
        )
        assert first == second, f"{first!r} for prompt 0, {second!r} for prompt 41"


CHECKS = checks_in(__name__)
