"""An environment of Gymnasium as a conversation: observations as text, and an action in each answer.

    environment   rules, the observation, the actions
    policy        I think <action>right</action>
    environment   the observation

An environment that renders text (``render_mode="ansi"``) is shown so; of another one, the observation is written out.
Rewards, ends and randomness are the environment's: the episode's seed goes to its ``reset``. An answer without
an action never earns more than playing: it ends the episode with the least that the game can give, or plays an action.
"""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from rlhf_core import ConfigError
from rlhf_core.contracts import Action, Observation, StepResult, Task

from .config import GymnasiumConfig
from .least import least_reward

_MARKED = re.compile(r"<action>\s*([^<>]{1,100}?)\s*</action>", flags=re.IGNORECASE)
_COLOR = re.compile(r"\x1b\[(\d*)m")


class GymnasiumBridge:
    """One episode. The last ``<action>`` of an answer counts; in an answer that is one action, it does.

    Raises:
        ConfigError: Gymnasium has no such environment, its actions are not discrete, or nobody says what an answer
            without an action costs.
    """

    def __init__(self, config: GymnasiumConfig) -> None:
        self._config = config
        self._game = _made(config)
        self._first, self._actions = _actions(self._game, config)
        self._least = least_reward(self._game, config) if config.without_action == "end" else None
        self._noop = _noop(self._actions, config) if self._least is None else None
        self._num_steps = 0
        self._missed = 0
        self._earned = 0.0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin, and return rules, observation and actions."""
        seen, _ = self._game.reset(seed=seed % 2**31)
        listed = ", ".join(self._actions)
        how = f"Answer with one of: {listed}. Write it as <action>{self._actions[0]}</action>."
        return _message("\n".join(filter(None, (self._config.rules, self._shown(seen), how))))

    async def step(self, action: Action) -> StepResult:
        """Take the action of an answer; of one without, do what ``without_action`` says."""
        self._num_steps += 1
        number = self._chosen(action.text if action.content is None else action.content)
        rewards, note = {}, ""
        if number is None:
            self._missed += 1
            rewards["no_action"] = self._config.no_action_reward
            if self._noop is None:
                assert self._least is not None, "without an action to play, the least is known"
                rewards["game"] = self._least - self._earned
                return StepResult(rewards=rewards, done=True, metrics=self._metrics())
            number = self._noop
            note = (
                f"Answer with <action>{self._actions[0]}</action> or another of: {', '.join(self._actions)}. "
                f"{self._actions[number]} was played.\n"
            )
        seen, reward, terminated, truncated, _ = self._game.step(self._first + number)
        self._earned += float(reward)
        last = self._num_steps >= self._config.max_steps
        return StepResult(
            observation=_message(note + self._shown(seen)),
            rewards={**rewards, "game": float(reward)},
            done=bool(terminated or truncated) or last,
            metrics=self._metrics(),
        )

    async def close(self) -> None:
        """Close the environment."""
        self._game.close()

    def _chosen(self, text: str) -> int | None:
        marked = _MARKED.findall(text[-2_000:])
        word = (marked[-1] if marked else text.strip()).lower()
        return next((n for n, known in enumerate(self._actions) if known.lower() == word), None)

    def _shown(self, seen: Any) -> str:
        if self._game.render_mode == "ansi":
            return _COLOR.sub(
                lambda found: "" if found[1] in ("", "0") else "*", str(self._game.render())
            )
        return str(seen)

    def _metrics(self) -> dict[str, float]:
        return {"steps": float(self._num_steps), "without_action": float(self._missed)}


def _made(config: GymnasiumConfig) -> gymnasium.Env[Any, Any]:
    arguments: dict[str, Any] = dict(config.kwargs)
    try:
        modes = gymnasium.spec(config.id).kwargs.get("render_mode"), arguments.get("render_mode")
        if modes == (None, None) and "ansi" in _modes(config.id):
            arguments["render_mode"] = "ansi"
        return gymnasium.make(config.id, **arguments)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"expected an environment of Gymnasium in id, and its arguments in kwargs; {config.id!r} gave "
            f"{type(error).__name__}: {error}",
            code="environment/not-loadable",
        ) from error


def _modes(name: str) -> list[str]:
    """Return the ways in which an environment can be shown."""
    entry = gymnasium.spec(name).entry_point
    made = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    return list(getattr(made, "metadata", {}).get("render_modes", []))


def _actions(game: gymnasium.Env[Any, Any], config: GymnasiumConfig) -> tuple[int, list[str]]:
    """Return the number of the first action, and a word for each."""
    space = game.action_space
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ConfigError(
            f"{config.id}: expected discrete actions, which text can name; got {space}",
            code="environment/actions-not-discrete",
        )
    first, count = int(space.start), int(space.n)
    words = list(config.actions) or [str(number) for number in range(first, first + count)]
    if len({word.lower() for word in words}) != count:
        raise ConfigError(
            f"{config.id} has {count} actions; expected as many different words in actions, got {words}",
            code="environment/number-of-actions",
        )
    return first, words


def _noop(words: list[str], config: GymnasiumConfig) -> int:
    """Return the number of the action that an answer without one plays."""
    found = [n for n, known in enumerate(words) if known.lower() == config.noop.lower()]
    if not found:
        raise ConfigError(
            f"env.gymnasium.noop: expected one of {', '.join(words)}, the actions of {config.id}; got {config.noop!r}",
            code="environment/unknown-action",
        )
    return found[0]


def _message(text: str) -> Observation:
    return Observation(messages=({"role": "user", "content": text},))
