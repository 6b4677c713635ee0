"""Layers that compute with the keys and values of earlier ones: Gemma 3n and Gemma 4."""

import numpy as np
import pytest
import torch
from tests.plugins.lora.test_training import peft_gradient
from tests.plugins.torch.models.test_architectures import ACCEPTED, COMMON
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_testing.tiny import tiny_tokenizer
from rlhf_torch.ranks.passes import nothing, rows_or_stand_in

FAMILIES = ("gemma3n_text", "gemma4_text")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for family in FAMILIES:
        config = AutoConfig.for_model(family, **{**COMMON, **ACCEPTED[family]})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        found[family] = tmp_path_factory.mktemp("shared") / family
        model.save_pretrained(found[family])
        tiny_tokenizer().save_pretrained(found[family])
    return found


def plain(path):
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_is_that_of_a_plain_loop(
    folders, start, sgd_spec, make_batch, make_plan, family, recompute
):
    backend = start(sgd_spec(folders[family]), gradient_checkpointing=recompute)
    before = {name: weight.detach().clone() for name, weight in backend._model.named_weights()}
    batch = make_batch()

    backend.train_step(batch, make_plan(batch))

    found = peft_gradient(plain(folders[family]), batch)
    expected = {name: gradient for name, gradient in found.items() if gradient is not None}
    moved = {name: before[name] - each.detach() for name, each in backend._model.named_weights()}
    still = {name: weight for name, weight in moved.items() if name not in expected}
    assert all(not weight.any() for weight in still.values())
    # Transformers' own float32 gradients are 4e-6 from those in float64 here: five layers with experts amplify a
    # hundred roundings, of 6e-8 each, of numbers as large as the largest gradient.
    near = max(1e-6, 1e-5 * max(float(each.abs().max()) for each in expected.values()))
    torch.testing.assert_close(
        {name: moved[name] for name in expected}, expected, atol=near, rtol=1e-4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_without_rows_has_a_gradient_of_zero(folders, make_batch, family):
    """Padding has an embedding of zeros, of which Gemma 3n's magnitude has no gradient."""
    model = plain(folders[family])
    row = rows_or_stand_in(make_batch().trajectories, np.zeros(0, dtype=np.int64))
    assert not model.get_input_embeddings().weight[model.config.pad_token_id].any()

    nothing(model(torch.from_numpy(row.tokens_of(0).astype(np.int64))[None]).logits).backward()

    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(gradients) > 50
    assert not any(gradient.isnan().any() or gradient.any() for gradient in gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restored_run_goes_on_to_the_bit_and_its_export_is_plain(
    folders, start, make_spec, steps, tmp_path, family
):
    spec = make_spec(folders[family])
    straight = start(spec)
    steps(straight, range(2))
    straight.save(tmp_path / "saved")
    expected = steps(straight, range(2, 4))
    resumed = start(spec)

    resumed.load(tmp_path / "saved")

    assert steps(resumed, range(2, 4)) == expected
    resumed.export(tmp_path / "out")
    exported = plain(tmp_path / "out").state_dict()
    for name, weight in straight._model.named_weights():
        torch.testing.assert_close(exported[name], weight.detach(), atol=0, rtol=0)
