"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field, JsonValue

from rlhf_core import Config


class VerifiersV0Config(Config):
    """Options of ``verifiers_v0``."""

    id: str = Field(
        min_length=1,
        description="package of an environment with load_environment, or MODULE:CLASS of one of the library's own",
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="its arguments: --env.verifiers_v0.kwargs.KEY VALUE"
    )
