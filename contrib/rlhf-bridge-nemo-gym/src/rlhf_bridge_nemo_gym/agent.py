"""Environments that live in an agent server of NeMo Gym (``/run``), as agents of the executor ``endpoint``.

    from rlhf_bridge_nemo_gym.agent import nemo_gym_agent

    agent = nemo_gym_agent("http://127.0.0.1:11001", relay_port=11000)

An agent server asks one model server, whose address it was given at its start. Here that is the relay at
``relay_port``, which hands each request on to the episode that it belongs to. The episode's name travels with the row
as ``_ng_rollout_id``, which NeMo Gym puts into the path of requests, and in the ``metadata`` of the request.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rlhf_core import RolloutError

from .client import GymClient
from .relay import EPISODE_FIELD, relay_at


def nemo_gym_agent(
    url: str,
    *,
    relay_port: int,
    label: str = "",
    answer_s: float = 3600.0,
    max_answer_mib: float = 64.0,
) -> Callable[[Any], Awaitable[Mapping[str, Any]]]:
    """Return an agent that has an agent server play the task's row, which stands in its column ``gym``.

    Args:
        url: the agent server.
        relay_port: port at 127.0.0.1 at which the agent server finds its model: ``http://127.0.0.1:PORT/v1``.
        label: name and version of the environment, for messages.
        answer_s: seconds for a whole episode.
        max_answer_mib: largest answer of the server; it has the whole conversation.
    """

    async def agent(context: Any) -> Mapping[str, Any]:
        row = context.row.get("gym")
        if not isinstance(row, dict) or not isinstance(row.get("responses_create_params"), dict):
            raise RolloutError(
                "the task has no row of NeMo Gym in its column gym; expected rows that python -m "
                "rlhf_bridge_nemo_gym.rows wrote",
                code="environment/no-task",
            )
        relay = await relay_at(relay_port)
        client = GymClient(url, label, answer_s=answer_s, max_bytes=int(max_answer_mib * 2**20))
        try:
            with relay.episode(context.base_url, context.api_key, context.model) as name:
                answer = (await client.post("/run", _named(row, name))).fields("/run")
            return _outcome(answer)
        except RolloutError as error:
            raise error.with_text(f"{client.label}: {error}") from error
        finally:
            await client.close()

    return agent


def _named(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a row from which the requests of its episode can be told."""
    params = row["responses_create_params"]
    metadata = {**(params.get("metadata") or {}), EPISODE_FIELD: name}
    return {
        **row,
        "responses_create_params": {**params, "metadata": metadata},
        "_ng_rollout_id": name,
    }


def _outcome(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    reward = answer.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise RolloutError(
            f"gave the reward {reward!r:.200}; expected a finite number",
            code="environment/no-reward",
        )
    metrics = {
        f"nemo_gym/{name}": float(answer[name])
        for name in ("terminated", "truncated")
        if isinstance(answer.get(name), bool)
    }
    return {"reward": float(reward), "metrics": metrics}
