"""Adapters that an older Transformers named: read as those of the names of today, or refused as they are."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from rlhf_config import Layer, resolve_options
from rlhf_core import ConfigError, plugins
from rlhf_plugin_inference.chat.options import CHAT
from rlhf_plugin_inference.serving.adapter_form import form_of
from rlhf_plugin_lora.lora import LoraOptions, build
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.adapters.beside import put_beside
from rlhf_torch.adapters.factors import factors
from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.adapters.merging import merge_adapter
from rlhf_torch.adapters.older_names import in_names_of

BEFORE = {
    "qwen2_vl": {"model.language_model.": "model.", "model.visual.": "visual."},
    "llava": {
        "model.language_model.": "language_model.model.",
        "model.vision_tower.": "vision_tower.",
    },
    "gemma3": {
        "model.language_model.": "language_model.model.",
        "model.vision_tower.": "vision_tower.",
    },
}
"""Beginnings of names of today -> those before Transformers 4.52, as published checkpoints have them."""


def loaded(path):
    return AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)


@pytest.fixture(params=BEFORE)
def folders(request, tmp_path):
    """A base, an adapter of its language model and its visual encoder, and the same with the names of before."""
    from peft import LoraConfig, get_peft_model

    base = write_tiny_vision_model(tmp_path / "base", request.param)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice on tied matrices
        torch.manual_seed(7)
        wrapped = get_peft_model(
            loaded(base), LoraConfig(r=2, target_modules=["q_proj", "v_proj", "qkv"])
        )
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.3)
        wrapped.save_pretrained(tmp_path / "adapter")
    older = shutil.copytree(tmp_path / "adapter", tmp_path / "older")
    tensors = {}
    for name, tensor in load_file(older / "adapter_model.safetensors").items():
        plain = name.removeprefix("base_model.model.")
        start = next(one for one in BEFORE[request.param] if plain.startswith(one))
        plain = BEFORE[request.param][start] + plain.removeprefix(start)
        tensors[f"base_model.model.{plain}"] = tensor
    assert len({name.split(".layers.")[0] for name in tensors}) > 1, "both parts are adapted"
    save_file(tensors, older / "adapter_model.safetensors", metadata={"format": "pt"})
    return base, tmp_path / "adapter", older


def test_merged_weights_are_those_of_the_adapter_with_the_names_of_today(folders):
    base, today, older = folders

    expected = merge_adapter(loaded(base), str(base), read_adapter(str(today))).state_dict()
    actual = merge_adapter(loaded(base), str(base), read_adapter(str(older))).state_dict()

    plain = loaded(base).state_dict()
    assert any(not torch.equal(expected[name], plain[name]) for name in plain)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_an_adapter_beside_its_base_is_the_one_with_the_names_of_today(folders):
    base, today, older = folders

    def held(folder):
        model = put_beside(loaded(base), str(base), read_adapter(str(folder)))
        return {name: one for name, one in model.state_dict().items() if ".lora_" in name}

    expected, actual = held(today), held(older)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], one) for name, one in expected.items())


def test_an_adapter_of_another_model_is_refused_by_its_own_names(folders, tmp_path):
    base, _, older = folders
    file = older / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors["base_model.model.other.q_proj.lora_A.weight"] = torch.ones(2, 4)
    save_file(tensors, file, metadata={"format": "pt"})

    with pytest.raises(
        ConfigError,
        match=r"older does not fit .*base has no module",
        check=has_code("adapter/does-not-fit"),
    ):
        merge_adapter(loaded(base), str(base), read_adapter(str(older)))


def test_its_factors_for_an_engine_are_those_of_the_names_of_today(folders):
    """Engines that serve the factors beside the base refused it, or merged it without need."""
    base, today, older = folders

    expected = dict(factors(read_adapter(str(today)), torch.float32))
    actual = dict(factors(in_names_of(loaded(base), read_adapter(str(older))), torch.float32))

    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], one) for name, one in expected.items())


@pytest.mark.parametrize("folders", ["gemma3"], indirect=True)  # others are served by vLLM alone
def test_it_is_served_beside_the_base(folders):
    base, _, older = folders
    config = json.loads((older / "adapter_config.json").read_text())
    tensors = load_file(older / "adapter_model.safetensors")
    language = {name: one for name, one in tensors.items() if "language_model" in name}
    save_file(language, older / "adapter_model.safetensors", metadata={"format": "pt"})
    named = {"base_model_name_or_path": str(base)}
    (older / "adapter_config.json").write_text(json.dumps(config | named))
    model = {"path": str(base), "adapter": str(older), "serve": "adapter"}
    layer = Layer.of({"model": model, "engine": {"name": "embedded"}})
    options = resolve_options([layer], plugins.load(), CHAT)

    form = form_of(options.run.model, options.one("engine.name"))

    assert form.rank == 2
    assert all("model.language_model." in name for name in form.folder.shapes)


@pytest.mark.parametrize("serve", ["adapter", "merged"])
def test_a_run_goes_on_with_it(folders, serve):
    base, today, older = folders

    def begun(folder):
        model = build(LoraOptions(init_from=str(folder), serve=serve)).wrap(loaded(base), seed=0)
        return {name: one for name, one in model.state_dict().items() if ".lora_" in name}

    expected, actual = begun(today), begun(older)
    assert any(one.abs().max() > 0.1 for one in expected.values())
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], one) for name, one in expected.items())


def test_scales_and_ranks_that_name_its_modules_are_found_under_the_names_of_today(folders):
    """By a rule for a module of its own; a rule that is not found would scale the factors by another number."""
    base, today, older = folders
    stems = {}
    for folder in (today, older):
        config = json.loads((folder / "adapter_config.json").read_text())
        first = next(one for one in read_adapter(str(folder)).shapes if "0.self_attn.q_proj" in one)
        stems[folder] = first.partition(".lora_")[0]
        changed = {"alpha_pattern": {stems[folder]: 64, "v_proj": 2}}
        if folder is older:
            changed["target_modules"] = sorted(
                {one.partition(".lora_")[0] for one in read_adapter(str(folder)).shapes}
            )
        (folder / "adapter_config.json").write_text(json.dumps(config | changed))
    assert stems[today] != stems[older]

    expected = dict(factors(read_adapter(str(today)), torch.float32))
    actual = dict(factors(in_names_of(loaded(base), read_adapter(str(older))), torch.float32))
    merged = [
        merge_adapter(loaded(base), str(base), read_adapter(str(one))).state_dict()
        for one in (today, older)
    ]

    assert all(torch.equal(actual[name], one) for name, one in expected.items())
    assert all(torch.equal(merged[1][name], one) for name, one in merged[0].items())
