"""Ranks of FSDP that go through scenarios once, and one rank of torch to compare with.

The scenarios are those of the DeepSpeed backend: what a backend has to do is the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.forked_ranks import forking
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.batch.metric import Metric, merge_metrics, metric_values
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.tiny import write_tiny_model

HERE = Path(__file__).parent
SCENARIOS = HERE.parent / "deepspeed"
FAMILIES = ("qwen3", "llama", "gemma3", "qwen3_moe")


def _imported(name: str) -> ModuleType:
    """A module of the scenarios, or one beside this file; test folders are no packages."""
    sys.path[:0] = [str(HERE), str(SCENARIOS)]
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[:2]


@pytest.fixture(scope="session")
def scenarios() -> ModuleType:
    return _imported("deepspeed_scenarios")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other processes share the cores, and small tensors gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        write_tiny_model(root / family, family)
    model = AutoModelForCausalLM.from_pretrained(root / "llama")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    model.save_pretrained(root / "untied")
    AutoTokenizer.from_pretrained(root / "llama").save_pretrained(root / "untied")
    return root


@pytest.fixture(scope="session")
def run_ranks(models: Path) -> Iterator[Callable[[str, Path], Path]]:
    """Has ranks go through the scenarios of a way in a folder, and returns the folder."""
    with forking(HERE / "fsdp_rank.py", "rlhf_plugin_fsdp.backend") as go_through:

        def run(way: str, out: Path) -> Path:
            codes = go_through(way, models, out)
            logs = (path.read_text()[-4000:] for path in sorted(out.glob("log*")))
            assert set(codes) == {0}, "\n".join(logs)
            return out

        yield run


@pytest.fixture(scope="session")
def read_ranks() -> Callable[[Path, str], list[Any]]:
    """What the ranks of a folder found in a scenario."""
    return _found


@pytest.fixture(scope="session")
def two_ranks(
    run_ranks: Callable[[str, Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder into which two ranks have written what came of all scenarios, ``SCENARIO/rankR``."""
    return run_ranks("rows", tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="session")
def found(two_ranks: Path) -> Callable[[str], list[Any]]:
    """What the two ranks found in a scenario."""
    return partial(_found, two_ranks)


def _found(out: Path, name: str) -> list[Any]:
    program = _imported("deepspeed_results")
    ranks = len(list((out / name).glob("rank*.json")))
    return [program.read(out / name / f"rank{rank}") for rank in range(ranks)]


@pytest.fixture(scope="session")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What one rank of the torch backend finds in a scenario; its files are in ``folder``."""
    program = _imported("deepspeed_scenarios")
    others = _imported("deepspeed_adapting")

    def make(**options: Any) -> TorchBackend:
        return TorchBackend(TorchBackendConfig(device="cpu", **options))

    @cache
    def run(name: str) -> Any:
        folder = tmp_path_factory.mktemp("one_rank")
        scenario = getattr(program, name, None) or getattr(others, name)
        result = program.run(scenario, program.Place(make, models, folder))
        result.folder = folder
        return result

    return run


@pytest.fixture(scope="session")
def assert_same_metrics() -> Callable[..., None]:
    """Compares the merged metrics of ranks with those of one rank, step by step."""

    def check(ranks: list[Any], alone: Any, atol: float = 1e-5) -> None:
        for step, wanted in enumerate(alone.facts["metrics"]):
            parts = [_metrics(rank.facts["metrics"][step]) for rank in ranks]
            actual = metric_values(merge_metrics(parts))
            expected = metric_values(_metrics(wanted))
            # Several ranks may cut more micro-batches.
            del actual["train/micro_batches"], expected["train/micro_batches"]
            assert actual == pytest.approx(expected, abs=atol, rel=atol, nan_ok=True), step

    return check


@pytest.fixture(scope="session")
def assert_same_rows() -> Callable[..., None]:
    """Compares what ranks found for their rows, one after the other, with what one rank found for all of them."""

    def check(ranks: list[Any], alone: Any, name: str, atol: float = 1e-6) -> None:
        together = torch.cat([rank.tensors[name] for rank in ranks])
        torch.testing.assert_close(together, alone.tensors[name], atol=atol, rtol=0.0)

    return check


def _metrics(facts: dict[str, Any]) -> dict[str, Metric]:
    return {name: Metric(*numbers) for name, numbers in facts.items()}
