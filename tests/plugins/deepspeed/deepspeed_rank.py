"""One of several ranks: ``python deepspeed_rank.py WAY MODELS OUT``, with RANK and the like in the environment.

It goes through the scenarios of a way to share the work, at its stages, and writes what came out, rank by rank, as
safetensors and JSON.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import deep_compile_on_cpu
import torch
from deepspeed_adapting import adapting, moving_adapters, resuming_adapters
from deepspeed_full_disk import full_disk
from deepspeed_moving import moving
from deepspeed_results import write
from deepspeed_rewarding import rewarding, rewarding_otherwise
from deepspeed_scenarios import (
    Found,
    Place,
    balanced,
    compiled,
    critic,
    experts,
    few_rows,
    following,
    gradient,
    longer,
    mixed,
    muon,
    offloaded,
    preferences,
    recomputing,
    reference,
    refused,
    rejoining,
    replayed,
    resting,
    resuming,
    resuming_shards,
    run,
    same_prompts,
    saved_updates,
    separate_experts,
    shared_keys,
    short_of_memory,
    top_of_teacher,
    training,
    unlike_graphs,
    unshared,
    untied,
    whole,
    whole_on_host,
    windows,
)
from deepspeed_undoing import undoing, undoing_idle


@dataclass(frozen=True)
class Way:
    """How ranks share the work of some scenarios."""

    stages: tuple[int, ...]
    scenarios: tuple[Callable[[Place, Found], None], ...]
    options: dict[str, Any]
    world_size: int = 2
    device: str = "cpu"

    @property
    def in_one_graph(self) -> bool:
        return bool(self.options.get("deep_compile"))


SCENARIOS = (
    gradient,
    same_prompts,
    critic,
    training,
    mixed,
    saved_updates,
    recomputing,
    experts,
    balanced,
    replayed,
    separate_experts,
    resuming,
    few_rows,
    reference,
    offloaded,
    refused,
    resting,
    short_of_memory,
    unlike_graphs,
    whole,
    muon,
)

SUMMED_OR_CUT = (gradient, saved_updates, resuming)
"""What stage 1 does apart from stage 2: it sums gradients elsewhere, and ranks of other stages read its parts."""

SLICED_SCENARIOS = (
    gradient,
    critic,
    training,
    mixed,
    recomputing,
    shared_keys,
    untied,
    windows,
    experts,
    balanced,
    replayed,
    few_rows,
    top_of_teacher,
    reference,
)

SHARDED_SCENARIOS = (
    gradient,
    critic,
    training,
    mixed,
    recomputing,
    untied,
    windows,
    resuming_shards,
    few_rows,
    reference,
    unshared,
)
GRAPH_SCENARIOS = (longer, few_rows, untied, critic, same_prompts, resting)
GRAPH = {"deep_compile": True}
GPU_SCENARIOS = (training, resting, whole, whole_on_host, muon, resuming)


WAYS = {
    "rows": Way((0, 2, 3), SCENARIOS, {}),
    "rows at stage 1": Way((1,), SUMMED_OR_CUT, {}),
    "more rows at stage 1": Way(
        (1,), tuple(one for one in SCENARIOS if one not in SUMMED_OR_CUT), {}
    ),
    "followed": Way((2, 3), (following,), {}),
    "undone": Way((2, 3), (undoing, undoing_idle), {}),
    "full": Way((0, 2, 3), (full_disk,), {}),
    "moves": Way((2, 3), (moving,), {}),
    "adapters": Way((2, 3), (adapting, moving_adapters, resuming_adapters), {}),
    "answers": Way((0, 2, 3), (preferences,), {}),
    "tokens of answers": Way((0, 2, 3), (preferences,), {"sequence_parallel": 2}),
    "matrices of answers": Way((2,), (preferences,), {"tensor_parallel": 2}),
    "judged answers": Way((0, 1, 2, 3), (rewarding, rewarding_otherwise), {}),
    "tokens of judged": Way((3,), (rewarding,), {"sequence_parallel": 2}),
    "matrices of judged": Way((1, 2), (rewarding,), {"tensor_parallel": 2}),
    "rejoined": Way((1, 2, 3), (rejoining,), {}),
    "tokens": Way((2, 3), SLICED_SCENARIOS, {"sequence_parallel": 2}),
    "matrices": Way((2,), SHARDED_SCENARIOS, {"tensor_parallel": 2}),
    "compiled rows": Way((0, 2), (compiled,), {}),
    "compiled tokens": Way((2,), (compiled,), {"sequence_parallel": 2}),
    "compiled matrices": Way((2,), (compiled,), {"tensor_parallel": 2}),
    "one graph": Way((2, 3), (training,), GRAPH),
    "graphs 1": Way((1,), GRAPH_SCENARIOS, GRAPH),
    "graphs 2": Way((2,), (*GRAPH_SCENARIOS, mixed), GRAPH),
    "graphs 3": Way((3,), (*GRAPH_SCENARIOS, mixed), GRAPH),
    "graphs 1 on GPUs": Way((1,), GRAPH_SCENARIOS, GRAPH, device="cuda"),
    "graphs 2 on GPUs": Way((2,), GRAPH_SCENARIOS, GRAPH, device="cuda"),
    "graphs 3 on GPUs": Way((3,), GRAPH_SCENARIOS, GRAPH, device="cuda"),
    "rows on GPUs": Way((0, 1, 2, 3), GPU_SCENARIOS, {}, device="cuda"),
    # The second pair of ranks has no rows.
    "pairs": Way((2, 3), (gradient, training), {"sequence_parallel": 2}, world_size=4),
}


# Stages through which ranks go where a test asks for them. At stage 0 a rank holds all, like one rank of torch, and
# sums gradients and writes its files as in the scenarios of rows, which have that stage.
APART = {
    "followed": (0, 1),
    "undone": (0, 1),
    "full": (1,),
    "moves": (0, 1),
    "adapters": (0, 1),
    "answers": (1,),
    "tokens": (0, 1),
    "matrices": (1,),
    "matrices of answers": (1,),
    "pairs": (0,),
}
WAYS |= {
    f"{name} at stage {stage}": replace(WAYS[name], stages=(stage,))
    for name, stages in APART.items()
    for stage in stages
}


def go_through_all(way: Way, models: Path, out: Path) -> None:
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    def make(**options: Any) -> DeepSpeedBackend:
        return DeepSpeedBackend(
            DeepSpeedConfig(device=way.device, reduce_bucket_size=2000, **options)
        )

    torch.set_num_threads(1)
    # DeepSpeed collects garbage at every start, which takes a second where all that was imported is looked at.
    gc.freeze()
    if way.in_one_graph:
        warnings.simplefilter("ignore")  # Inductor itself uses what torch has deprecated.
        if way.device == "cpu":
            deep_compile_on_cpu.install()
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
