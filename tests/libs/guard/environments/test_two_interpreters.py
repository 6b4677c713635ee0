"""Two environments whose packages need different versions of a third one, in one run, in two interpreters."""

import asyncio
import subprocess
import sys
import textwrap
from importlib.metadata import distribution
from pathlib import Path

import pytest

import rlhf_core
import rlhf_guard
from rlhf_config.isolation import IsolationOptions
from rlhf_core.component import ComponentRef
from rlhf_guard.environments.host import EnvironmentHost

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_left")]

LIGHT = (
    "pluggy",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_inspection",
    "typing_extensions",
    "packaging",
    "numpy",
)
"""Everything that rlhf-core and rlhf-guard need where an environment runs."""


def interpreter(folder: Path, number: int) -> Path:
    """A virtual environment with ``tiny==number``, an environment that needs it, rlhf-core, rlhf-guard and no torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    sources = (Path(package.__file__).parent.parent for package in (rlhf_core, rlhf_guard))
    (site / "ours.pth").write_text("\n".join(map(str, sources)))
    for name in LIGHT:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(distribution(name).locate_file(top))
    package = f"rlhf_env_needs_{number}"
    (site / "tiny.py").write_text(f"VERSION = {number}\n")
    (site / f"{package}.py").write_text(
        textwrap.dedent(f"""
        import sys
        from rlhf_core import Component, hookimpl
        from rlhf_core.contracts import Observation, StepResult

        class Needs:
            def __init__(self, config):
                import tiny
                if tiny.VERSION != {number}:
                    raise ImportError(f"needs tiny {number}, got {{tiny.VERSION}}")
                self.version = tiny.VERSION
            async def reset(self, task, seed):
                return Observation(text=f"{{self.version}} {{'torch' in sys.modules}} {{sys.prefix}}")
            async def step(self, action):
                return StepResult(reward=float(self.version), done=True)
            async def close(self):
                pass

        @hookimpl
        def rlhf_environments():
            return [Component(name="needs", factory=Needs)]
        """)
    )
    info = site / f"{package}-{number}.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: rlhf-env-needs-{number}\nVersion: {number}.0\n"
    )
    (info / "entry_points.txt").write_text(f"[rlhf.plugins.v1]\nenv_needs_{number} = {package}\n")
    return folder


def test_each_has_its_own_version(tmp_path, task, say, within):
    async def play(host):
        environment = host.make()
        first = await environment.reset(task(), 0)
        result = await environment.step(say("a"))
        await environment.close()
        return first.text, result.reward, host.origin

    async def run():
        hosts = [
            EnvironmentHost(
                f"needs_{number}",
                ComponentRef(kind="rlhf_environments", name="needs"),
                "",
                IsolationOptions(
                    isolation="venv", python=str(interpreter(tmp_path / str(number), number))
                ),
            )
            for number in (1, 2)
        ]
        try:
            return await asyncio.gather(*map(play, hosts))
        finally:
            await asyncio.gather(*(host.close() for host in hosts))

    assert within(run()) == [
        (
            f"{number} False {tmp_path / str(number)}",
            float(number),
            f"rlhf-env-needs-{number} {number}.0",
        )
        for number in (1, 2)
    ]
