"""The released frameworks, which ``make clients`` unpacks into ``.clients``.

The folder stands behind everything else on ``sys.path``: what the environment has is what they work with.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".clients"
REQUIREMENTS = ROOT / "requirements-clients.txt"


def required() -> dict[str, str]:
    """Return the version of each package, by its name."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {name: version for name, _, version in pins}


def missing() -> list[str]:
    """Return what ``make clients`` would still have to install, as ``name==version``."""
    found = {path.name.lower() for path in FOLDER.glob("*.dist-info")}
    return [
        f"{name}=={version}"
        for name, version in required().items()
        if f"{name.replace('-', '_')}-{version}.dist-info" not in found
    ]


def show() -> None:
    """Let Python find them."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
