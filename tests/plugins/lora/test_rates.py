"""LoRA+: B learns at a multiple of the optimizer's rate."""

import pytest
import torch
from peft import PeftModel
from peft.optimizers import create_loraplus_optimizer
from tests.plugins.lora.conftest import plain_model, trained
from tests.plugins.lora.test_training import moved, peft_gradient
from tests.plugins.torch.conftest import FAST_ADAM, make_batch, make_plan

from rlhf_core import PluginError
from rlhf_core.contracts import ComponentRef, ScheduleSpec
from rlhf_testing.errors import has_code


def optimizer_of(name, **options):
    return ComponentRef(kind="rlhf_optimizers", name=f"algorithms:{name}", options=options)


def test_updates_are_those_of_pefts_own_optimizer(start, spec_of, models, train, tmp_path):
    """AdamW, two updates, of which the second has half the learning rate."""
    spec = spec_of(
        options={"lr_ratio": 16.0},
        max_grad_norm=None,
        optimizer=optimizer_of("adam", lr=1e-3, betas=(0.9, 0.99), eps=1e-6),
        schedule=ScheduleSpec(factors=(1.0, 0.5)),
    )
    backend = start(spec)
    backend.export(tmp_path)
    peft = PeftModel.from_pretrained(plain_model(models["qwen3"]), tmp_path, is_trainable=True)
    theirs = create_loraplus_optimizer(
        peft, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16.0, betas=(0.9, 0.99), eps=1e-6
    )

    for seed, factor in ((0, 1.0), (1, 0.5)):
        batch = make_batch(seed=seed)
        assert spec.schedule.factor(seed) == factor
        backend.train_step(batch, make_plan(batch))
        theirs.zero_grad()
        peft_gradient(peft, batch)
        for group in theirs.param_groups:
            group["lr"] *= factor
        theirs.step()

    expected = {
        name.removeprefix("base_model.model."): weight.detach()
        for name, weight in peft.named_parameters()
        if weight.requires_grad
    }
    # An element whose gradient is rounding may be moved by Adam to either side, by up to the learning rate of A.
    torch.testing.assert_close(trained(backend), expected, atol=2e-3, rtol=0)
    far = sum(int(((trained(backend)[n] - w).abs() > 1e-5).sum()) for n, w in expected.items())
    assert far <= 1e-3 * sum(weight.numel() for weight in expected.values())


@pytest.mark.parametrize("name", ["adam", "sgd", "muon"])
def test_every_optimizer_moves_b_by_the_ratio_and_a_as_before(start, spec_of, name):
    steps = {}
    for ratio in (1.0, 4.0):
        optimizer = optimizer_of(name, lr=1e-3)
        backend = start(
            spec_of(options={"lr_ratio": ratio}, max_grad_norm=None, optimizer=optimizer)
        )
        steps[ratio] = moved(backend, make_batch())
        assert backend._updater.peak_lrs[0] == 1e-3

    for key, step in steps[1.0].items():
        factor = 4.0 if ".lora_B." in key else 1.0
        torch.testing.assert_close(steps[4.0][key], factor * step, atol=1e-6, rtol=1e-3)


def test_a_restored_run_with_a_ratio_goes_on_to_the_bit(start, spec_of, train, tmp_path):
    spec = spec_of(options={"lr_ratio": 16.0}, optimizer=optimizer_of("adam", lr=1e-3))
    straight = start(spec)
    train(straight)
    straight.save(tmp_path)
    expected = train(straight, range(2, 4))
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path)

    assert train(resumed, range(2, 4)) == expected
    torch.testing.assert_close(trained(resumed), trained(straight), atol=0, rtol=0)


def test_an_optimizer_that_drops_the_ratio_is_refused(start, spec_of):
    with pytest.raises(
        PluginError,
        match=r"\[1\.0\]; expected \[1\.0, 2\.0\]",
        check=has_code("optimizer/options-lost"),
    ):
        start(spec_of(options={"lr_ratio": 2.0}, optimizer=FAST_ADAM))
