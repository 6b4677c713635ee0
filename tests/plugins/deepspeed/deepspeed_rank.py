"""One of two ranks: ``python deepspeed_rank.py MODELS OUT``, with RANK and the like in the environment.

It goes through all scenarios at all stages and writes what came out, rank by rank, as safetensors and JSON.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed_scenarios import SCENARIOS, Found, Place, run
from safetensors.torch import load_file, save_file

STAGES = (0, 1, 2, 3)
WORLD_SIZE = 2


def write(found: Found, path: Path) -> None:
    save_file(found.tensors, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(found.facts))


def read(path: Path) -> Found:
    found = Found()
    found.facts = json.loads(path.with_suffix(".json").read_text())
    found.tensors = load_file(path.with_suffix(".safetensors"))
    return found


def go_through_all(models: Path, out: Path) -> None:
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    def make(**options: Any) -> DeepSpeedBackend:
        return DeepSpeedBackend(DeepSpeedConfig(device="cpu", reduce_bucket_size=2000, **options))

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for stage in STAGES:
        for scenario in SCENARIOS:
            folder = out / f"stage{stage}" / scenario.__name__
            place = Place(partial(make, zero_stage=stage), models, folder, rank, WORLD_SIZE)
            write(run(scenario, place), folder / f"rank{rank}")


if __name__ == "__main__":
    go_through_all(Path(sys.argv[1]), Path(sys.argv[2]))
