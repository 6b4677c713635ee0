"""Messages of the wire, and what an episode sends in them: tasks, actions, observations and results as plain values.

A request is ``{"op", "id", ...}``; its answer is ``{"id", "ok": {...}}``, or ``{"id", "problem": {"kind", "text",
"where", "code"}}``. Answers come in any order. The first request is ``hello`` with the version of the protocol.
docs/isolation.md has a table of all of them.

Both sides check what arrives: code of users runs on one of them, and can write anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.batch.task import Task, Uid
from rlhf_core.batch.trajectory import Stop
from rlhf_core.contracts.environment import Action, Observation, StepResult, ToolCall, TurnSampling
from rlhf_core.media.parts import plain_messages
from rlhf_core.media.reference import MediaRef
from rlhf_core.problem import Problem, ProblemKind

PROTOCOL = 1
"""Version of the protocol. It grows when one side could misunderstand the other."""

Plain = dict[str, Any]


class MessageError(ValueError):
    """A message that is not of the protocol's form."""


class WrongReturn(Exception):
    """An environment returned something that it must not; the text is a predicate: "returned None; expected ..."."""


def task_fields(task: Task) -> Plain:
    """Return a task as plain values; ``task_of`` inverts it."""
    return {
        "uid": str(task.uid),
        "prompt_ids": list(task.prompt_ids),
        "messages": plain_messages(task.messages),
        "row": dict(task.row),
        "dataset": task.dataset,
        "environment": task.environment,
        "media": [image.fields() for image in task.media],
    }


def task_of(fields: Mapping[str, Any]) -> Task:
    """Return the task that ``task_fields`` wrote."""
    return Task(
        uid=Uid.parse(fields["uid"]),
        prompt_ids=tuple(fields["prompt_ids"]),
        messages=tuple(fields["messages"]),
        row=fields["row"],
        dataset=fields["dataset"],
        environment=fields["environment"],
        media=tuple(map(MediaRef.of, fields["media"])),
    )


def action_fields(action: Action) -> Plain:
    """Return an action as plain values; ``action_of`` inverts it."""
    return {
        "text": action.text,
        "token_ids": list(action.token_ids),
        "stop": action.stop,
        "turn": action.turn,
        "reasoning": action.reasoning,
        "content": action.content,
        "tool_calls": [[call.name, call.arguments, call.id] for call in action.tool_calls],
        "malformed": list(action.malformed),
    }


def action_of(fields: Mapping[str, Any]) -> Action:
    """Return the action that ``action_fields`` wrote."""
    return Action(
        text=fields["text"],
        token_ids=tuple(fields["token_ids"]),
        stop=Stop(fields["stop"]),
        turn=fields["turn"],
        reasoning=fields["reasoning"],
        content=fields["content"],
        tool_calls=tuple(
            ToolCall(name=name, arguments=arguments, id=label)
            for name, arguments, label in fields["tool_calls"]
        ),
        malformed=tuple(fields["malformed"]),
    )


def observation_fields(observation: Observation) -> Plain:
    """Return an observation as plain values, of which most are left out; ``observation_of`` inverts it."""
    fields: Plain = {}
    if observation.text is not None:
        fields["text"] = observation.text
    if observation.messages:
        fields["messages"] = plain_messages(observation.messages)
    if observation.token_ids is not None:
        fields["token_ids"] = list(observation.token_ids)
    if observation.tools:
        fields["tools"] = [dict(tool) for tool in observation.tools]
    if (wishes := observation.sampling) is not None:
        stop = None if wishes.stop is None else list(wishes.stop)
        fields["sampling"] = {"max_new_tokens": wishes.max_new_tokens, "stop": stop}
    return fields


def observation_of(fields: Any) -> Observation:
    """Return the observation that ``observation_fields`` wrote.

    Raises:
        MessageError: the fields are none of an observation.
    """
    _check(fields, dict, "an observation")
    token_ids = fields.get("token_ids")
    if token_ids is not None:
        token_ids = tuple(_each(token_ids, int, "token_ids"))
    try:
        return Observation(
            text=_optional(fields, "text", str),
            messages=tuple(_each(fields.get("messages", []), dict, "messages")),
            token_ids=token_ids,
            tools=tuple(_each(fields.get("tools", []), dict, "tools")),
            sampling=_sampling_of(fields.get("sampling")),
        )
    except ValueError as error:
        raise MessageError(str(error)) from error


def _sampling_of(fields: Any) -> TurnSampling | None:
    if fields is None:
        return None
    _check(fields, dict, "sampling")
    stop = fields.get("stop")
    return TurnSampling(
        max_new_tokens=_optional(fields, "max_new_tokens", int),
        stop=None if stop is None else tuple(_each(stop, str, "stop")),
    )


def result_fields(result: StepResult) -> Plain:
    """Return a step's result as plain values; ``result_of`` inverts it."""
    return {
        "observation": observation_fields(result.observation),
        "reward": plain_number(result.reward),
        "rewards": {name: plain_number(value) for name, value in result.rewards.items()},
        "done": bool(result.done),
        "metrics": {name: plain_number(value) for name, value in result.metrics.items()},
    }


def result_of(fields: Any) -> StepResult:
    """Return the result that ``result_fields`` wrote. Its numbers may be NaN or infinite: the executor says no to them.

    Raises:
        MessageError: the fields are none of a result.
    """
    _check(fields, dict, "a result")
    return StepResult(
        observation=observation_of(fields.get("observation")),
        reward=_number(fields.get("reward"), "reward"),
        rewards=numbers_of(fields.get("rewards"), "rewards"),
        done=_check(fields.get("done"), bool, "done"),
        metrics=numbers_of(fields.get("metrics"), "metrics"),
    )


def numbers_of(fields: Any, what: str) -> dict[str, float]:
    """Return numbers by name.

    Raises:
        MessageError: the fields are none.
    """
    _check(fields, dict, what)
    return {name: _number(value, f"{what} {name!r}") for name, value in fields.items()}


def whole(request: Mapping[str, Any], name: str) -> int:
    """Return an integer of a request.

    Raises:
        MessageError: it has none of the name.
    """
    value: int = _check(request.get(name), int, name)
    return value


def plain_number(value: Any) -> Any:
    """Return the number in a scalar of a numeric library, and any other value as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def problem_fields(problem: Problem) -> Plain:
    """Return a problem as plain values; ``reported`` inverts it."""
    return {
        "kind": problem.kind,
        "text": problem.text,
        "where": list(problem.where),
        "code": problem.code,
    }


def reported(fields: Any) -> Problem:
    """Return the problem that ``problem_fields`` wrote.

    Raises:
        MessageError: the fields are none of a problem.
    """
    _check(fields, dict, "a problem")
    try:
        kind = ProblemKind(fields.get("kind"))
    except ValueError as error:
        raise MessageError(f"a problem of kind {fields.get('kind')!r:.60}") from error
    return Problem(
        kind=kind,
        text=_check(fields.get("text"), str, "a problem's text"),
        where=tuple(_each(fields.get("where"), str, "where")),
        code=_optional(fields, "code", str),
    )


def _optional(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    return None if value is None else _check(value, kind, name)


def _each(values: Any, kind: type, what: str) -> list[Any]:
    _check(values, list, what)
    # type() and not isinstance: a boolean is no token.
    if any(type(value) is not kind for value in values):
        raise MessageError(f"{what} that are not each of type {kind.__name__}")
    return list(values)


def _check(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise MessageError(f"{what} of type {type(value).__name__}; expected {kind.__name__}")
    return value


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float, bool):
        raise MessageError(f"{what} = {value!r:.60}; expected a number")
    return value  # type: ignore[no-any-return]
