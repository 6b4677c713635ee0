"""One of several ranks: ``python deepspeed_rank.py WAY MODELS OUT``, with RANK and the like in the environment.

It goes through the scenarios of a way to share the work, at its stages, and writes what came out, rank by rank, as
safetensors and JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed_scenarios import (
    SCENARIOS,
    SHARDED_SCENARIOS,
    SLICED_SCENARIOS,
    Found,
    Place,
    compiled,
    gradient,
    rejoining,
    run,
    training,
)
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class Way:
    """How ranks share the work of some scenarios."""

    stages: tuple[int, ...]
    scenarios: tuple[Callable[[Place, Found], None], ...]
    options: dict[str, Any]
    world_size: int = 2


WAYS = {
    "rows": Way((0, 1, 2, 3), SCENARIOS, {}),
    "rejoined": Way((1, 2, 3), (rejoining,), {}),
    "tokens": Way((0, 1, 2, 3), SLICED_SCENARIOS, {"sequence_parallel": 2}),
    "matrices": Way((1, 2), SHARDED_SCENARIOS, {"tensor_parallel": 2}),
    "compiled rows": Way((0, 2), (compiled,), {}),
    "compiled tokens": Way((2,), (compiled,), {"sequence_parallel": 2}),
    "compiled matrices": Way((2,), (compiled,), {"tensor_parallel": 2}),
    # The second pair of ranks has no rows.
    "pairs": Way((0, 2, 3), (gradient, training), {"sequence_parallel": 2}, world_size=4),
}


def write(found: Found, path: Path) -> None:
    save_file(found.tensors, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(found.facts))


def read(path: Path) -> Found:
    found = Found()
    found.facts = json.loads(path.with_suffix(".json").read_text())
    found.tensors = load_file(path.with_suffix(".safetensors"))
    return found


def go_through_all(way: Way, models: Path, out: Path) -> None:
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    def make(**options: Any) -> DeepSpeedBackend:
        return DeepSpeedBackend(DeepSpeedConfig(device="cpu", reduce_bucket_size=2000, **options))

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for stage in way.stages:
        for scenario in way.scenarios:
            folder = out / f"stage{stage}" / scenario.__name__
            place = Place(
                partial(make, zero_stage=stage, **way.options), models, folder, rank, way.world_size
            )
            write(run(scenario, place), folder / f"rank{rank}")


if __name__ == "__main__":
    go_through_all(WAYS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]))
