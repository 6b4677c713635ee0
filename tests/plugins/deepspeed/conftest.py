"""Two ranks of DeepSpeed that go through all scenarios once, and one rank of torch to compare with."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from filelock import FileLock
from tests.forked_ranks import WAIT_S, forking, free_port
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.batch.metric import Metric, merge_metrics, metric_values
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.tiny import FAMILIES, write_tiny_model

HERE = Path(__file__).parent
PROGRAM = HERE / "deepspeed_rank.py"
Ranks = Callable[[str, Path], Path]
ROWS = ("rows", "rows at stage 1", "more rows at stage 1")


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
def adapting() -> ModuleType:
    return _imported("deepspeed_adapting")


@pytest.fixture(scope="session")
def rewarding() -> ModuleType:
    return _imported("deepspeed_rewarding")


@pytest.fixture(scope="session")
def material() -> ModuleType:
    return _imported("deepspeed_material")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        write_tiny_model(root / family, family)
    # Two heads share one key head.
    write_tiny_model(root / "shared_keys", "llama", num_heads=2)
    _write_untied(root / "llama", root / "untied")
    return root


def _write_untied(tied: Path, folder: Path) -> None:
    """The same model with an output head of its own."""
    model = AutoModelForCausalLM.from_pretrained(tied)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tied).save_pretrained(folder)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other processes share the cores, and small tensors gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def two_ranks(
    run_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], Path]:
    """The folder into which two ranks with rows of their own have written, as ``rankR``, what came of a scenario at a
    stage. Test processes that need it at the same time share it."""

    @cache
    def run(way: str) -> Path:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            return run_ranks(way, tmp_path_factory.mktemp("rows"))
        out = tmp_path_factory.getbasetemp().parent / way
        with FileLock(out.with_suffix(".lock")):
            if not out.exists():
                run_ranks(way, tmp_path_factory.mktemp("rows")).rename(out)
        return out

    def folder(stage: int, name: str) -> Path:
        ways = {way: _imported("deepspeed_rank").WAYS[way] for way in ROWS}
        [way] = (
            way
            for way, one in ways.items()
            if stage in one.stages and name in {scenario.__name__ for scenario in one.scenarios}
        )
        return run(way) / f"stage{stage}" / name

    return folder


@pytest.fixture(scope="session")
def read_ranks() -> Callable[[Path, int, str], list[Any]]:
    """What the ranks of a folder found at a stage in a scenario."""
    return _found


@pytest.fixture(scope="session")
def found(two_ranks: Callable[[int, str], Path]) -> Callable[[int, str], list[Any]]:
    """What the two ranks found at a stage in a scenario."""
    return lambda stage, name: _read(two_ranks(stage, name))


@pytest.fixture(scope="session")
def folder_of(
    run_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], Path]:
    """The folder into which ranks have written what came of a way at a stage.

    Of some ways stages are further cases, through which ranks go where a test asks for them.
    """

    @cache
    def run(way: str) -> Path:
        return run_ranks(way, tmp_path_factory.mktemp("ranks"))

    def folder(way: str, stage: int) -> Path:
        apart = f"{way} at stage {stage}"
        return run(apart if apart in _imported("deepspeed_rank").WAYS else way)

    return folder


@pytest.fixture(scope="session")
def sliced(folder_of: Callable[[str, int], Path]) -> Callable[[int, str], list[Any]]:
    """What two ranks found that compute each sequence together."""
    return lambda stage, name: _found(folder_of("tokens", stage), stage, name)


@pytest.fixture(scope="session")
def sharded(folder_of: Callable[[str, int], Path]) -> Callable[[int, str], list[Any]]:
    """What two ranks found that share the matrices of each model; their files are in ``folder``."""

    def read(stage: int, name: str) -> list[Any]:
        folder = folder_of("matrices", stage)
        ranks = _found(folder, stage, name)
        for rank in ranks:
            rank.folder = folder / f"stage{stage}" / name
        return ranks

    return read


@pytest.fixture(scope="session")
def pairs(folder_of: Callable[[str, int], Path]) -> Callable[[int, str], list[Any]]:
    """The same of four ranks, in two groups, of which the second has no rows."""
    return lambda stage, name: _found(folder_of("pairs", stage), stage, name)


def _found(out: Path, stage: int, name: str) -> list[Any]:
    return _read(out / f"stage{stage}" / name)


def _read(folder: Path) -> list[Any]:
    program = _imported("deepspeed_results")
    ranks = len(list(folder.glob("rank*.json")))
    return [program.read(folder / f"rank{rank}") for rank in range(ranks)]


def _run_on_gpus(way: str, models: Path, out: Path) -> list[int]:
    """The exit codes of ranks that are processes of their own: CUDA takes no forks."""
    world_size = _imported("deepspeed_rank").WAYS[way].world_size
    port = free_port()
    ranks = []
    for rank in range(world_size):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
        environment = {name: str(value) for name, value in place.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        # The versions that a GPU needs are not those whose warnings are dealt with.
        command = [sys.executable, str(PROGRAM), way, str(models), str(out)]
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
    return [process.returncode for process in ranks]


@pytest.fixture(scope="session")
def _fork_ranks() -> Iterator[Callable[[str, Path, Path], list[int]]]:
    """Has ranks that are forks go through a way, and returns their exit codes."""
    with forking(PROGRAM, "rlhf_plugin_deepspeed.backend") as go_through:
        yield go_through


@pytest.fixture(scope="session")
def run_ranks(request: pytest.FixtureRequest, models: Path) -> Ranks:
    """Has ranks go through the scenarios of a way in a folder, and returns the folder."""
    pytest.importorskip("deepspeed")

    def run(way: str, out: Path) -> Path:
        on_cpu = _imported("deepspeed_rank").WAYS[way].device == "cpu"
        go_through = request.getfixturevalue("_fork_ranks") if on_cpu else _run_on_gpus
        codes = go_through(way, models, out)
        logs = (path.read_text()[-4000:] for path in sorted(out.glob("log*")))
        assert set(codes) == {0}, "\n".join(logs)
        return out

    return run


@pytest.fixture(scope="session")
def assert_same_metrics() -> Callable[..., None]:
    """Compares the merged metrics of ranks with those of one rank, step by step."""

    def check(
        ranks: list[Any], alone: Any, atol: float = 1e-5, *, more_passes: bool = False
    ) -> None:
        for step, wanted in enumerate(alone.facts["metrics"]):
            parts = [_metrics(rank.facts["metrics"][step]) for rank in ranks]
            actual = metric_values(merge_metrics(parts))
            expected = metric_values(_metrics(wanted))
            # Micro-batches of several ranks may have other sizes.
            passes = actual.pop("train/micro_batches"), expected.pop("train/micro_batches")
            assert more_passes or passes[0] <= passes[1]
            assert actual == pytest.approx(expected, abs=atol, rel=atol, nan_ok=True), step

    return check


@pytest.fixture(scope="session")
def assert_same_rows() -> Callable[..., None]:
    """Compares what ranks found for their rows, one after the other, with what one rank found for all of them."""

    def check(
        ranks: list[Any], alone: Any, name: str, *, of: str | None = None, atol: float = 1e-6
    ) -> None:
        together = torch.cat([rank.tensors[name] for rank in ranks])
        torch.testing.assert_close(together, alone.tensors[of or name], atol=atol, rtol=0.0)

    return check


def _metrics(facts: dict[str, Any]) -> dict[str, Metric]:
    return {name: Metric(*numbers) for name, numbers in facts.items()}


@pytest.fixture(scope="session")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What one rank of the torch backend finds in a scenario; its files are in ``folder``."""
    program = _imported("deepspeed_scenarios")

    def make(**options: Any) -> TorchBackend:
        return TorchBackend(TorchBackendConfig(device="cpu", **options))

    @cache
    def run(name: str) -> Any:
        folder = tmp_path_factory.mktemp("one_rank")
        place = program.Place(make, models, folder)
        result = program.run(getattr(program, name), place)
        result.folder = folder
        return result

    return run
