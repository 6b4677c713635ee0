"""Removal of a folder in which a program did as it liked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def remove_folder(folder: Path) -> None:
    """Remove a folder, of which a program may have made parts unreadable."""
    for path, names, _ in os.walk(folder):
        os.chmod(path, 0o700)
        for name in names:
            inner = os.path.join(path, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder)
