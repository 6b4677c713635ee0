"""Tiny mixtures of experts whose routers prefer some experts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.contracts import TrainBatch, Trajectory, TrajectoryColumns, Turn, Uid


@pytest.fixture(scope="session")
def unbalanced(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-MoE of 4 experts, 2 a token, whose routers have larger weights than a new model's."""
    folder = tmp_path_factory.mktemp("experts") / "unbalanced"
    shutil.copytree(models["qwen3_moe"], folder)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    for name, weight in weights.items():
        if name.endswith("mlp.gate.weight"):
            weights[name] = weight * 40.0 * torch.arange(1, len(weight) + 1)[:, None]
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.fixture
def configured(unbalanced: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy the model with other entries in its config.json."""

    def copy(**entries: Any) -> Path:
        folder = tmp_path / "-".join(f"{name}_{value}" for name, value in entries.items())
        shutil.copytree(unbalanced, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | entries))
        return folder

    return copy


@pytest.fixture
def shared_batch() -> TrainBatch:
    """Three groups of three rows with a prompt of 9 tokens; a row of each group has no action."""
    rng = np.random.default_rng(0)
    rows = []
    for group in range(3):
        prompt = rng.integers(4, 100, 9)
        for sample in range(3):
            tokens = np.array([*prompt, *rng.integers(4, 100, 5)], dtype=np.int32)
            acts = sample != group
            mask = np.arange(14) >= (9 if acts else 14)
            size = int(mask.sum())
            rows.append(
                Trajectory(
                    uid=Uid(0, group, sample),
                    token_ids=tokens,
                    action_mask=mask,
                    rollout_logprobs=np.full(size, -2.0, dtype=np.float32),
                    weight_version=np.zeros(size, dtype=np.int32),
                    turns=(Turn(start=9, end=14),) if acts else (),
                    reward=1.0,
                )
            )
    trajectories = TrajectoryColumns.from_trajectories(rows)
    advantages = rng.normal(size=int(trajectories.num_actions.sum())).astype(np.float32)
    return TrainBatch(trajectories=trajectories, columns={"advantages": advantages})
