"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config
from rlhf_core.typed_table import TypedTable


class VerifiersConfig(Config):
    """Options of ``verifiers``."""

    id: str = Field(
        min_length=1, description="taskset of verifiers: an installed package, such as textarena"
    )
    kwargs: TypedTable = Field(
        default_factory=dict,
        description="options of the taskset: --env.verifiers.kwargs.KEY VALUE",
    )
    eval_tasks: int = Field(
        0,
        ge=0,
        description="number of tasks, the first of the taskset, for evaluation instead of training",
    )
    harness: str = Field(
        "",
        description="harness that plays the policy, by its id; empty: the taskset's own, else the bridge's chat "
        "in this process",
    )
    settings: TypedTable = Field(
        default_factory=dict,
        description="further options, as in the table env of a file of verifiers: "
        "--env.verifiers.settings.agent.max_turns 4",
    )


class VerifiersV0Config(Config):
    """Options of ``verifiers_v0``."""

    id: str = Field(
        min_length=1,
        description="package of an environment with load_environment, or MODULE:CLASS of one of the library's own",
    )
    kwargs: TypedTable = Field(
        default_factory=dict,
        description="arguments of the environment: --env.verifiers_v0.kwargs.KEY VALUE",
    )
