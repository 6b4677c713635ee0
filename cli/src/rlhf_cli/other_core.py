"""Finding of plugins that were written for another version of the core than the one that is here."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from importlib.metadata import version

from rlhf_core.plugins import Plugins, find

_CORE = "rlhf-core"
_REQUIRED = re.compile(r"rlhf[-_.]core *\(?([<>=!~][^;()]*)\)?", re.IGNORECASE)
"""A requirement of the core that holds everywhere; one of an extra or a platform has a semicolon."""


def tell_of_another_core(plugins: Plugins, names: Collection[str] | None = None) -> None:
    """Print on stderr each loaded plugin whose distribution requires a version of the core that this is not.

    Args:
        names: the plugins that are looked at; None: all.
    """
    # The parser of whole requirements would take longer to import than to list all plugins.
    from packaging.specifiers import SpecifierSet

    here, looked_at = version(_CORE), plugins.loaded if names is None else names
    for candidate in find():
        if candidate.name not in looked_at or candidate.distribution is None:
            continue
        for found in map(_REQUIRED.fullmatch, candidate.distribution.requires or ()):
            if found and not SpecifierSet(found[1]).contains(here, prereleases=True):
                print(
                    f"warning: plugin {candidate.name!r} ({candidate.origin}) requires {_CORE}{found[1]}; this is "
                    f"{_CORE} {here}, so it may not work. Install versions that fit: "
                    f"pip install {_CORE} {candidate.origin.partition(' ')[0]}",
                    file=sys.stderr,
                )
