"""One of several ranks that train a model with images: ``python deepspeed_seeing.py FAMILY FOLDER CASE...``.

It writes ``rankN.json`` into the folder: for each case the largest differences from one rank of torch.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tests.importable_torchvision  # noqa: F401  # before what imports torchvision
import torch
from tests.plugins.vlm.vlm_material import (
    OBJECTIVE,
    SGD,
    VLM,
    Pictures,
    Stage,
    in_tower,
    plan_for,
    train_batch,
)

from rlhf_core.contracts import PartsTraining, RoleSpec, TrainBatch, VisionSpec
from rlhf_core.plugins import load

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ALL, FROZEN = PartsTraining(), PartsTraining(freeze_tower=True)
PARTS = PartsTraining(freeze_text=True, projector_rate=4.0, tower_rate=0.5)
"""Tower and projector alone are trained, each at a rate of its own."""
CASES = {
    "fsdp": (None, ALL),
    "fsdp frozen": (None, FROZEN),
    "fsdp parts": (None, PARTS),
    "0": (0, ALL),
    "1": (1, ALL),
    "2": (2, ALL),
    "3": (3, ALL),
    "3 frozen": (3, FROZEN),
    "2 frozen": (2, FROZEN),
    "0 parts": (0, PARTS),
    "1 parts": (1, PARTS),
    "2 parts": (2, PARTS),
    "3 parts": (3, PARTS),
}


class Sometimes(Pictures):
    """``Pictures``, or its words alone for every third prompt."""

    def _message(self, words: str, count: int) -> list[dict]:
        if self.task.uid.prompt % 3 == 0:
            return [{"role": "user", "content": f"{words} {self.played}"}]
        return super()._message(words, count)


def part_of(whole: TrainBatch, rows: np.ndarray) -> TrainBatch:
    trajectories = whole.trajectories
    actions = trajectories.action_index(rows)
    columns = {name: column[actions] for name, column in whole.columns.items()}
    return TrainBatch(trajectories=trajectories.select(rows), columns=columns)


def dealt(whole: TrainBatch) -> tuple[TrainBatch, np.ndarray]:
    """This rank's rows: the last rank has those without images alone, the first all others."""
    blind = whole.trajectories.num_media == 0
    rows = np.flatnonzero(blind if RANK == WORLD - 1 else ~blind)
    return part_of(whole, rows), rows


def backend_at(zero: int | None) -> Any:
    """Return DeepSpeed's backend at a stage; None: that of FSDP."""
    if zero is None:
        from rlhf_plugin_fsdp.backend import FsdpBackend
        from rlhf_plugin_fsdp.config import FsdpConfig

        return FsdpBackend(FsdpConfig(device="cpu"))
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    return DeepSpeedBackend(DeepSpeedConfig(zero_stage=zero, device="cpu"))


def differences(
    stage: Stage, whole: TrainBatch, zero: int | None, parts: PartsTraining
) -> dict[str, float]:
    vision = replace(stage.spec.vision, parts=parts)
    spec = replace(stage.spec, vision=vision, max_tokens_per_micro_batch=150)
    torch_backend = stage.backend(vision=vision, max_tokens_per_micro_batch=150)
    backend = backend_at(zero)
    backend.setup(spec, stage.plugins)
    mine, rows = dealt(whole)
    actions = whole.trajectories.action_index(rows)
    found = {}
    wanted = torch_backend.logprobs(whole.trajectories)[actions]
    found["before"] = float(np.abs(backend.logprobs(mine.trajectories) - wanted).max(initial=0))
    start = {name: weight.clone() for name, weight in weights_of(torch_backend).items()}
    plan = plan_for(whole.trajectories)
    torch_backend.train_step(whole, plan)
    backend.train_step(mine, plan)
    ours, theirs = weights_of(backend), weights_of(torch_backend)
    found["weights"] = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    moved = {name: float((theirs[name] - start[name]).abs().max()) for name in theirs}
    found["tower_moved"] = max(size for name, size in moved.items() if in_tower(name))
    found["text_moved"] = max(size for name, size in moved.items() if ".language_model." in name)
    wanted = torch_backend.logprobs(whole.trajectories)[actions]
    found["after"] = float(np.abs(backend.logprobs(mine.trajectories) - wanted).max(initial=0))
    found["same_names"] = float(ours.keys() == theirs.keys())
    backend.close()
    return found


def weights_of(backend) -> dict[str, torch.Tensor]:
    return {
        name: weight.detach().clone()
        for bucket in backend.buckets()
        for name, weight in bucket.items()
    }


def staged(family: str, folder: Path) -> Stage:
    spec = RoleSpec(
        role="policy",
        model_path=str(folder / family),
        objective=OBJECTIVE,
        optimizer=replace(SGD, options={"lr": 0.1}),
        max_grad_norm=None,
        vision=VisionSpec(component=VLM, media_folder=str(folder / "media")),
    )
    return Stage(folder / family, folder / "media", load(), spec)


def main(family: str, folder: Path, *cases: str) -> None:
    torch.set_num_threads(1)
    stage = staged(family, folder)
    # Every rank plays the same episodes, of which two prompts of six have no images.
    batch = stage.play(stage.backend(), prompts=6, samples=1, environment=Sometimes)
    whole = train_batch(batch)
    found = {name: differences(stage, whole, *CASES[name]) for name in cases}
    found["blind"] = int((batch.num_media == 0).sum())
    found["seeing"] = int((batch.num_media > 0).sum())
    (folder / f"rank{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
