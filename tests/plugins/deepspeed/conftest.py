"""Two ranks of DeepSpeed that go through all scenarios once, and one rank of torch to compare with."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rlhf_core.testing.tiny import FAMILIES, write_tiny_model
from rlhf_plugin_local.backend.torch_backend import TorchBackend
from rlhf_plugin_local.config import TorchBackendConfig

HERE = Path(__file__).parent
PROGRAM = HERE / "deepspeed_rank.py"
WAIT_S = 600


def _imported(name: str) -> ModuleType:
    """A module beside this file, which is also run or imported by the ranks; test folders are no packages."""
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


@pytest.fixture(scope="session")
def scenarios() -> ModuleType:
    return _imported("deepspeed_scenarios")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        write_tiny_model(root / family, family)
    return root


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other processes share the cores, and small tensors gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def two_ranks(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which two ranks have written what came of all scenarios, ``stageN/SCENARIO/rankR``."""
    pytest.importorskip("deepspeed")
    out = tmp_path_factory.mktemp("two_ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
        environment = {name: str(value) for name, value in place.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "error", str(PROGRAM), str(models), str(out)]
        log = (out / f"log{rank}").open("w")
        ranks.append(
            subprocess.Popen(
                command, env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT
            )
        )
        log.close()
    try:
        for process in ranks:
            process.wait(WAIT_S)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    codes = [process.returncode for process in ranks]
    assert codes == [0, 0], "\n".join((out / f"log{rank}").read_text()[-4000:] for rank in range(2))
    return out


@pytest.fixture(scope="session")
def found(two_ranks: Path) -> Callable[[int, str], list[Any]]:
    """What the two ranks found at a stage in a scenario."""

    def read(stage: int, name: str) -> list[Any]:
        folder = two_ranks / f"stage{stage}" / name
        program = _imported("deepspeed_rank")
        return [program.read(folder / f"rank{rank}") for rank in range(2)]

    return read


@pytest.fixture(scope="session")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What one rank of the torch backend finds in a scenario; its files are in ``folder``."""
    program = _imported("deepspeed_scenarios")

    def make(gradient_checkpointing: bool = False) -> TorchBackend:
        return TorchBackend(
            TorchBackendConfig(device="cpu", gradient_checkpointing=gradient_checkpointing)
        )

    @cache
    def run(name: str) -> Any:
        folder = tmp_path_factory.mktemp("one_rank")
        place = program.Place(make, models, folder)
        result = program.run(getattr(program, name), place)
        result.folder = folder
        return result

    return run
