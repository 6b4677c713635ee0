"""What an update changes, and what is saved of a model that sees.

Families beyond the first ones have the marker ``matrix``.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.vlm.vlm_material import LORA, in_tower, moved, plan_for, train_batch
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from rlhf_cli.main import main
from rlhf_core.contracts import PartsTraining, ValueObjective
from rlhf_plugin_local.config import TorchBackendConfig


def hashes(backend) -> dict[str, str]:
    return {
        name: hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()
        for name, weight in backend._model.named_weights()
    }


def changed(backend, batch) -> set[str]:
    before = hashes(backend)
    backend.train_step(train_batch(batch), plan_for(batch))
    after = hashes(backend)
    return {name for name, digest in after.items() if digest != before[name]}


def test_everything_learns(stage, batch):
    backend = stage.backend()

    missing = set(hashes(backend)) - changed(backend, batch)

    # An attention's key bias moves all scores of a query alike, so that its gradient is rounding, or nothing.
    # LLaVA reads the last layer of its tower but one, as the real one does: what comes behind it has no gradient.
    # What hears in Gemma 3n is used by nobody.
    idle = ("k_proj.bias", "vision_tower.encoder.layers.2.", "vision_tower.post_layernorm")
    idle += (".audio_tower.", ".embed_audio.")
    assert {name for name in missing if not any(part in name for part in idle)} == set()


def test_a_frozen_tower_stays_as_it_is_to_the_bit(stage, batch):
    frozen = replace(stage.spec.vision, parts=PartsTraining(freeze_tower=True))
    backend = stage.backend(vision=frozen)

    found = changed(backend, batch)

    assert found
    assert not any(map(in_tower, found))


@pytest.mark.parametrize("frozen", [False, True])
def test_an_adapter_changes_its_factors_alone(stage, batch, frozen):
    vision = replace(stage.spec.vision, parts=PartsTraining(freeze_tower=frozen))
    backend = stage.backend(adapter=LORA, vision=vision)
    before = backend.logprobs(batch)

    found = changed(backend, batch)

    assert found
    assert all("lora_" in name for name in found)
    tower = stage.family.tower(backend._lm.model).modules()
    # An adapter is for linear layers; a tower may have none.
    can_adapt = any(isinstance(module, torch.nn.Linear) for module in tower)
    assert any(map(in_tower, found)) is (can_adapt and not frozen)
    np.testing.assert_array_equal(backend.base_logprobs(batch), before)
    assert np.abs(backend.logprobs(batch) - before).max() > 1e-4


def test_a_critic_sees_the_images(stage, batch):
    critic = stage.backend(role="critic", head="value", objective=ValueObjective())
    with torch.no_grad():
        critic._model.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))

    seen = critic.values(batch)

    turned = batch.select(np.arange(len(batch)))
    media = turned.media.copy()
    same = next(
        (one, other)
        for one in range(len(media))
        for other in range(len(media))
        if media[one]["length"] == media[other]["length"]
        and media[one]["width"] == media[other]["width"]
        and media[one]["sha256"].tobytes() != media[other]["sha256"].tobytes()
    )
    media["sha256"][same[0]] = media["sha256"][same[1]]
    media["num_bytes"][same[0]] = media["num_bytes"][same[1]]
    assert np.abs(critic.values(replace(turned, media=media)) - seen).max() > 1e-4


def test_a_reference_gives_what_the_policy_did(stage, backend, batch):
    reference = stage.backend(role="reference", objective=None, optimizer=None)

    np.testing.assert_array_equal(reference.logprobs(batch), backend.logprobs(batch))


def test_recomputed_layers_give_the_same_gradients(stage, batch):
    plain = moved(stage.backend(), batch)
    config = TorchBackendConfig(device="cpu", gradient_checkpointing=True)
    again = moved(stage.backend(config), batch)

    for name, part in plain.items():
        torch.testing.assert_close(again[name], part, atol=1e-6, rtol=1e-4, msg=name)


def test_a_saved_model_is_plain_and_gives_the_same(stage, batch, tmp_path):
    backend = stage.backend(optimizer=replace(stage.spec.optimizer, options={"lr": 0.1}))
    backend.train_step(train_batch(batch), plan_for(batch))

    backend.export(tmp_path / "out")

    np.testing.assert_allclose(
        stage.own_logprobs(batch, tmp_path / "out"), backend.logprobs(batch), atol=1e-5
    )
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").state_dict()
    for name, weight in backend._lm.model.state_dict().items():
        torch.testing.assert_close(saved[name], weight, atol=0, rtol=0, msg=name)
    assert type(AutoImageProcessor.from_pretrained(tmp_path / "out", backend="pil")) is type(
        AutoImageProcessor.from_pretrained(stage.path, backend="pil")
    )
    processor = "preprocessor_config.json"
    assert (tmp_path / "out" / processor).read_bytes() == (stage.path / processor).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == (
        AutoTokenizer.from_pretrained(stage.path).chat_template
    )


@pytest.mark.slow
def test_a_saved_adapter_is_plain_and_can_be_merged(stage, batch, tmp_path):
    """PEFT's folder beside its base, and the plain folder that ``rlhf merge`` makes of both, give what was trained."""
    optimizer = replace(stage.spec.optimizer, options={"lr": 1.0})
    backend = stage.backend(adapter=LORA, optimizer=optimizer)
    before = backend.logprobs(batch)
    backend.train_step(train_batch(batch), plan_for(batch))
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"

    backend.export(adapter)
    assert main(["merge", str(stage.path), str(adapter), str(merged)]) == 0

    trained = backend.logprobs(batch)
    assert np.abs(trained - before).max() > 1e-3
    for folder in (adapter, merged):
        np.testing.assert_allclose(stage.own_logprobs(batch, folder), trained, atol=1e-4)
    assert type(AutoImageProcessor.from_pretrained(merged, backend="pil")) is type(
        AutoImageProcessor.from_pretrained(stage.path, backend="pil")
    )


def test_training_state_goes_on_to_the_bit(stage, batch, tmp_path):
    adam = replace(stage.spec.optimizer, name="algorithms:adam", options={"lr": 1e-3})
    backend = stage.backend(optimizer=adam)
    backend.train_step(train_batch(batch), plan_for(batch))
    backend.save(tmp_path / "state")
    backend.train_step(train_batch(batch), plan_for(batch))

    again = stage.backend(optimizer=adam)
    again.load(tmp_path / "state")
    again.train_step(train_batch(batch), plan_for(batch))

    assert hashes(again) == hashes(backend)
