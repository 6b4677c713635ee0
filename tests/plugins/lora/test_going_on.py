"""An adapter continues from a PEFT folder, with the folder's adapter as its reference."""

import json
import re

import numpy as np
import pytest
import torch
from peft import PeftModel
from tests.plugins.lora.conftest import logits_of, own_logits, plain_model, trained
from tests.plugins.peft_folders import write_adapter  # noqa: F401
from tests.plugins.torch.conftest import make_trajectories

from rlhf_core import ConfigError
from rlhf_plugin_lora.dora import DoraOptions
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_plugin_lora.qlora import QloraOptions
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

KINDS = {
    "plain": {},
    "rank_pattern": {"rank_pattern": {"layers.0.mlp.down_proj": 2}},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 3}},
    "exclude_modules": {"exclude_modules": ["model.layers.1.self_attn.q_proj"]},
    "use_rslora": {"use_rslora": True},
    "use_dora": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["norm"]},
    "layers_to_transform": {"layers_to_transform": [1]},
    "all-linear": {"target_modules": "all-linear"},
    "expression": {"target_modules": r".*\.1\..*_proj"},
}
"""Arguments of ``LoraConfig`` by what is peculiar to them."""


@pytest.fixture
def folder_of(models, write_adapter):  # noqa: F811
    """Writes a PEFT folder for a tiny model of the family qwen3."""
    return lambda **options: str(write_adapter(models["qwen3"], **options))


def by_peft(models, folder):
    return logits_of(PeftModel.from_pretrained(plain_model(models["qwen3"]), folder).eval())


def adapter_of(options):
    return "dora" if options.get("use_dora") else "lora"


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_peft_loads_trains_and_is_exported_to_pefts_own_numbers(
    start, spec_of, models, folder_of, train, tmp_path, kind
):
    folder = folder_of(**KINDS[kind])
    served = {} if kind == "use_dora" or kind == "modules_to_save" else {"serve": "adapter"}
    options = {"init_from": folder, **served}
    backend = start(spec_of(adapter_of(KINDS[kind]), options=options), fresh=True)
    expected = by_peft(models, folder)
    torch.testing.assert_close(own_logits(backend), expected, atol=1e-6, rtol=1e-6)

    train(backend)

    assert (own_logits(backend) - expected).abs().max() > 1e-3
    backend.export(tmp_path / "out")
    torch.testing.assert_close(
        by_peft(models, tmp_path / "out"), own_logits(backend), atol=1e-6, rtol=1e-6
    )
    merged = plain_model(models["qwen3"], backend._model.adapter.merged_weights(backend._lm.model))
    torch.testing.assert_close(logits_of(merged), own_logits(backend), atol=1e-5, rtol=1e-4)
    if kind != "modules_to_save" and kind != "use_dora":
        plain = plain_model(models["qwen3"])
        state, factors = plain.state_dict(), dict(backend._model.adapter.factors(backend._lm.model))
        for module in {name.rpartition(".")[0] for name in factors}:
            state[f"{module}.weight"] += factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
        torch.testing.assert_close(logits_of(plain), own_logits(backend), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "use_dora", "modules_to_save"])
def test_the_reference_is_the_adapter_as_it_began_to_the_bit(
    start, spec_of, folder_of, train, kind, dtype
):
    rows = make_trajectories()
    spec = spec_of(
        adapter_of(KINDS[kind]), dtype=dtype, options={"init_from": folder_of(**KINDS[kind])}
    )
    backend = start(spec, fresh=True)
    first = backend.logprobs(rows)
    np.testing.assert_array_equal(backend.base_logprobs(rows), first)

    train(backend)

    np.testing.assert_array_equal(backend.base_logprobs(rows), first)
    assert np.abs(backend.logprobs(rows) - first).max() > 1e-4


def test_the_reference_of_an_adapter_beside_four_bits_is_that_adapter_there(
    start, spec_of, folder_of, train
):
    rows = make_trajectories()
    backend = start(spec_of("qlora", options={"init_from": folder_of()}), fresh=True)
    new = start(spec_of("qlora"), fresh=True)
    first = backend.logprobs(rows)
    assert np.abs(first - new.logprobs(rows)).max() > 1e-2

    train(backend)

    np.testing.assert_array_equal(backend.base_logprobs(rows), first)


def test_the_reference_takes_the_memory_of_the_adapter(start, spec_of, folder_of):
    backend = start(spec_of(options={"init_from": folder_of()}), fresh=True)
    own = trained(backend)
    fixed = {
        name: tensor
        for name, tensor in backend._lm.model.state_dict().items()
        if ".lora_" in name and name not in own
    }
    base = plain_model(spec_of().model_path).num_parameters()
    total = sum(parameter.numel() for parameter in backend._lm.model.parameters())

    assert sum(t.numel() for t in fixed.values()) == sum(t.numel() for t in own.values())
    assert total == base + 2 * sum(tensor.numel() for tensor in own.values())


def test_a_restored_run_goes_on_to_the_bit(start, spec_of, folder_of, train, tmp_path):
    options = {"init_from": folder_of(modules_to_save=["norm"]), "dropout": 0.3}
    spec, rows = spec_of(options=options), make_trajectories()
    straight = start(spec, fresh=True)
    train(straight)
    straight.save(tmp_path / "saved")
    expected = train(straight, range(2, 4))
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path / "saved")

    assert train(resumed, range(2, 4)) == expected
    torch.testing.assert_close(trained(resumed), trained(straight), atol=0, rtol=0)
    np.testing.assert_array_equal(resumed.base_logprobs(rows), straight.base_logprobs(rows))


def test_an_export_of_ours_goes_on(start, spec_of, models, train, tmp_path):
    first = start(spec_of(options={"rank": 4, "target": ["q_proj"]}))
    train(first)
    first.export(tmp_path / "first")

    second = start(spec_of(options={"init_from": str(tmp_path / "first")}), fresh=True)

    torch.testing.assert_close(own_logits(second), own_logits(first), atol=0, rtol=0)
    assert second._model.adapter.served_rank == 4


REFUSED = {
    "bias": {"bias": "lora_only"},
    "lora_bias": {"lora_bias": True},
    "trainable_token_indices of named modules": {"trainable_token_indices": {"embed_tokens": [5]}},
    "init_lora_weights 'pissa'": {"init_lora_weights": "pissa"},
    "use_dora": {"use_dora": True},
    "layer_replication": {"layer_replication": [[0, 2], [0, 2]]},
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_that_is_not_computed_here_is_refused_by_its_key(folder_of, key):
    options = LoraOptions(init_from=folder_of(**REFUSED[key]))

    with pytest.raises(ConfigError, match=key, check=has_code("adapter/does-not-fit")):
        options.check_outside()


def test_target_parameters_that_are_no_stacks_are_refused_by_name(start, spec_of, folder_of):
    folder = folder_of(target_parameters=["mlp.down_proj.weight"], target_modules=[])

    with pytest.raises(ConfigError, match=r"down_proj\.weight", check=has_code("adapter/no-stack")):
        start(spec_of(options={"init_from": folder}), fresh=True)


def test_target_parameters_are_not_for_dora(folder_of, tmp_path):
    folder = folder_of(use_dora=True)
    path = tmp_path / "adapter/adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "target_parameters": ["experts.down_proj"]}))

    with pytest.raises(
        ConfigError,
        match="has target_parameters, beside whose stacks no lengths",
        check=has_code("adapter/does-not-fit"),
    ):
        DoraOptions(init_from=folder).check_outside()


def test_what_pissa_began_goes_on_once_peft_has_converted_it(start, spec_of, models, tmp_path):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights="pissa")
    model = get_peft_model(plain_model(models["qwen3"]), config)
    initial = tmp_path / "initial"
    model.peft_config["default"].init_lora_weights = True  # PEFT warns of others while it converts
    model.save_pretrained(initial)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    model.save_pretrained(
        tmp_path / "adapter", path_initial_model_for_weight_conversion=str(initial)
    )

    backend = start(spec_of(options={"init_from": str(tmp_path / "adapter")}), fresh=True)

    assert backend._model.adapter.served_rank == 8
    torch.testing.assert_close(own_logits(backend), logits_of(model), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        own_logits(backend), by_peft(models, tmp_path / "adapter"), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"rank": 16}, "r 4"),
        ({"alpha": 9}, "lora_alpha 8"),
        ({"target": ("q_proj",)}, "target_modules"),
        ({"modules_to_save": ("norm",)}, "modules_to_save"),
        ({"exclude": ("q_proj",)}, "exclude_modules"),
        ({"rank_pattern": ("q_proj=2",)}, "rank_pattern"),
        ({"use_rslora": True}, "use_rslora False"),
    ],
)
def test_an_option_that_contradicts_the_folder_is_refused(folder_of, given, held):
    (option,) = given
    wrong = LoraOptions(init_from=folder_of(), **given)

    with pytest.raises(
        ConfigError, match=f"{option} .*{held}", check=has_code("adapter/goes-on-as-it-is")
    ):
        wrong.check_outside()


def test_options_that_say_the_same_as_the_folder_are_allowed(folder_of):
    options = {"rank": 4, "alpha": 8, "target": ("down_proj", "q_proj"), "use_rslora": False}

    LoraOptions(init_from=folder_of(), **options).check_outside()


def test_another_kind_of_adapter_is_refused_with_the_right_one(folder_of):
    with pytest.raises(
        ConfigError,
        match="use_dora False; choose the adapter lora or qlora",
        check=has_code("adapter/does-not-fit"),
    ):
        DoraOptions(init_from=folder_of()).check_outside()
    with pytest.raises(
        ConfigError,
        match="use_dora True; choose the adapter dora",
        check=has_code("adapter/does-not-fit"),
    ):
        QloraOptions(init_from=folder_of(use_dora=True)).check_outside()


def test_another_base_than_the_folders_is_refused(start, spec_of, folder_of, models, tmp_path):
    folder = folder_of()
    with pytest.raises(
        ConfigError,
        match=f"was trained on {re.escape(str(models['qwen3']))}",
        check=has_code("adapter/other-base"),
    ):
        start(spec_of(family="llama", options={"init_from": folder}), fresh=True)

    wide = write_tiny_model(tmp_path / "wide" / models["qwen3"].name, "qwen3", hidden_size=64)
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(wide)
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError,
        match=r"does not fit .*down_proj has the shape",
        check=has_code("adapter/does-not-fit"),
    ):
        start(spec_of(model_path=str(wide), options={"init_from": folder}), fresh=True)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, check=has_code("adapter/no-folder")):
        LoraOptions(init_from=str(tmp_path / "nowhere")).check_outside()
