"""The parser of flags of this plugin's commands, whose mistakes are errors of the configuration."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rlhf_core import ConfigError


class FlagParser(argparse.ArgumentParser):
    """Parser that raises ``ConfigError``, with the command's name in front, where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}", code="usage/command-line")
