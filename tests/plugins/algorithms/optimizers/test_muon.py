"""Muon for hidden matrices, AdamW for the rest."""

import copy

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rlhf_core import ConfigError
from rlhf_plugin_algorithms.optimizers import MuonConfig
from rlhf_plugin_algorithms.optimizers.muon import Muon
from rlhf_plugin_algorithms.optimizers.muon_adamw import MuonAdamW
from rlhf_testing.errors import has_code


def made(model, **options):
    muon = Muon(MuonConfig(**options))
    return muon.create(muon.parameter_groups(model.named_parameters()))


def names(groups):
    return {group.name: [name for name, _ in group.named_parameters] for group in groups}


def test_each_parameter_is_in_the_group_that_fits_it(SmallModel):
    groups = Muon(MuonConfig()).parameter_groups(SmallModel().named_parameters())

    assert names(groups) == {
        # The factors of low-rank adapters are matrices inside of the model like others.
        "muon": ["q_proj.weight", "lora_A.weight", "lora_B.weight"],
        # Experts that are stacked in one parameter are no matrix.
        "adam_decay": ["experts", "embed_tokens.weight", "value_head.weight"],
        "adam_no_decay": ["q_proj.bias", "norm.weight", "norm.bias", "value_head.bias"],
    }


def test_a_tied_embedding_is_taken_once_and_by_adam(SmallModel):
    named = [
        one
        for one in SmallModel().named_parameters(remove_duplicate=False)
        if one[0] in ("lm_head.weight", "embed_tokens.weight", "q_proj.weight")
    ]

    groups = Muon(MuonConfig()).parameter_groups(named)

    assert names(groups) == {"muon": ["q_proj.weight"], "adam_decay": ["embed_tokens.weight"]}


@pytest.mark.parametrize(
    ("name", "is_adams"),
    [
        ("model.embed_tokens.weight", True),
        ("transformer.wte.weight", True),
        ("gpt_neox.embed_in.weight", True),
        ("lm_head.weight", True),
        ("value_head.weight", True),
        ("score.weight", True),
        ("lm_head.lora_A.weight", True),
        ("model.layers.0.self_attn.q_proj.weight", False),
        ("model.layers.0.mlp.down_proj.weight", False),
        ("model.layers.0.mlp.gate.weight", False),
        ("model.layers.0.multihead_attn.out_proj.weight", False),
        ("model.layers.0.self_attn.q_proj.lora_B.default.weight", False),
    ],
)
def test_names_of_common_models(name, is_adams):
    other = ("hidden.weight", nn.Parameter(torch.zeros(2, 2)))

    groups = Muon(MuonConfig()).parameter_groups([(name, nn.Parameter(torch.zeros(3, 2))), other])

    assert (name in names(groups)["muon"]) is not is_adams


def test_patterns_say_what_adam_updates(SmallModel):
    groups = Muon(MuonConfig(adam_names=("lora_*",))).parameter_groups(
        SmallModel().named_parameters()
    )

    assert names(groups)["muon"] == ["embed_tokens.weight", "q_proj.weight", "value_head.weight"]
    assert names(groups)["adam_decay"] == ["experts", "lora_A.weight", "lora_B.weight"]


def test_a_model_without_a_matrix_for_muon_is_refused():
    named = [("embed.weight", nn.Parameter(torch.zeros(2, 2)))]

    with pytest.raises(
        ConfigError, match=r"1 trainable.*--optim adam", check=has_code("optimizer/no-matrix")
    ):
        Muon(MuonConfig()).parameter_groups(named)


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(("shape", "nesterov"), [((6, 4), True), ((3, 8), False)])
def test_a_matrix_moves_exactly_as_under_torchs_muon(adjust_lr, shape, nesterov):
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = made(
        nn.ParameterDict({"hidden": ours}),
        lr=0.02,
        momentum=0.9,
        nesterov=nesterov,
        ns_steps=4,
        weight_decay=0.1,
        adjust_lr=adjust_lr,
        adam_lr=0.01,
    )
    reference = torch.optim.Muon(
        [theirs],
        lr=0.02,
        momentum=0.9,
        nesterov=nesterov,
        ns_steps=4,
        weight_decay=0.1,
        adjust_lr_fn=adjust_lr,
    )

    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        gradient = torch.randn(shape, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()

    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, start)


def test_everything_else_moves_exactly_as_under_torchs_adamw(SmallModel):
    ours, theirs = SmallModel(), SmallModel()
    optimizer = made(
        ours, lr=0.02, adam_lr=0.01, adam_betas=(0.8, 0.9), adam_eps=1e-6, weight_decay=0.1
    )
    groups = names(Muon(MuonConfig()).parameter_groups(theirs.named_parameters()))
    parameters = dict(theirs.named_parameters())
    reference = torch.optim.AdamW(
        [
            {"params": [parameters[name] for name in groups["adam_decay"]], "weight_decay": 0.1},
            {"params": [parameters[name] for name in groups["adam_no_decay"]], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.8, 0.9),
        eps=1e-6,
        fused=True,
    )

    ours.learn(optimizer, 4)
    theirs.learn(reference, 4)

    moved = dict(ours.named_parameters())
    for name in groups["adam_decay"] + groups["adam_no_decay"]:
        assert torch.equal(moved[name], parameters[name]), name


def test_an_update_is_near_orthogonal_with_the_size_that_was_asked_for():
    """Equal steps in all directions, and the root of the mean square of an AdamW update: 0.2 times lr."""
    parameter = nn.Parameter(torch.zeros(12, 30))
    optimizer = made(nn.ParameterDict({"hidden": parameter}), lr=0.1)
    parameter.grad = torch.randn(12, 30, generator=torch.Generator().manual_seed(0))

    optimizer.step()

    update = parameter.detach()
    singular = torch.linalg.svdvals(update) / (0.1 * 0.2 * 30**0.5)
    # Five iterations leave singular values between about 0.7 and 1.2.
    assert 0.6 < float(singular.min()) <= float(singular.max()) < 1.3
    assert float(update.square().mean().sqrt()) == pytest.approx(0.02, rel=0.25)


def test_a_quadratic_falls(SmallModel):
    model = SmallModel()

    losses = model.learn(made(model, lr=0.05), 100)

    assert losses[-1] < 0.05 * losses[0]


def test_each_group_has_its_learning_rate_and_the_schedule_scales_it(SmallModel):
    model = SmallModel()
    optimizer = made(model, lr=0.3, adam_lr=0.1)
    assert [(g["name"], g["lr"]) for g in optimizer.param_groups] == [
        ("muon", 0.3),
        ("adam_decay", 0.1),
        ("adam_no_decay", 0.1),
    ]
    assert [group["lr"] for group in made(SmallModel(), lr=0.3).param_groups] == [0.3] * 3
    before = copy.deepcopy(model.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    model.learn(optimizer, 1)

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_parameters_without_a_gradient_stay(SmallModel):
    model = SmallModel()
    optimizer = made(model, lr=0.1)
    before = model.norm.weight.detach().clone()
    model.q_proj.weight.grad = torch.ones_like(model.q_proj.weight)

    optimizer.step()

    assert torch.equal(model.norm.weight, before)
    assert set(optimizer.state) == {model.q_proj.weight}


def test_saved_and_loaded_it_goes_on_to_the_bit(SmallModel):
    straight = SmallModel()
    optimizer = made(straight, lr=0.05, weight_decay=0.1)
    straight.learn(optimizer, 3)
    resumed = SmallModel()
    resumed.load_state_dict(straight.state_dict())
    other = made(resumed, lr=0.05, weight_decay=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    straight.learn(optimizer, 3)
    resumed.learn(other, 3)

    for (name, tensor), again in zip(
        straight.state_dict().items(), resumed.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, again), name


def test_without_its_state_it_would_not_go_on_as_before(SmallModel):
    """So that the test above can fail."""
    straight = SmallModel()
    optimizer = made(straight, lr=0.05)
    straight.learn(optimizer, 3)
    resumed = SmallModel()
    resumed.load_state_dict(straight.state_dict())

    straight.learn(optimizer, 1)
    resumed.learn(made(resumed, lr=0.05), 1)

    for name in ("q_proj.weight", "norm.weight"):
        first, second = (model.get_parameter(name) for model in (straight, resumed))
        assert not torch.equal(first, second), name


def test_a_copy_of_the_optimizer_works_by_itself(SmallModel):
    model = SmallModel()
    optimizer = made(model, lr=0.05)
    model.learn(optimizer, 2)
    pair = copy.deepcopy({"model": model, "optimizer": optimizer})

    first = model.learn(optimizer, 3)
    second = pair["model"].learn(pair["optimizer"], 3)

    assert first == second


def test_step_returns_what_its_closure_does(SmallModel):
    model = SmallModel()
    optimizer = made(model, lr=0.05)

    def closure():
        loss = model.loss()
        loss.backward()
        return loss.detach()

    before = model.loss().detach()
    assert optimizer.step(closure) == before
    assert model.loss().detach() < before


def test_a_later_group_is_adamws_unless_it_says_otherwise():
    optimizer = MuonAdamW([{"params": [nn.Parameter(torch.ones(2, 2))], "algorithm": "muon"}])

    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})

    assert [group["algorithm"] for group in optimizer.param_groups] == ["muon", "adamw"]
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.999)


@pytest.mark.parametrize(
    ("group", "match"),
    [
        ({"params": [nn.Parameter(torch.ones(3))], "algorithm": "muon"}, r"shape \(3,\)"),
        ({"params": [nn.Parameter(torch.ones(3))], "algorithm": "sgd"}, "muon or adamw"),
    ],
)
def test_groups_that_no_algorithm_fits_are_refused(group, match):
    with pytest.raises(ValueError, match=match):
        MuonAdamW([group])


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0.0},
        {"momentum": 1.0},
        {"ns_steps": 0},
        {"adjust_lr": "none"},
        {"adam_lr": 0.0},
        {"adam_betas": (0.9, 1.0)},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        MuonConfig(**wrong)


def test_the_original_scale_wants_a_learning_rate_for_adam():
    with pytest.raises(ValidationError, match="set adam_lr"):
        MuonConfig(adjust_lr="original", lr=0.02)
    assert MuonConfig(adjust_lr="original", lr=0.02, adam_lr=1e-6).adam_lr == 1e-6
