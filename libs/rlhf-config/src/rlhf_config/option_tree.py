"""The options of one command that chooses components, as data: layers of options are resolved against such a tree.

``train.TRAIN`` is the tree of ``rlhf train``. A plugin's command that trains or generates has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic

from pydantic import BaseModel

from rlhf_core.component import Config
from rlhf_core.plugins import Plugins

from .annotations import model_of
from .problems import Labels
from .resolved import OptionsT, Selections

NamedPaths = Iterator[tuple[str, str]]
"""Paths of options, each with one of its values."""


@dataclass(frozen=True, slots=True)
class Selector:
    """An option whose value is the name of a component, or a list of names."""

    path: str
    hook: str
    many: bool = False
    labeled: bool = False
    """True: an entry may be ``LABEL=NAME=SHARE``, whose options stand in the section ``LABEL``; label and share may be
    left out."""

    @property
    def section(self) -> str:
        """Path of the section in which it stands; its component's options are in ``<section>.<component>``."""
        return self.path.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTree(Generic[OptionsT]):
    """The options of one command."""

    command: str
    """The command's name, as in ``rlhf NAME``."""
    purpose: str
    """Sentence for the help that says what the command does."""
    example: str
    """A flag that selects a component, for the help."""
    model: type[OptionsT]
    """The options that belong to no component."""
    selectors: tuple[Selector, ...]
    """The options that pick components; the sections that they stand in are part of ``model``."""
    shared: Mapping[str, type[Config]] = field(default_factory=dict)
    """Selector -> options that the core has for every component there, in the component's own section."""
    check: Callable[[OptionsT, Selections, Labels, Plugins], None]
    """Refuse options that contradict each other, by a ``ConfigError``. Each section is valid when it is called."""
    cautions: Callable[[OptionsT, Selections, Labels], tuple[str, ...]]
    """Return a warning for each combination that is allowed and probably not meant."""
    models: Callable[[OptionsT], NamedPaths]
    """Yield each option that names a model, and the name."""
    adapters: frozenset[str] = frozenset()
    """Options of ``models`` whose model is only read, so that an adapter's folder will do, which names its base."""
    peft: frozenset[str] = frozenset()
    """Options of ``models`` that name the folder of an adapter beside another model, in the form of PEFT."""
    data: Callable[[OptionsT], NamedPaths]
    """Yield each option that names data, and each file, folder or hub name."""
    outputs: Callable[[OptionsT, Labels], Iterator[str]] | None = None
    """Yield a message for each path that the command could not write to; None: it writes the run folder of a training
    run."""
    usage: str | None = None
    """Text above the options in the help; None: that of a training run."""

    def section_model(self, slot: Selector) -> type[BaseModel]:
        """Return the model of the section in which a selector stands."""
        model: type[BaseModel] = self.model
        for key in slot.section.split("."):
            nested = model_of(model.model_fields[key].annotation)
            assert nested is not None
            model = nested
        return model
