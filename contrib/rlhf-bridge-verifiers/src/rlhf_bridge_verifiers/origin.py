"""Names of environments of verifiers for messages: the package, its version, and the library's."""

from __future__ import annotations

import re
from importlib.metadata import packages_distributions, version


def origin_of(module: str) -> str:
    """Return the distribution and version that a module, or ``MODULE:NAME``, came from, and the library's version.

    Such as ``my-game 1.2, verifiers 0.4.0``; for the library's own, and for a module of no distribution, the library's
    alone.
    """
    library = f"verifiers {version('verifiers')}"
    owners = packages_distributions().get(re.split(r"[.:]", module.replace("-", "_"))[0], ())
    others = [f"{name} {version(name)}" for name in owners if name != "verifiers"]
    return ", ".join([*others[:1], library])
