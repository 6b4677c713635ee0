"""Packages as an index would have them: whole, described, licensed, and of use without this repository.

They are built as `make dist` builds them, and installed from that folder alone into an environment that sees the
libraries of this one, and nothing of ours that is installed here.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from types import ModuleType

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.deadlines import HANG_S

ROOT = Path(__file__).parent.parent.parent
OURS = ("rlhf", "_editable_impl_rlhf", "__editable__")
"""First letters of what an installation of a package of ours leaves in site-packages."""


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "build_distributions", ROOT / "release" / "build_distributions.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILDER = builder()
PACKAGES = BUILDER.packages()
PROJECTS = {
    path.name: tomllib.loads((path / "pyproject.toml").read_text())["project"] for path in PACKAGES
}
PLUGINS = sorted(
    name
    for name, project in PROJECTS.items()
    if "entry-points" in project and (ROOT / "plugins" / name).is_dir()
)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Source distribution and wheel of each package, by the package's folder name."""
    target = tmp_path_factory.mktemp("dist")
    return {package.name: BUILDER.build(package, target) for package in PACKAGES}


def sources_of(package: Path) -> set[str]:
    """What the folder ``src`` holds and git keeps: modules, and data beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"],
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.removeprefix("src/") for line in listed.stdout.splitlines()}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_wheel_has_every_source_file_and_nothing_else(built, package):
    sources = sources_of(package)
    if not sources:
        pytest.fail(f"git lists nothing below {package}/src")

    with zipfile.ZipFile(built[package.name][1]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert found == sources


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_wheel_describes_itself(built, package):
    with zipfile.ZipFile(built[package.name][1]) as wheel:
        (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        folder = path.removesuffix("METADATA")
        text = wheel.read(path)
        licensed = wheel.read(f"{folder}licenses/LICENSE")

    metadata = Metadata.from_email(text)  # raises where a field is not as its standard says

    project = PROJECTS[package.name]
    assert metadata.name == project["name"]
    assert metadata.summary == project["description"]
    assert metadata.license_expression == "Apache-2.0"
    assert licensed == (ROOT / "LICENSE").read_bytes()
    assert str(metadata.requires_python) == ">=3.11"
    readme = (package / "README.md").read_text()
    assert message_from_bytes(text).get_payload(decode=True).decode().strip() == readme.strip()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_license_beside_a_package_is_that_of_the_repository(package):
    """A build takes no file from outside of its package, so each has a copy."""
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", PROJECTS)
def test_a_package_is_called_typed_where_it_is(name):
    (package,) = (path for path in PACKAGES if path.name == name)
    typed = [path for path in package.glob("src/*") if (path / "py.typed").exists()]

    assert ("Typing :: Typed" in PROJECTS[name]["classifiers"]) == bool(typed)
    assert not typed or typed == [path for path in package.glob("src/*") if path.is_dir()]


def requirements_of(project: dict) -> list[Requirement]:
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for group in (project["dependencies"], *extras) for text in group]


def test_all_packages_have_one_version():
    assert len({project["version"] for project in PROJECTS.values()}) == 1


@pytest.mark.parametrize("name", PROJECTS)
def test_what_a_package_requires_of_ours_is_this_version_and_not_the_next_minor_one(name):
    versions = {project["name"]: project["version"] for project in PROJECTS.values()}
    ours = [each for each in requirements_of(PROJECTS[name]) if each.name.startswith("rlhf-")]

    for requirement in ours:
        version = versions[requirement.name]
        major, minor, *_ = map(int, version.split("."))
        assert requirement.specifier.contains(version), requirement
        assert not requirement.specifier.contains(f"{major}.{minor + 1}.0"), requirement


def test_the_extra_all_of_the_command_line_is_every_plugin_of_this_repository():
    extra = PROJECTS["cli"]["optional-dependencies"]["all"]

    assert [Requirement(text).name for text in extra] == PLUGINS


def test_the_quickstart_installs_every_package_of_core_command_line_libraries_and_plugins():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    members = [ROOT / "core", ROOT / "cli", *ROOT.glob("libs/*/"), *ROOT.glob("plugins/*/")]

    wanted = {
        f"-e ./{each.relative_to(ROOT)}" for each in members if (each / "pyproject.toml").exists()
    }
    assert {line for line in lines if not line.startswith("#")} == wanted


def test_no_trainer_installs_the_conformance_kit():
    """What `rlhf-cli[all]` brings, and what that requires in its turn."""
    by_name = {project["name"]: project for project in PROJECTS.values()}
    waiting, brought = ["rlhf-cli", *PLUGINS], set[str]()
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in brought:
            brought.add(name)
            waiting += [Requirement(text).name for text in by_name[name]["dependencies"]]

    assert {"rlhf-core", "rlhf-trainer"} <= brought
    assert "rlhf-testing" not in brought


@pytest.fixture(scope="session")
def libraries(tmp_path_factory) -> Path:
    """A folder with links to what is in site-packages here, but for packages of this repository."""
    folder = tmp_path_factory.mktemp("libraries")
    for place in [Path(each) for each in sys.path if Path(each).name == "site-packages"]:
        for entry in place.iterdir():
            link = folder / entry.name
            if not entry.name.startswith(OURS) and not link.exists():
                link.symlink_to(entry)
    return folder


class Clean:
    """An environment that sees libraries and nothing of ours until it is installed, and a working directory that is no
    checkout."""

    def __init__(self, folder: Path, libraries: Path, environment: str = "venv") -> None:
        self.folder = folder
        self.bin = folder / environment / "bin"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder / environment], check=True
        )
        (site,) = (folder / environment).glob("lib/python*/site-packages")
        (site / "libraries.pth").write_text(f"{libraries}\n")

    def install(self, wheels: Path, *requirements: str) -> None:
        """Install from a folder alone; libraries that are there already count, with their versions."""
        pip = ["-m", "pip", "--python", self.bin / "python", "--disable-pip-version-check"]
        words = ["install", "--quiet", "--no-index", "--no-cache-dir", "--find-links", wheels]
        done = subprocess.run(
            [sys.executable, *map(str, [*pip, *words, *requirements])],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, command: str, *words: object) -> str:
        """Run a command of the environment and return what it prints on stdout."""
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        done = subprocess.run(
            [str(self.bin / command), *map(str, words)],
            cwd=self.folder,
            env={**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def clean(built, libraries, tmp_path_factory) -> Clean:
    environment = Clean(tmp_path_factory.mktemp("elsewhere"), libraries)
    wheels = next(iter(built.values()))[1].parent
    contrib = [path.name for path in PACKAGES if path.parent.name in ("contrib", "examples")]
    environment.install(wheels, "rlhf-cli[all,check]", *contrib)
    return environment


@pytest.mark.slow
def test_nothing_of_the_checkout_is_imported(clean):
    code = (
        "import json, sys, rlhf, rlhf_core, rlhf_cli.main, rlhf_torch, rlhf_tools;"
        "print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith('rlhf')]))"
    )

    files = [Path(file) for file in json.loads(clean.run("python", "-c", code)) if file]

    assert len(files) > 10
    assert [file for file in files if not file.is_relative_to(clean.folder)] == []


@pytest.mark.slow
def test_every_plugin_is_listed_from_its_wheel(clean):
    rows = json.loads(clean.run("rlhf", "plugins", "--json", "--strict"))

    listed = {canonicalize_name(row["distribution"]) for row in rows}
    assert {row["status"] for row in rows} == {"ok"}
    assert listed == {name for name, project in PROJECTS.items() if "entry-points" in project}
    assert {row["version"] for row in rows} == {PROJECTS["core"]["version"]}


@pytest.mark.slow
def test_the_quickstart_runs_from_wheels(clean):
    """The command of the README without a clone, for two steps: help, data and model, the plan of a run, samples."""
    few = ["--steps", 2, "--eval.every", 2]

    assert "quickstart" in clean.run("rlhf", "--help")
    clean.run("rlhf", "quickstart", *few)
    assert "reinforce_baseline" in clean.run(
        "rlhf", "train", "--dry-run", "-c", "quickstart/run.toml"
    )

    assert "response:" in clean.run("rlhf", "show", "quickstart/run", "--step", 2)
    recorded = json.loads((clean.folder / "quickstart/run/plugins.json").read_text())
    assert f"rlhf-plugin-algorithms {PROJECTS['core']['version']}" in json.dumps(recorded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("plugin", "my-loss", "--kind", "policy_loss"), "rlhf-plugin-my-loss"),
        pytest.param(("environment", "my-game"), "rlhf-env-my-game", marks=pytest.mark.matrix),
    ],
)
def test_a_new_package_is_installed_and_tested_with_what_it_names(
    clean, built, libraries, words, name
):
    """In an environment of its own, into which its extra `test` alone brings our packages, as in its own CI."""
    clean.run("rlhf", "new", *words)
    wheel = BUILDER.build(clean.folder / name, clean.folder / "dist")[1]
    theirs = Clean(clean.folder, libraries, f"venv-{name}")
    wheels = next(iter(built.values()))[1].parent

    theirs.install(wheels, f"{name}[test] @ {wheel.as_uri()}")

    assert " passed" in theirs.run("python", "-m", "pytest", "-q", f"{name}/tests")
    assert name in theirs.run("rlhf", "plugins", "--json", "--strict")
