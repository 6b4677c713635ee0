"""Parts of an image-text model: which of them an update moves, and by how much.

Families beyond the first ones have the marker ``matrix``.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.vlm.vlm_material import LORA, Pictures, moved

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import ComponentRef, PartsTraining, ValueObjective
from rlhf_testing.errors import has_code
from rlhf_torch.vision.parts import PROJECTOR, TEXT, TOWER, parts_of

FAMILIES = ("qwen3_vl", "qwen3_5", "llava", "gemma3")
INSIDE = ("qwen3_vl", "qwen3_5")
"""Families whose projector lies inside of the tower."""
PROJECTORS = (".embed_vision.", ".merger.", ".deepstack_merger_list.", ".multi_modal_projector.")
TOWERS = (".visual.", ".vision_tower.")
IDLE = ("k_proj.bias", "vision_tower.encoder.layers.2.", "vision_tower.post_layernorm")
"""Weights of which the gradient is rounding, or nothing (``test_training.test_everything_learns``)."""

of_families = pytest.mark.parametrize("family", FAMILIES, indirect=True, scope="session")
of_one_family = pytest.mark.parametrize("family", ["qwen3_vl"], indirect=True, scope="session")


def part_by_name(name: str) -> str:
    if any(word in name for word in PROJECTORS):
        return PROJECTOR
    return TOWER if any(word in name for word in TOWERS) else TEXT


def trained(stage, **parts):
    return stage.backend(vision=replace(stage.spec.vision, parts=PartsTraining(**parts)))


def test_every_parameter_is_in_the_part_that_its_name_says(stage, backend):
    """All families; the newline of LLaVA-NeXT and the connector of Idefics3 are of the projector."""
    found = parts_of(stage.family, backend._lm.model)

    others = {"image_newline": PROJECTOR, ".connector.": PROJECTOR, ".vision_model.": TOWER}
    for name, part in found.items():
        wanted = next((of for word, of in others.items() if word in name), part_by_name(name))
        assert part == wanted, name
    assert set(found.values()) == {TOWER, PROJECTOR, TEXT}


FROZEN = {
    "projector": ({"freeze_projector": True}, {TOWER, TEXT}),
    "language model": ({"freeze_text": True}, {TOWER, PROJECTOR}),
    "all but the projector": (
        {"freeze_tower": True, "freeze_projector": False, "freeze_text": True},
        {PROJECTOR},
    ),
    "all but the tower": ({"freeze_projector": True, "freeze_text": True}, {TOWER}),
    "all but the text": ({"freeze_tower": True, "freeze_projector": True}, {TEXT}),
}


@of_families
@pytest.mark.parametrize(("parts", "left"), FROZEN.values(), ids=FROZEN)
def test_exactly_the_parts_that_are_left_move(stage, batch, parts, left):
    steps = moved(trained(stage, **parts), batch)

    for name, step in steps.items():
        if part_by_name(name) not in left:
            assert not step.any(), name
        elif not any(word in name for word in IDLE):
            assert step.any(), name


@of_families
def test_a_projector_inside_of_a_frozen_tower_is_frozen_unless_it_is_trained_by_name(
    stage, batch, family
):
    steps = moved(trained(stage, freeze_tower=True), batch)

    moving = any(step.any() for name, step in steps.items() if part_by_name(name) == PROJECTOR)
    assert moving is (family not in INSIDE)


@of_families
def test_a_step_of_tower_and_projector_is_their_factor_of_it(stage, batch):
    whole = moved(stage.backend(), batch)
    steps = moved(trained(stage, tower_rate=0.25, projector_rate=4.0), batch)

    rates = {TOWER: 0.25, PROJECTOR: 4.0, TEXT: 1.0}
    for name, step in steps.items():
        wanted = rates[part_by_name(name)] * whole[name]
        # A step is read as a difference of weights, which float32 rounds.
        torch.testing.assert_close(step, wanted, atol=2e-6, rtol=1e-5, msg=name)


@of_one_family
def test_a_factor_of_a_part_multiplies_that_of_an_adapter(stage):
    lora = replace(LORA, options={"rank": 4, "lr_ratio": 16.0})
    vision = replace(stage.spec.vision, parts=PartsTraining(tower_rate=0.5))
    plain = stage.backend(adapter=lora)._model.named_trainable()

    named = stage.backend(adapter=lora, vision=vision)._model.named_trainable()

    assert [name for name, _ in named] == [name for name, _ in plain]
    for name, _ in named:
        part = 0.5 if part_by_name(name) == TOWER else 1.0
        assert named.rates.get(name, 1.0) == part * plain.rates.get(name, 1.0)
    assert set(named.rates.values()) == {0.5, 8.0, 16.0}


@of_families
def test_under_an_adapter_factors_of_a_frozen_part_stay(stage, batch):
    vision = replace(stage.spec.vision, parts=PartsTraining(freeze_text=True))
    backend = stage.backend(adapter=LORA, vision=vision)

    found = {name for name, step in moved(backend, batch).items() if step.any()}

    assert found
    assert all("lora_" in name and part_by_name(name) != TEXT for name in found)


@of_one_family
def test_rows_without_images_train_nothing_beside_a_frozen_language_model(stage, batch):
    """The rows are in micro-batches of their own, whose loss depends on no trained weight."""

    class Blind(Pictures):
        def _message(self, words: str, count: int) -> list[dict]:
            return super()._message(words, count if self.task.uid.prompt % 2 else 0)

    mixed = stage.play(stage.backend(), environment=Blind)
    blind = np.flatnonzero(mixed.num_media == 0)
    assert 0 < len(blind) < len(mixed)
    vision = replace(stage.spec.vision, parts=PartsTraining(freeze_text=True))

    steps = moved(stage.backend(vision=vision, max_tokens_per_micro_batch=1), mixed)
    alone = moved(stage.backend(vision=vision), mixed.select(blind))

    assert any(step.any() for step in steps.values())
    assert not any(step.any() for step in alone.values())


@of_one_family
def test_a_critic_beside_a_frozen_language_model_learns_by_its_head(stage):
    vision = replace(stage.spec.vision, parts=PartsTraining(freeze_tower=True, freeze_text=True))
    spec = {"role": "critic", "head": "value", "objective": ValueObjective()}

    with pytest.raises(
        ConfigError, match="projector", check=has_code("training/nothing-trainable")
    ):
        stage.backend(vision=vision, **spec)
    parts = replace(vision.parts, freeze_projector=False)
    critic = stage.backend(vision=replace(vision, parts=parts), **spec)

    names = [name for name, _ in critic._model.named_trainable()]
    assert {part_by_name(name) for name in names if "value_head" not in name} == {PROJECTOR}
    assert any("value_head" in name for name in names)


@of_one_family
def test_what_leaves_nothing_to_train_is_refused_with_the_way_out(stage):
    with pytest.raises(
        ConfigError,
        match=r"freeze_language_model.*freeze_projector false trains",
        check=has_code("training/nothing-trainable"),
    ):
        trained(stage, freeze_tower=True, freeze_text=True)
    with pytest.raises(
        ConfigError,
        match=r"projector_lr_ratio is 0\.5.*freeze_projector false",
        check=has_code("config/frozen-part"),
    ):
        trained(stage, freeze_tower=True, projector_rate=0.5)
    trained(stage, freeze_tower=True, tower_rate=0.5)


@of_one_family
def test_a_factor_of_a_part_that_an_adapter_leaves_out_is_refused(stage):
    lora = ComponentRef(
        kind="rlhf_model_adapters",
        name="lora:lora",
        options={"rank": 4, "target": [r".*language_model.*\.q_proj"]},
    )
    vision = replace(stage.spec.vision, parts=PartsTraining(tower_rate=0.5))
    with pytest.raises(
        ConfigError, match="the visual encoder of the policy", check=has_code("config/frozen-part")
    ):
        stage.backend(adapter=lora, vision=vision)


@of_one_family
def test_a_family_without_a_projector_obeys_the_frozen_tower_alone(stage, monkeypatch):
    base = type(stage.family).__mro__[1]
    monkeypatch.delattr(base, "projector")

    trained(stage, freeze_tower=True)
    with pytest.raises(PluginError, match="QwenVl", check=has_code("plugin/no-torch-part")):
        trained(stage, freeze_text=True)


@of_one_family
def test_states_of_training_with_factors_go_on_to_the_bit(stage, batch, tmp_path):
    adam = ComponentRef(kind="rlhf_optimizers", name="algorithms:adam", options={"lr": 1e-3})
    vision = replace(stage.spec.vision, parts=PartsTraining(tower_rate=0.5, freeze_projector=True))
    backend = stage.backend(optimizer=adam, vision=vision)
    moved(backend, batch)
    backend.save(tmp_path / "state")
    second = moved(backend, batch)

    again = stage.backend(optimizer=adam, vision=vision)
    again.load(tmp_path / "state")

    for name, step in moved(again, batch).items():
        torch.testing.assert_close(step, second[name], atol=0, rtol=0, msg=name)
