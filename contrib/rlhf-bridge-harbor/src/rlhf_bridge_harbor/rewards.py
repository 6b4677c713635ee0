"""The numbers that a verifier wrote: ``reward.txt``, else ``reward.json``."""

from __future__ import annotations

import math
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.outside.json_reader import BrokenJson, parse_json

MAX_BYTES = 2**20
_MAX_REWARD = 1e30


def plain_reward(raw: bytes) -> dict[str, float]:
    """Return the number in ``reward.txt``.

    Raises:
        RolloutError: it has none, or more.
    """
    try:
        return {"reward": _finite(float(_limited(raw).decode().strip()), "reward.txt")}
    except ValueError as error:
        raise RolloutError(
            f"wrote {raw[:200]!r} into reward.txt; expected a finite number",
            code="environment/no-reward",
        ) from error


def named_rewards(raw: bytes) -> dict[str, float]:
    """Return the numbers in ``reward.json``.

    Raises:
        RolloutError: it is no object of finite numbers, or an empty one.
    """
    try:
        found: Any = parse_json(_limited(raw))
    except BrokenJson as error:
        raise RolloutError(
            f"wrote {raw[:200]!r} into reward.json; expected an object of numbers",
            code="environment/no-reward",
        ) from error
    if not isinstance(found, dict) or not found:
        raise RolloutError(
            f"wrote {raw[:200]!r} into reward.json; expected an object of numbers",
            code="environment/no-reward",
        )
    return {str(name): _finite(value, "reward.json") for name, value in found.items()}


def chosen_reward(rewards: dict[str, float], key: str) -> float:
    """Return the number that is the reward: that of ``key``, the only one, or the one named reward.

    Raises:
        RolloutError: there are several, and none of them is told to be it.
    """
    if key in rewards:
        return rewards[key]
    if not key and len(rewards) == 1:
        return next(iter(rewards.values()))
    if not key and "reward" in rewards:
        return rewards["reward"]
    raise RolloutError(
        f"wrote the rewards {', '.join(sorted(rewards))}; expected one named {key or 'reward'}, or the "
        "option reward_key",
        code="environment/no-reward",
    )


def _limited(raw: bytes) -> bytes:
    if len(raw) > MAX_BYTES:
        raise RolloutError(
            f"wrote a reward of more than {MAX_BYTES // 2**20} MiB", code="environment/no-reward"
        )
    return raw


def _finite(value: object, file: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= _MAX_REWARD
    ):
        raise RolloutError(
            f"wrote {value!r:.200} into {file}; expected finite numbers",
            code="environment/no-reward",
        )
    assert math.isfinite(value)
    return float(value)
