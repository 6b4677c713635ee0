"""A run's configuration after validation: the core's options, and the selected components with theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, model_validator

from rlhf_core.capabilities import ENGINE_READS_FRAMES, EXECUTOR_READS_FRAMES, FIX
from rlhf_core.component import ComponentRef, Config, Registered
from rlhf_core.contracts.backend import Aggregation
from rlhf_core.errors import wrong_answer

from .common import CommandOptions, RunOptions
from .isolation import IsolationOptions
from .run import RunConfig

_READING_FRAMES = {
    "engine.name": ENGINE_READS_FRAMES,
    "rollout.executor": EXECUTOR_READS_FRAMES,
}
"""Selector -> the word by which its component takes frames of videos."""
OptionsT = TypeVar("OptionsT", bound=CommandOptions)
RunT = TypeVar("RunT", bound=RunOptions)


class RewardOptions(Config):
    """Options that every reward has beside its own, in the same section."""

    weight: float = Field(1.0, description="factor of this reward in the sum of all rewards")
    timeout_s: float = Field(
        60.0,
        gt=0.0,
        description="seconds for one batch of samples, of which a quarter is kept for scoring them one by one",
    )
    start_timeout_s: float | None = Field(
        None,
        gt=0.0,
        description="seconds for the reward's process to start and load what it needs; unset: 120, or timeout_s if "
        "that is longer",
    )
    on_error: Literal["fail", "drop", "value"] = Field(
        "fail",
        description="what happens to a sample that cannot be scored: fail ends the run, drop leaves out its whole "
        "group, value gives it error_value",
    )
    error_value: float = Field(
        0.0, description="score of a sample that cannot be scored, with on_error = value"
    )
    isolate: bool = Field(
        True,
        description="run the reward in a process of its own, which can be killed when it hangs; false: in the run's "
        "process, which is faster",
    )
    pass_env: tuple[str, ...] = Field(
        (),
        description="names of environment variables, such as a judge's key, that the reward's process gets beside "
        "the usual ones (docs/security.md); needs isolate",
    )

    def without_effect(self) -> Mapping[str, str]:
        """The score of errors that are not scored, and the start of a process that there is not."""
        idle = {} if self.isolate else {"start_timeout_s": "isolate is false. Leave it out."}
        if self.on_error != "value":
            idle["error_value"] = "errors are not scored. Set on_error value."
        return idle

    @model_validator(mode="after")
    def _names_variables_of_a_process(self) -> Self:
        if self.pass_env and not self.isolate:
            raise ValueError(
                f"pass_env = {list(self.pass_env)} with isolate = false: expected isolate = true; in the run's own "
                "process the reward reads all variables"
            )
        return self


class EnvironmentOptions(IsolationOptions):
    """Options that every environment has beside its own, in the same section: its share, and where it runs."""

    share: float | None = Field(
        None,
        gt=0.0,
        description="share of the run's tasks, in proportion to those of other environments; unset: an equal part of "
        "what their shares leave of 1",
    )


class PreferenceTermOptions(Config):
    """Options that every further preference loss has beside its own, in the same section."""

    weight: float = Field(1.0, gt=0.0, description="factor of this loss in the sum")


class TermOptions(PreferenceTermOptions):
    """Options that every further loss has beside its own, in the same section."""

    aggregation: Literal["auto", Aggregation] = Field(
        "auto",
        description="how the token losses of this term become one number, as algo.loss.aggregation does for the "
        "policy loss",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One chosen component and its validated options."""

    slot: str
    """Path of the selector, such as ``actor.optim``."""
    section: str
    """Path of the section with its options, such as ``actor.adam``."""
    registered: Registered[Any]
    options: Config
    reward: RewardOptions | None = None
    """The core's options for every reward; None for other components."""
    term: PreferenceTermOptions | None = None
    """The core's options for every further loss; None for other components."""
    environment: EnvironmentOptions | None = None
    """The core's options for every environment; None for other components."""

    @property
    def name(self) -> str:
        """The component's name in this run: the last word of its section."""
        return self.section.rpartition(".")[2]

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities that the component or its options need."""
        return self.registered.component.needs | self.options.needed_by_options()

    @property
    def columns(self) -> Mapping[str, str | None]:
        """Columns of rows that the component needs, each with its own option that names it, as
        ``Config.columns_needed`` has them."""
        columns = self.options.columns_needed()
        if not isinstance(columns, Mapping):
            wanted = "columns and the option that names each, without its section, or None: {'answer': None}"
            raise wrong_answer(f"{self.label}: columns_needed()", columns, wanted)
        return columns

    @property
    def label(self) -> str:
        """Option, component, distribution and version, for messages."""
        return f"--{self.slot} {self.registered.name} ({self.registered.origin})"

    def build(self) -> Any:
        """Make the component with its options; see ``Registered.build``."""
        return self.registered.build(self.options)

    def ref(self, hook: str) -> ComponentRef:
        """Return the selection as it crosses process boundaries; ``hook`` is that of its kind."""
        return ComponentRef(
            kind=hook, name=self.registered.qualified, options=self.options.model_dump(mode="json")
        )


Selections = Mapping[str, tuple[Selection, ...]]
"""Selector -> the components that it picked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptions(Generic[OptionsT]):
    """A validated configuration: everything that a run is started with."""

    run: OptionsT
    selections: Selections
    """By slot path; empty for an optional selector that is not set, several for list selectors."""
    tree: Mapping[str, Any]
    """The whole configuration as nested plain values, component sections included: what ``config.toml`` records."""
    unused: tuple[str, ...] = field(default=())
    """Sections in files that belong to components which this run does not use."""
    command: str = "train"
    """Name of the command whose options these are."""
    cautions: tuple[str, ...] = field(default=())
    """Warnings about options that are allowed and probably not meant; the run logs them once, at its start."""
    choices: tuple[str, ...] = field(default=())
    """Lines that say which component a selector's ``auto`` has come to, and why."""

    inputs: tuple[tuple[str, str], ...] = field(default=())
    """Options that name models and data, each with a name."""

    def provides(self, slot: str, word: str) -> bool:
        """Return whether a component that is chosen at a selector path provides a capability."""
        chosen = self.selections.get(slot, ())
        return any(word in selection.registered.component.provides for selection in chosen)

    @property
    def no_videos(self) -> str | None:
        """Why engine or executor read no frames of videos, and the way out; None: they do, or there are none."""
        for slot, word in _READING_FRAMES.items():
            if self.selections.get(slot) and not self.provides(slot, word):
                return FIX[word]
        return None

    def one(self, slot: str) -> Selection:
        """Return the component of a selector that is always set."""
        (selection,) = self.selections[slot]
        return selection

    def optional(self, slot: str) -> Selection | None:
        """Return the component of a selector, or None when it is not set."""
        chosen = self.selections.get(slot, ())
        return chosen[0] if chosen else None


Resolved: TypeAlias = ResolvedOptions[RunConfig]
"""A validated configuration of ``rlhf train``."""
