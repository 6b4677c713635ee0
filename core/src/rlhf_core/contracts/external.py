"""An environment whose package is not installed where the run is: its name and options, for the place that has it."""

from __future__ import annotations

from typing import NoReturn

from pydantic import Field, JsonValue

from ..component import ComponentRef, Config
from ..errors import ConfigError


class ExternalConfig(Config):
    """Options of ``external``."""

    name: str = Field(
        min_length=1,
        description="environment, by its name where it runs: in the interpreter python, or at the servers of address",
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="its options, which are checked there: --env.external.options.KEY VALUE",
    )

    def component(self) -> ComponentRef:
        """Return the environment as it is named where it runs."""
        return ComponentRef(kind="rlhf_environments", name=self.name, options=self.options)


def refuse_here(config: ExternalConfig) -> NoReturn:
    """Say that this process has no such environment.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"environment external: {config.name} is not part of this process. Only runs play it elsewhere "
        "(isolation venv or remote). Here, use the rlhf of the virtual environment that has it, with its own name: "
        f"FOLDER/bin/rlhf env check {config.name}"
    )
