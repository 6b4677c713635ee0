"""An adapter on every family that sees: its update, with images in prompts and later turns, is that of PEFT's model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.plugins.lora.conftest import stir
from tests.plugins.vlm.vlm_material import (
    LORA,
    NEEDS_TIMM,
    Pictures,
    Stage,
    moved,
    own_distribution,
    policy_spec,
    train_batch,
)
from transformers import AutoModelForImageTextToText

from rlhf_core.contracts import TrajectoryColumns
from rlhf_testing.tiny_vision import MORE_VISION_FAMILIES, VISION_FAMILIES, write_tiny_vision_model

peft = pytest.importorskip("peft")


def peft_gradients(
    stage: Stage, adapter: Path, batch: TrajectoryColumns
) -> dict[str, torch.Tensor | None]:
    """Gradients of the first update's loss by PEFT's model, which reads the rows one by one."""
    base = AutoModelForImageTextToText.from_pretrained(stage.path)
    model = peft.PeftModel.from_pretrained(base, adapter, is_trainable=True).eval()
    advantages = torch.from_numpy(train_batch(batch).columns["advantages"])
    losses = []
    for row, part in enumerate(advantages.split(batch.num_actions.tolist())):
        actions = torch.from_numpy(batch.actions_of(row).astype(np.int64))
        found = own_distribution(stage, model, batch, row, learns=True)
        logprobs = found.gather(1, actions[:, None])[:, 0]
        losses.append(-(part * (logprobs - logprobs.detach()).exp()).sum())
    (torch.stack(losses).sum() / len(advantages)).backward()
    prefix = "base_model.model."
    return {
        name.removeprefix(prefix): weight.grad
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def rounding(family: str, largest: float) -> float:
    """Difference of two sums in another order, by the largest gradient of a tensor. Of Gemma 4 both ours and PEFT's are
    up to 6e-5 of it away from PEFT's in float64, and 2e-5 from each other (with AVX2 and with AVX-512)."""
    return max(1e-6, 4e-5 * largest) if family == "gemma4" else 1e-6


STACKS = {"target_parameters": ("experts.gate_up_proj", "experts.down_proj")}
"""Options by which stacked experts are adapted too."""
MIXTURES = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe")
"""Families that see and have experts."""


@pytest.mark.parametrize(
    ("family", "more"),
    [
        *(
            pytest.param(family, {}, marks=NEEDS_TIMM if family == "gemma3n" else ())
            for family in (*VISION_FAMILIES, *MORE_VISION_FAMILIES)
        ),
        *((family, STACKS) for family in MIXTURES),
    ],
)
def test_an_update_is_that_of_pefts_model(tmp_path, all_plugins, family, more):
    path = write_tiny_vision_model(tmp_path / "model", family, initializer_range=0.1)
    media = tmp_path / "run" / "media"
    stage = Stage(path, media, all_plugins, policy_spec(path, media))
    backend = stage.backend(adapter=replace(LORA, options={**LORA.options, **more}))
    stir(backend)
    backend.export(tmp_path / "adapter")
    batch = stage.play(backend, prompts=2, samples=1, environment=lambda: Pictures(turns=2))

    steps = moved(backend, batch)

    expected = peft_gradients(stage, tmp_path / "adapter", batch)
    assert batch.num_media.sum() >= 2
    assert {name for name, step in steps.items() if step.any()} <= expected.keys()
    for name, gradient in expected.items():
        own = torch.zeros_like(steps[name]) if gradient is None else gradient
        bound = rounding(family, float(own.abs().max()))
        torch.testing.assert_close(steps[name], own, atol=bound, rtol=1e-4, msg=name)
    assert any(".experts." in name for name in expected) == bool(more)
    assert max(float(steps[name].abs().max()) for name in expected) > 1e-4
