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
        description="name that the environment has where it runs: in the interpreter python, or at the servers of "
        "address",
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="options of the environment, which are checked where it runs: --env.external.options.KEY VALUE",
    )

    def component(self) -> ComponentRef:
        """Return the reference by which the environment's own process or server builds it."""
        return ComponentRef(kind="rlhf_environments", name=self.name, options=self.options)


def refuse_here(config: ExternalConfig) -> NoReturn:
    """Say that this process has no such environment.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"environment external: {config.name} is not part of this process. Only runs play it elsewhere "
        "(isolation venv or remote). Here, use the rlhf of the virtual environment that has it, with its own name: "
        f"FOLDER/bin/rlhf env check {config.name}",
        code="environment/external",
    )
