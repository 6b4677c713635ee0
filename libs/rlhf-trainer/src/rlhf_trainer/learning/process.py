"""Learner of a process other than the driver, built from the run's configuration.

A runtime that has such a process calls ``open_learner`` there, with the process's own plugins and handles to the roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.contracts.learner import Learner
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.plugins import Plugins


def open_learner(
    config: Mapping[str, Any], roles: Mapping[str, RoleHandle], plugins: Plugins
) -> Learner:
    """Return a learner whose results are bitwise equal to those of the driver's own.

    Args:
        config: ``RuntimeSpec.config``.

    Raises:
        ConfigError: the configuration, the tokenizer, or a file that they name cannot be read in this process.
        RLHFError: a component cannot be built.
    """
    # Imported here: these modules import torch, which the process may want to configure first.
    from rlhf_config.layers import Layer
    from rlhf_config.resolve import resolve
    from rlhf_data.tokenizer import load_tokenizer

    from .demands import demands_of
    from .learner import BatchLearner
    from .parts import learning_parts

    resolved = resolve([Layer.of(config, "the run's configuration")], plugins)
    run, demands = resolved.run, demands_of(resolved)
    tokenizer = load_tokenizer(
        run.model.tokenizer or run.model.path, trust_remote_code=run.model.trust_remote_code
    )
    return BatchLearner(resolved, demands, roles, learning_parts(resolved, demands, tokenizer))
