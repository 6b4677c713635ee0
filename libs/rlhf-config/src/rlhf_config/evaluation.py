"""Options of the evaluations of ``rlhf train``: on what, when, and how held-out tasks are answered."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from rlhf_core.contracts.engine import SamplingParams

from .common import HeldOutRows, NotNegative, Positive


class EvalConfig(HeldOutRows):
    environment_split: str | None = Field(
        "eval",
        min_length=1,
        description="split of the environments' own tasks to evaluate on, if eval.data and eval.fraction are unset; "
        "none: they are not evaluated on",
    )
    every: NotNegative = Field(
        0, description="number of steps between evaluations; 0: only at the end"
    )
    at_start: bool = Field(
        True, description="evaluate before the first step too; false: first after eval.every steps"
    )
    n_samples: Positive = Field(
        1, description="number of episodes per prompt; gives pass@k for k = 1, 2, 4, ... up to it"
    )
    temperatures: tuple[float, ...] = Field(
        (0.0,),
        min_length=1,
        description="sampling temperatures, at each of which the run evaluates; 0 is greedy",
    )
    top_p: float | None = Field(
        None, gt=0.0, le=1.0, description="rollout.top_p of evaluations; unset: that of training"
    )
    top_k: NotNegative | None = Field(
        None, description="rollout.top_k of evaluations; unset: that of training"
    )
    min_p: float | None = Field(
        None, ge=0.0, lt=1.0, description="rollout.min_p of evaluations; unset: that of training"
    )
    max_new_tokens: Positive | None = Field(
        None,
        description="largest number of tokens in a turn of the policy in evaluations; unset: rollout.max_new_tokens",
    )
    max_length: Positive | None = Field(
        None,
        description="largest number of tokens of a sequence in evaluations; unset: rollout.max_length, else "
        "max_prompt_tokens + max_new_tokens of evaluations",
    )
    metrics: tuple[str, ...] = Field(
        (),
        description="further metrics of evaluation episodes, each with a section of its own for its options",
    )
    pass_threshold: float = Field(1.0, description="a sample passes if its reward is at least this")

    def sampling(self, training: SamplingParams, temperature: float) -> SamplingParams:
        """Return the parameters of evaluations at a temperature: those of training where no own ones are set."""
        own = {name: getattr(self, name) for name in ("top_p", "top_k", "min_p", "max_new_tokens")}
        changed = {name: value for name, value in own.items() if value is not None}
        return replace(training, temperature=temperature, **changed)
