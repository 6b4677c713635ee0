"""The contract of presets: the options of a published method, as a TOML file that a run reads below its own options."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..component import Component, Config


@dataclass(frozen=True, slots=True)
class Preset:
    """Options of ``rlhf train`` that make up a published method.

    The file has the values of the method's paper, and beside each a comment that says where the paper has it. What
    depends on the task or on the hardware (model, data, lengths, prompts a step, memory) is left to the user.
    """

    file: Path

    def text(self) -> str:
        """Return the content of the file, comments included.

        Raises:
            OSError: the file cannot be read.
        """
        return self.file.read_text(encoding="utf-8")

    def options(self) -> Mapping[str, Any]:
        """Return the options, nested by section.

        Raises:
            OSError: the file cannot be read.
            tomllib.TOMLDecodeError: the file is not valid TOML.
        """
        return tomllib.loads(self.text())


def preset_component(file: Path, summary: str) -> Component[Preset]:
    """Return the component of a preset, which has the name of its file: ``dapo`` of ``dapo.toml``.

    Args:
        summary: one line that names the method and its paper.
    """
    return Component(name=file.stem, factory=functools.partial(_read, file), summary=summary)


def _read(file: Path, config: Config) -> Preset:
    return Preset(file)
