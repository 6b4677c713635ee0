"""One of several ranks, with RANK and the like in the environment.

It goes through the scenarios of a way, which are those of the DeepSpeed backend, and writes what came out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "deepspeed"))

import deepspeed_scenarios as scenarios
from deepspeed_adapting import adapting, moving_adapters, resuming_adapters
from deepspeed_results import write
from deepspeed_undoing import undoing, undoing_idle

Scenario = Callable[[scenarios.Place, scenarios.Found], None]

KEPT = {"reshard_after_forward": False}


def kept_training(place: scenarios.Place, found: scenarios.Found) -> None:
    """The usual training, with weights that stay between forward and backward pass."""
    scenarios.training(place, found, options=KEPT)


def kept_scoring(place: scenarios.Place, found: scenarios.Found) -> None:
    """Log-probs before and after an update of a role whose weights stay after a pass."""
    backend = place.start(options=KEPT)
    rows = place.part(scenarios.make_batch()).trajectories
    found.array("before", backend.logprobs(rows))
    scenarios.steps(place, backend, (0,))
    found.array("after", backend.logprobs(rows))
    found.keep_weights(backend)
    backend.close()


SCENARIOS: tuple[Scenario, ...] = (
    scenarios.gradient,
    scenarios.same_prompts,
    scenarios.critic,
    scenarios.training,
    scenarios.mixed,
    scenarios.recomputing,
    scenarios.experts,
    scenarios.balanced,
    scenarios.replayed,
    scenarios.separate_experts,
    scenarios.resuming,
    scenarios.few_rows,
    scenarios.reference,
    scenarios.refused,
    scenarios.resting,
    scenarios.untied,
    scenarios.whole,
    scenarios.muon,
    kept_training,
    kept_scoring,
)


@dataclass(frozen=True)
class Way:
    """How many ranks go through which scenarios."""

    scenarios: tuple[Scenario, ...]
    world_size: int = 2


WAYS = {
    "rows": Way(SCENARIOS),
    "followed": Way((scenarios.following,)),
    "undone": Way((undoing, undoing_idle)),
    "adapters": Way((adapting, moving_adapters, resuming_adapters)),
    "four": Way((scenarios.training, scenarios.muon, scenarios.rejoining), world_size=4),
    "compiled": Way((scenarios.compiled,)),
}


def go_through_all(way: Way, models: Path, out: Path) -> None:
    from rlhf_plugin_fsdp.backend import FsdpBackend
    from rlhf_plugin_fsdp.config import FsdpConfig

    def make(**options: Any) -> FsdpBackend:
        return FsdpBackend(FsdpConfig(device="cpu", **options))

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for scenario in way.scenarios:
        folder = out / scenario.__name__
        place = scenarios.Place(make, models, folder, rank, way.world_size)
        write(scenarios.run(scenario, place), folder / f"rank{rank}")
