"""The core that plugins build on. Importing it imports no torch."""

from .component import Component, Config, Registered
from .errors import (
    AmbiguousComponent,
    CapabilityError,
    CheckpointError,
    ConfigError,
    DataError,
    EmptyStepsError,
    EnvironmentFailure,
    FingerprintMismatch,
    MissingDependency,
    NonFiniteError,
    PluginError,
    RequestError,
    ResumeError,
    RewardError,
    RLHFError,
    RolloutError,
    StorageError,
    UnknownComponent,
    UnknownTokenError,
    first_error,
    wrong_answer,
)
from .hookspecs import hookimpl
from .moved import install
from .problem import headline, log_switched_off

__all__ = [
    "AmbiguousComponent",
    "CapabilityError",
    "CheckpointError",
    "Component",
    "Config",
    "ConfigError",
    "DataError",
    "EmptyStepsError",
    "EnvironmentFailure",
    "FingerprintMismatch",
    "MissingDependency",
    "NonFiniteError",
    "PluginError",
    "RLHFError",
    "Registered",
    "RequestError",
    "ResumeError",
    "RewardError",
    "RolloutError",
    "StorageError",
    "UnknownComponent",
    "UnknownTokenError",
    "first_error",
    "headline",
    "hookimpl",
    "log_switched_off",
    "wrong_answer",
]

install()
