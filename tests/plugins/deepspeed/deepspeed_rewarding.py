"""What a backend does with reward models: written once for one rank of torch and every rank of DeepSpeed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from deepspeed_material import ADAMW, adapter, make_answers, make_plan
from deepspeed_scenarios import Found, Place

from rlhf_core.contracts import (
    MARGIN,
    Objective,
    RankingObjective,
    StepLabelObjective,
    TrainBatch,
)

RANKED, STEPS = RankingObjective(center_coef=0.05), StepLabelObjective()


def rewarding(place: Place, found: Found) -> None:
    """Three updates on pairs with margins, and on labels of steps; the third has one pair, or two rows."""
    _train(place, found, "ranked", RANKED, 2)
    _train(place, found, "steps", STEPS, 1)


def rewarding_otherwise(place: Place, found: Found) -> None:
    """The first of them under an adapter, and with bfloat16 parameters."""
    _train(place, found, "adapted", RANKED, 2, adapter=adapter("lora", rank=4))
    _train(place, found, "bfloat16", RANKED, 2, dtype="bfloat16")


def _train(
    place: Place, found: Found, name: str, objective: Objective, unit: int, **changes: Any
) -> None:
    spec = {"role": "reward_model", "head": "score", "objective": objective, **changes}
    backend = place.start(optimizer=ADAMW, max_tokens_per_micro_batch=50, **spec)
    for seed, pairs in ((0, 4), (1, 4), (2, 1)):
        batch = _make_judged(seed, pairs)
        part = place.part(batch, unit)
        outcome = backend.train_step(part, make_plan(batch, return_values=True))
        found.metrics(outcome)
        found.array(f"seen/{name}/{seed}", outcome.values)
        found.array(f"scores/{name}/{seed}", backend.values(part.trajectories))
    backend.export(place.folder / name)
    backend.close()


def _make_judged(seed: int, pairs: int) -> TrainBatch:
    """Pairs with margins, whose tokens have labels."""
    answers, draw = make_answers(seed, pairs), np.random.default_rng(seed + 100)
    margins = draw.normal(size=pairs).astype(np.float32).repeat(2)
    size = int(answers.trajectories.num_actions.sum())
    return TrainBatch(
        trajectories=replace(answers.trajectories, rewards={MARGIN: margins}),
        columns={"labels": draw.uniform(size=size).astype(np.float32)},
    )
