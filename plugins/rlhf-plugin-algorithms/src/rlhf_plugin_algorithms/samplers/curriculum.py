"""Prompt sampler that draws prompts which the policy solves now and then: those it learns from.

A prompt whose samples all pass, or all fail, gives no signal where samples are compared. Of the others a run sees more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from pydantic import Field, model_validator

from rlhf_core import Component, Config, ConfigError
from rlhf_core.capabilities import OWN_ORDER, RETURNING_PROMPTS
from rlhf_core.contracts import DrawRequest, PromptResult, PromptSet
from rlhf_core.lazy import NDArray, np


class CurriculumConfig(Config):
    low: float = Field(
        0.1,
        ge=0.0,
        le=1.0,
        description="smallest pass rate, from 0 to 1, of prompts that are drawn often; those below it are too hard "
        "for now",
    )
    high: float = Field(
        0.9,
        ge=0.0,
        le=1.0,
        description="largest pass rate, from 0 to 1, of prompts that are drawn often; those above it are solved",
    )
    uniform: float = Field(
        0.2,
        gt=0.0,
        le=1.0,
        description="share of draws, from 0 to 1, that are from all prompts alike, so that pass rates are measured "
        "again",
    )
    memory: float = Field(
        0.5,
        ge=0.0,
        lt=1.0,
        description="weight of a prompt's earlier pass rate when a new one comes; 0: only the last draw counts",
    )
    pass_threshold: float = Field(1.0, description="a sample passes if its reward is at least this")

    def without_effect(self) -> Mapping[str, str]:
        names = ("low", "high", "memory", "pass_threshold") if self.uniform == 1 else ()
        return dict.fromkeys(names, "uniform is 1, so no pass rate counts. Set uniform below 1.")

    @model_validator(mode="after")
    def _ordered(self) -> CurriculumConfig:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}; expected at most high = {self.high}")
        return self


class Curriculum:
    """Prompt sampler that prefers prompts whose pass rate is within bounds, or not known yet.

    ``rate' = memory * rate + (1 - memory) * share of the samples that passed``, and the first share as it is. With
    ``uniform = 1`` the rates do not count. Where no prompt is within the bounds, all draws are from all prompts.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self.config = config
        self._rates: dict[int, float] = {}

    def begin(self, prompts: PromptSet) -> None:
        """Take the prompts.

        Raises:
            ConfigError: they do not come again.
        """
        if not prompts.returning:
            raise ConfigError(
                "--data.sampler curriculum: expected prompts that come again, whose pass rates say something; tasks "
                "of this run have no end. Give rows with --data.train; of an environment's tasks, --data.max_samples "
                "1000 uses the first ones.",
                code="data/endless-tasks",
            )
        self._prompts = prompts

    def draw(self, request: DrawRequest) -> list[int]:
        """Return prompts, none twice before all were drawn; those in flight wait until nothing else is left."""
        generator, indices = self._prompts.generator(request.taken), self._prompts.indices
        # An epoch of a mix has some of the prompts, in the shares of its sets.
        if len(self._prompts) < len(indices):
            indices = np.sort(self._prompts.order(request.taken // len(self._prompts)))
        drawn: list[int] = []
        while len(drawn) < request.count:
            count = min(request.count - len(drawn), len(indices))
            drawn += self._different(count, indices, request.in_flight, generator)
        return drawn

    def note(self, results: Sequence[PromptResult]) -> None:
        """Take over pass rates; those of one prompt in the order in which it was drawn."""
        for result in sorted(results, key=lambda one: one.epoch):
            passed = [reward >= self.config.pass_threshold for reward in result.rewards]
            rate = sum(passed) / len(passed)
            before = self._rates.get(result.index, rate)
            self._rates[result.index] = rate + self.config.memory * (before - rate)

    def state_dict(self) -> dict[str, Any]:
        return {"rates": {str(index): rate for index, rate in self._rates.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates = {int(index): float(rate) for index, rate in state["rates"].items()}

    def _different(
        self,
        count: int,
        indices: NDArray[np.int64],
        in_flight: Collection[int],
        generator: np.random.Generator,
    ) -> list[int]:
        """Return ``count`` different prompts of ``indices``, at most as many as there are."""
        everything = generator.permutation(indices)  # (P,)
        late = np.isin(everything, list(in_flight))
        everything = np.concatenate([everything[~late], everything[late]])
        wanted = generator.permutation(self._wanted(indices, in_flight))
        # Each line has all prompts, so neither runs out before all were drawn.
        lines = {
            True: iter(everything.tolist()),
            False: chain(wanted.tolist(), everything.tolist()),
        }
        drawn: dict[int, None] = {}
        for of_all in generator.random(count) < self.config.uniform:
            drawn[next(index for index in lines[bool(of_all)] if index not in drawn)] = None
        return list(drawn)

    def _wanted(self, indices: NDArray[np.int64], in_flight: Collection[int]) -> NDArray[np.int64]:
        low, high = self.config.low, self.config.high
        others = [index for index, rate in self._rates.items() if not low <= rate <= high]
        return indices[~np.isin(indices, [*others, *in_flight])]


COMPONENT = Component(
    name="curriculum",
    factory=Curriculum,
    config=CurriculumConfig,
    summary="draws prompts more often that are solved only some of the time",
    needs=frozenset({RETURNING_PROMPTS}),
    provides=frozenset({OWN_ORDER}),
)
