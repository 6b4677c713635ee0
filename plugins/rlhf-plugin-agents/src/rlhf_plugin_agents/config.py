"""Options of executors and environments. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core import Config


class MultiTurnConfig(Config):
    """Options of ``multi_turn``."""

    max_turns: int = Field(
        8, ge=1, le=10_000, description="number of the policy's turns after which an episode ends"
    )
    max_episode_tokens: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="largest number of tokens that the policy may write in all turns of an episode; none: no limit",
    )
    end_at_cut_turn: bool = Field(
        False,
        description="end an episode at a turn that was cut off at rollout.max_new_tokens; false: the environment "
        "answers it",
    )
    history: Literal["as_sampled", "as_template"] = Field(
        "as_sampled",
        description="how the policy reads earlier turns of a chat: as they were sampled, or as the template renders "
        "them (for example without thoughts), which forks the episode",
    )
    last_images: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="number of images that a turn shows, the last ones of the episode; leaving one out forks the "
        "episode, so that the turn is a row of its own; unset: all",
    )
    older_image: str = Field(
        "[earlier image]",
        max_length=1000,
        description="text in place of each older image that last_images leaves out",
    )
    environment_timeout_s: float = Field(
        300.0,
        gt=0.0,
        description="seconds for each call of an environment; a longer call fails, see on_error",
    )
    turn_timeout_s: float | None = Field(
        None,
        gt=0.0,
        description="seconds for each turn, the policy's answer and the environment's together, after which the "
        "episode ends; unset: no limit",
    )
    episode_timeout_s: float | None = Field(
        None,
        gt=0.0,
        description="seconds for a whole episode, after which it ends; unset: no limit",
    )
    on_error: Literal["fail", "drop", "value"] = Field(
        "fail",
        description="what happens if an environment fails: fail ends the run, drop leaves out the episode, value "
        "ends it with error_reward",
    )
    error_reward: float = Field(
        0.0,
        ge=-1e6,
        le=1e6,
        description="number that on_error = value adds to the reward of the last turn before the failure",
    )

    def without_effect(self) -> Mapping[str, str]:
        if self.on_error == "value":
            return {}
        return {"error_reward": f"on_error is {self.on_error}. Set on_error value."}

    @model_validator(mode="after")
    def _older_images_have_a_window(self) -> Self:
        # The configuration that a run writes down has every option.
        is_set = self.older_image != type(self).model_fields["older_image"].default
        if is_set and self.last_images is None:
            raise ValueError("older_image: expected last_images beside it; all images are shown")
        return self


class EchoAfterHintConfig(Config):
    """Options of ``echo_after_hint``."""

    num_digits: int = Field(
        4, ge=2, le=10, description="number of possible hints, the digits from 0 to num_digits - 1"
    )
    offset: int = Field(
        0, ge=0, le=9, description="number that is added to the hint, modulo num_digits"
    )
    wrong_digit_reward: float = Field(
        0.1, ge=0.0, lt=1.0, description="reward of a wrong digit, which eases the start"
    )


class EchoDigitsConfig(Config):
    """Options of ``echo_digits``."""

    num_digits: int = Field(
        4, ge=2, le=10, description="number of possible digits, from 0 to num_digits - 1"
    )
    num_turns: int = Field(
        4, ge=1, le=1000, description="number of digits to echo, one in each turn"
    )
    credit: Literal["turn", "end"] = Field(
        "turn",
        description="turn: each turn gets its own reward; end: the last turn gets the rewards of all turns",
    )
