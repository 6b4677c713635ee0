"""Build the source distribution and the wheel of every package of this repository into a folder: ``dist/``, or the one
that is named.

Each wheel is built from the unpacked source distribution, so that one which lacks a file gives a wheel which lacks it
too, and tests of wheels find it. All hooks (PEP 517) are called in this process, because starting Python for each would
take most of the time.
"""

import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hatchling.build import build_sdist, build_wheel

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("core", "cli", "libs/*", "plugins/*", "contrib/*", "examples/*")


def packages() -> list[Path]:
    """Folders of the packages that are published. The metapackage of the repository itself is none of them."""
    return [
        project.parent
        for family in FAMILIES
        for project in sorted(ROOT.glob(f"{family}/pyproject.toml"))
    ]


def build(package: Path, target: Path) -> tuple[Path, Path]:
    """Build one package and return its source distribution and its wheel in the folder ``target``."""
    with _working_in(package):
        sdist = target / build_sdist(str(target))
    with TemporaryDirectory() as folder, tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        with _working_in(unpacked):
            wheel = target / build_wheel(str(target))
    return sdist, wheel


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Make ``folder`` the working directory, in which hooks of PEP 517 look for their project."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main(target: Path) -> None:
    """Build all packages into ``target``, and print each wheel's path."""
    target.mkdir(parents=True, exist_ok=True)
    for package in packages():
        print(build(package, target.resolve())[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
