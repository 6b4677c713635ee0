"""Results of an environment: rewards are numbers in the stated range, and text is what a tokenizer can carry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real

from rlhf_core.batch.task import Task
from rlhf_core.contracts.environment import Environment, Observation, RewardsEpisodes, StepResult
from rlhf_core.media import MediaLoader, MediaOptions, MediaProblem
from rlhf_core.media.parts import plain_messages

from ..subject import Subject, traits
from .material import (
    FEW_TASKS,
    environment_of,
    guesses,
    knows_answers,
    manifest_for,
    seed_for,
    tasks_of,
)
from .playing import (
    CheckedEpisode,
    Situation,
    Wrote,
    action_of,
    always,
    named,
    played,
    right,
    run,
    shown,
    text_of,
)

MAX_REWARD = 1e35
"""Largest reward of a turn: rewards are kept in float32, and added up."""
MAX_CHARACTERS = 1_000_000
"""Largest number of characters of an observation."""
_TURNS = 20


def check_results_are_well_formed(subject: Subject) -> None:
    """Rewards and metrics are finite numbers, observations are text of a sane length with images that can be used, and
    tools come with the messages of the first one."""
    for what, player, number in _tries(subject):
        with named(what):
            task = tasks_of(subject, FEW_TASKS)[number]
            run(_looked_through(environment_of(subject), task, seed_for(task), player))


def check_observations_are_new(subject: Subject) -> None:
    """An observation has only what the policy has not read: neither the conversation so far nor its own answer, as the
    assistant's message."""
    for what, player, number in _tries(subject):
        with named(what):
            task = tasks_of(subject, FEW_TASKS)[number]
            run(_told_once(environment_of(subject), task, seed_for(task), player))


async def _told_once(environment: Environment, task: Task, seed: int, player: Wrote) -> None:
    try:
        first = await environment.reset(task, seed)
        situation = Situation(environment=environment, task=task, read=[text_of(first)])
        for turn in range(_TURNS):
            situation.turn = turn
            written = await player(situation)
            result = await environment.step(action_of(written, turn))
            observation = result.observation
            if result.done:
                break
            text, told = text_of(observation), situation.read[-1]
            begin = plain_messages(first.messages)
            # A short answer may well be what the environment goes on with.
            again = len(str(written)) >= 4 and text.startswith(f"{told}{written}")
            if begin and len(observation.messages) > len(begin):
                again = plain_messages(observation.messages)[: len(begin)] == begin
            again = again or "assistant" in map(_role, observation.messages)
            assert not again, (
                f"the observation after turn {turn} has what the policy read or wrote before: {shown(text, 200)}. "
                "Give what is new alone: the run keeps the conversation"
            )
            situation.read.append(text)
    finally:
        await environment.close()


def _role(message: Mapping[str, object]) -> object:
    return message.get("role")


def states_a_range(subject: Subject) -> bool:
    """Return whether the manifest states a range of rewards."""
    manifest = manifest_for(subject)
    return manifest is not None and manifest.reward_range is not None


@traits(states_a_range)
def check_rewards_stay_in_the_range(subject: Subject) -> None:
    """No episode earns less or more than the manifest says."""
    manifest = manifest_for(subject)
    assert manifest is not None
    assert manifest.reward_range is not None
    low, high = manifest.reward_range
    slack = 1e-6 * (high - low)
    for what, player, number in _tries(subject):
        task = tasks_of(subject, FEW_TASKS)[number]
        episode: CheckedEpisode = run(played(environment_of(subject), task, seed_for(task), player))
        outside = episode.reward < low - slack or episode.reward > high + slack
        assert not outside, (
            f"{what}: an episode earns {episode.reward:g}; the manifest says {low:g} to {high:g}"
        )


def _tries(subject: Subject) -> Iterator[tuple[str, Wrote, int]]:
    """Yield words, a player and the index of a task."""
    tasks = tasks_of(subject, FEW_TASKS)
    for number, task in enumerate(tasks):
        yield f"random letters, task {number}", guesses(task), number
        yield f"no letters, task {number}", always(""), number
        yield f"numbers, task {number}", always(*map(str, range(_TURNS))), number
        if knows_answers(subject):
            yield f"right answers, task {number}", right, number


async def _looked_through(environment: Environment, task: Task, seed: int, player: Wrote) -> None:
    try:
        first = await environment.reset(task, seed)
        assert isinstance(first, Observation), f"reset returned {shown(first)}"
        _assert_readable(first)
        assert first.messages or not first.tools, "tools come with messages; the first one has none"
        situation = Situation(environment=environment, task=task, read=[text_of(first)])
        for turn in range(_TURNS):
            situation.turn = turn
            result = await environment.step(action_of(await player(situation), turn))
            _assert_sound(result)
            tools = result.observation.tools
            assert not tools or tools == first.tools, (
                f"other tools in the observation after turn {turn}, which are not read: {shown(tools)}. Put all tools "
                "into the observation of reset"
            )
            situation.read.append(text_of(result.observation))
            if result.done:
                break
        if isinstance(environment, RewardsEpisodes):
            _assert_numbers("episode_rewards", await environment.episode_rewards())
    finally:
        await environment.close()


def _assert_sound(result: object) -> None:
    assert isinstance(result, StepResult), f"step returned {shown(result)}; expected a StepResult"
    assert isinstance(result.observation, Observation), (
        f"observation is {shown(result.observation)}; expected an Observation, Observation() at the end of an episode"
    )
    assert isinstance(result.done, bool), f"done is {shown(result.done)}; expected True or False"
    _assert_numbers("reward", {"reward": result.reward, **result.rewards})
    _assert_numbers("metric", result.metrics)
    _assert_readable(result.observation)


def _assert_numbers(what: str, numbers: object) -> None:
    assert isinstance(numbers, Mapping), f"{what}: {shown(numbers)}; expected numbers by name"
    for name, number in numbers.items():
        assert isinstance(name, str), f"{what}: the name {shown(name)}; expected text"
        value = number.item() if getattr(number, "ndim", None) == 0 else number
        assert isinstance(value, Real), f"{what} {name} is {shown(number)}; expected a number"
        size = abs(float(value))
        assert math.isfinite(size), f"{what} {name} is {value}; expected a finite number"
        assert size <= MAX_REWARD, f"{what} {name} is {value}; at most {MAX_REWARD:g}"


def _assert_readable(observation: Observation) -> None:
    text = text_of(observation)
    assert isinstance(text, str), f"the observation's text is {shown(text)}"
    assert len(text) <= MAX_CHARACTERS, (
        f"an observation has {len(text)} characters; at most {MAX_CHARACTERS}"
    )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise AssertionError(
            f"an observation has half of a surrogate pair at character {error.start}: {shown(text)}"
        ) from error
    for message in observation.messages:
        assert isinstance(message, Mapping), f"a message is {shown(message)}"
        assert message.get("role"), f"a message has no role: {shown(message)}"
    try:
        MediaLoader(MediaOptions()).messages(observation.messages)
    except MediaProblem as problem:
        raise AssertionError(f"an image of an observation cannot be used: {problem}") from problem
