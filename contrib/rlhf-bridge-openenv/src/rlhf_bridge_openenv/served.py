"""Description of a server's environment: name, version, the schema of actions, tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlhf_core import RolloutError

from .address import Address
from .http import Limits, Reply, request
from .naming import named

BodyT = TypeVar("BodyT")
_UNKNOWN = (404, 405, 501)
"""Answers of a server that has no such route, or of an environment without tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server's environment."""

    name: str
    """Name in the paths of tasks; empty: the server lists none."""
    label: str
    """Words for messages: name, version and address."""
    action_schema: Mapping[str, Any]


def served_by(address: Address, limits: Limits) -> Served:
    """Return what a server says. It blocks.

    Raises:
        RolloutError: it cannot be reached, or says nonsense.
    """
    label = f"the OpenEnv server {address}"
    with named(label):
        about = _object_at(address, "/metadata", limits)
        schema = _object_at(address, "/schema", limits).get("action")
        if not isinstance(schema, dict):
            raise RolloutError(
                "answered GET /schema without an object action", code="environment/wrong-answer"
            )
        listed = request(address, "GET", "/list_environments", limits).body
        name = listed[0] if isinstance(listed, list) and listed else ""
        said = f"{about.get('name')!s:.100} {about.get('version') or '(no version)'!s:.50}"
        return Served(
            name=name if isinstance(name, str) else "",
            label=f"OpenEnv environment {said} at {address}",
            action_schema=schema,
        )


class ServedTasks(Sequence[Mapping[str, Any]]):
    """Tasks of a split of a server. Each is asked for when it is needed, which blocks.

    Raises:
        KeyError: there is no such split.
        RolloutError: the server does not say how many tasks there are.
    """

    def __init__(self, address: Address, served: Served, split: str, limits: Limits) -> None:
        self._address, self._served, self._limits = address, served, limits
        self._split = split
        with named(served.label):
            count = self._asked("num_tasks", {"split": split}, "num_tasks")
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise RolloutError(
                    f"has {count!r:.100} tasks in {split!r}; expected a number",
                    code="environment/wrong-answer",
                )
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        with named(self._served.label):
            task = self._asked("task", {"split": self._split, "index": index}, "task")
        return {
            "key": f"{self._split}-{index}",
            "task": task,
            "reset": {"split": self._split, "index": index},
        }

    def _asked(self, route: str, body: Mapping[str, Any], field: str) -> Any:
        path = f"/{self._served.name}/{route}"
        reply = request(self._address, "POST", path, self._limits, body)
        answer = _body_of(reply, f"POST {path}", dict)
        if field not in answer:
            raise RolloutError(
                f"answered POST {path} with {answer!r:.200}; expected an object with {field}",
                code="environment/wrong-answer",
            )
        return answer[field]


def split_names(address: Address, served: Served, limits: Limits) -> dict[str, str] | None:
    """Return the server's splits with the type of each; None: its environment has no tasks. It blocks.

    Raises:
        RolloutError: the server says nonsense.
    """
    if not served.name:
        return None
    path = f"/{served.name}/splits"
    with named(served.label):
        reply = request(address, "GET", path, limits)
        if reply.status in _UNKNOWN:
            return None
        splits = _body_of(reply, f"GET {path}", list)
        return {
            str(one.get("name")): str(one.get("type")) for one in splits if isinstance(one, dict)
        }


def _object_at(address: Address, path: str, limits: Limits) -> dict[str, Any]:
    return _body_of(request(address, "GET", path, limits), f"GET {path}", dict)


def _body_of(reply: Reply, what: str, kind: type[BodyT]) -> BodyT:
    if reply.status != 200:
        raise RolloutError(
            f"answered {what} with status {reply.status}; expected 200", code="environment/status"
        )
    if not isinstance(reply.body, kind):
        raise RolloutError(
            f"answered {what} with {reply.body!r:.200}; expected "
            f"{'an object' if kind is dict else 'a list'}",
            code="environment/wrong-answer",
        )
    return reply.body
