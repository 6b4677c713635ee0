"""What moves in training, in every dtype: written once for every rank of DeepSpeed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from deepspeed_material import ADAM, FLOAT32_NORMS, make_batch, make_plan
from deepspeed_scenarios import Found, Place

from rlhf_core.contracts import ValueObjective

DTYPES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed": {"dtype": "bfloat16", "adapter": FLOAT32_NORMS},
}
"""What a role has of its own; the norms of a mixed one are float32 beside bfloat16 layers."""
ROLES: dict[str, dict[str, Any]] = {
    "policy": {},
    "critic": {"role": "critic", "head": "value", "objective": ValueObjective()},
}


def moving(place: Place, found: Found) -> None:
    """How far steps to advantages or returns of 1 move each weight, in every dtype, tied and untied. A critic's head is
    zero at first, so that the layers get no gradient before the second step; one critic does twenty."""
    batch = make_batch()
    ones = np.ones_like(batch.columns["returns"])
    batch = replace(batch, columns={**batch.columns, "returns": ones, "advantages": ones})
    part = place.part(batch)
    for role, dtype, family in product(ROLES, DTYPES, ("llama", "untied")):
        backend = place.start(family, optimizer=ADAM, **ROLES[role], **DTYPES[dtype])
        before = Found()
        before.keep_weights(backend)
        for _ in range(20 if (role, family) == ("critic", "llama") else 2):
            found.metrics(backend.train_step(part, make_plan(batch)))
        kind = f"{role} {dtype} {family}"
        after = Found()
        after.keep_weights(backend)
        for name, weight in after.tensors.items():
            distance = (weight.float() - before.tensors[name].float()).abs().max()
            found.tensors[f"{kind}/{name}"] = distance
        values = backend.values(part.trajectories) if role == "critic" else np.zeros(0)
        found.array(f"values {kind}", values)
        backend.close()
