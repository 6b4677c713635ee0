"""Registration of ``rlhf view``, which shows runs as a page, of ``rlhf doctor``, which says why one does not learn, of
``rlhf audit``, which says why log-probs of sampler and trainer differ, of ``rlhf replay``, which trains steps of one
again, and of the observer ``token_files``."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from . import token_files


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the commands; their modules are imported when they run."""
    return [
        Component(
            name="view",
            factory="rlhf_plugin_lab.command:main",
            summary="Show runs as one page: curves, options, rollouts, tokens. A file, or a local server.",
        ),
        Component(
            name="doctor",
            factory="rlhf_plugin_lab.doctor.command:main",
            summary="Say from a run's records why it does not learn or has collapsed, and what to change.",
        ),
        Component(
            name="audit",
            factory="rlhf_plugin_lab.audit.command:main",
            summary="Find out why log-probs of sampler and trainer differ, by computing those of recorded "
            "tokens again.",
        ),
        Component(
            name="replay",
            factory="rlhf_plugin_lab.replay.command:main",
            summary="Train steps of a run again: to the bit, or with changed options on the same samples.",
        ),
    ]


@hookimpl
def rlhf_observers() -> list[Component[Any]]:
    return [token_files.COMPONENT]
