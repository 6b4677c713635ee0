"""Options of executors and environments. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core import Config


class SingleTurnConfig(Config):
    """Options of ``single_turn``: none, since the options of sampling are in ``rollout``."""


class MultiTurnConfig(Config):
    """Options of ``multi_turn``."""

    max_turns: int = Field(
        8, ge=1, le=10_000, description="number of the policy's turns after which an episode ends"
    )
    max_episode_tokens: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="tokens that the policy may write in all turns of an episode; none: any number",
    )
    end_at_cut_turn: bool = Field(
        False,
        description="end an episode where a turn was cut off at rollout.max_new_tokens; else it is answered",
    )
    history: Literal["as_sampled", "as_template"] = Field(
        "as_sampled",
        description="how a chat's earlier turns are read: as they were sampled, or as the template shows a history "
        "(without thoughts, say), which forks the episode there",
    )
    last_images: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="images that a turn shows, the last ones of the episode; where one moves out, the episode forks, "
        "and the turn is a row of its own; unset: all of them",
    )
    older_image: str = Field(
        "[earlier image]",
        max_length=1000,
        description="last_images: text in the place of each older image",
    )
    environment_timeout_s: float = Field(
        300.0,
        gt=0.0,
        description="seconds for each call of an environment, which fails if it takes longer",
    )
    turn_timeout_s: float | None = Field(
        None,
        gt=0.0,
        description="seconds for each turn, the policy's answer and the environment's, after which the episode ends",
    )
    episode_timeout_s: float | None = Field(
        None, gt=0.0, description="seconds for a whole episode, after which it ends"
    )
    on_error: Literal["fail", "drop", "value"] = Field(
        "fail",
        description="when an environment fails: end the run, leave out the episode, or end it with error_reward",
    )
    error_reward: float = Field(
        0.0,
        ge=-1e6,
        le=1e6,
        description="on_error value: added to the reward of the last turn before the failure",
    )

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
    num_turns: int = Field(4, ge=1, le=1000, description="digits to echo, one a turn")
    credit: Literal["turn", "end"] = Field(
        "turn", description="turn: each turn has its own reward; end: the last turn has them all"
    )
