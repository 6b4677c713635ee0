"""Scripts of TRL that a YAML file may be for: how each is migrated, and which one the keys of a file are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_core import ConfigError

from ..table.entries import OptionEntry
from ..table.option_table import tables_of
from ..table.outcome import Outcome
from ..table.source import SourceOptions
from . import dpo, grpo, sft
from .common.yaml_file import read_keys, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script of TRL."""

    title: str
    """Algorithm that it trains, as in ``GRPO of TRL``."""
    keys: Mapping[str, OptionEntry]
    migrate: Callable[[SourceOptions, int, str], Outcome]
    """Function from options, a number of processes, and the path of the file with reward functions, to an outcome."""

    def read(self, text: str, name: str) -> SourceOptions:
        """Return the options of a YAML file for the script.

        Args:
            name: the file, in words.

        Raises:
            ConfigError: the text is not such a file.
        """
        return read_keys(text, name, self.title, self.keys)


_TABLES = tables_of(Path(__file__).with_name("options.toml"))
SCRIPTS = {
    "grpo": Script(title="GRPO", keys=_TABLES["grpo"].entries, migrate=grpo.migrate),
    "sft": Script(title="SFT", keys=_TABLES["sft"].entries, migrate=sft.migrate),
    "dpo": Script(title="DPO", keys=_TABLES["dpo"].entries, migrate=dpo.migrate),
}
"""The scripts, by their names on TRL's command line."""


def script_of(text: str, name: str) -> str:
    """Return the name of the script that knows most keys of a file.

    Raises:
        ConfigError: several scripts know as many, or the text is no table.
    """
    found = read_table(text, name).keys()
    known = {script: len(found & each.keys.keys()) for script, each in SCRIPTS.items()}
    best = [script for script, number in known.items() if number == max(known.values())]
    if len(best) > 1:
        raise ConfigError(
            f"rlhf migrate: {name}: its keys are those of several scripts of TRL; say which one it is for: --script "
            f"{' or --script '.join(best)}",
            code="migrate/several-scripts",
        )
    return best[0]
