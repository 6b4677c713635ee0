"""The conformance kit, which a trainer does not install."""

from __future__ import annotations

import importlib.util

from rlhf_core import MissingDependency


def require_kit(command: str) -> None:
    """Say how to install the conformance kit, where it is not.

    Raises:
        MissingDependency: it is not installed.
    """
    if importlib.util.find_spec("rlhf_testing") is None:
        raise MissingDependency(
            f"{command} needs the conformance kit, rlhf-testing, which is not installed.\n"
            "  pip install 'rlhf-cli[check]'"
        )
