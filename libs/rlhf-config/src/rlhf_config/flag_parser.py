"""The parser of a command whose flags are its own: its mistakes are errors of the configuration."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rlhf_core.errors import ConfigError


class FlagParser(argparse.ArgumentParser):
    """Parser of whole flags that raises ``ConfigError``, with the command's name in front, where argparse would end the
    process.

    Args:
        prog: the command as it is typed, such as ``rlhf plan``.
        description: text of its help.
        usage: the help's first lines; None: argparse writes them.
    """

    def __init__(self, *, prog: str, description: str, usage: str | None = None) -> None:
        super().__init__(prog=prog, description=description, usage=usage, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}", code="usage/command-line")
