"""Virtual environments of ecosystems, which docs/bridges.md makes in the folder that ``RLHF_BRIDGES`` names."""

import os
import subprocess
from pathlib import Path

import pytest


def own_interpreter(name):
    """The folder of an ecosystem's virtual environment; the test is skipped where there is none."""
    folder = os.environ.get("RLHF_BRIDGES")
    if folder is None or not (Path(folder) / name / "bin" / "python").exists():
        pytest.skip(f"no virtual environment {name} in RLHF_BRIDGES; docs/bridges.md makes it")
    return str((Path(folder) / name).absolute())


def versions(python, *distributions):
    """Versions of distributions in a virtual environment."""
    code = f"from importlib.metadata import version; print(*map(version, {distributions!r}))"
    done = subprocess.run(
        [f"{python}/bin/python", "-I", "-c", code], capture_output=True, text=True, check=True
    )
    return dict(zip(distributions, done.stdout.split(), strict=True))


def extended(folder, python, modules):
    """A virtual environment in ``folder`` with all that another one has, and the modules of a folder."""
    interpreter = f"{python}/bin/python"
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(folder)], check=True)
    (base,) = Path(python).glob("lib/python*/site-packages")
    (site,) = Path(folder).glob("lib/python*/site-packages")
    # addsitedir, since the other one's editable installations are in path files of its own.
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n{modules}\n")
    return str(folder)
