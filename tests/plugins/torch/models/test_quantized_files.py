"""Folders with weights in MXFP4 and FP8: a run computes with what they unpack to, and its export is plain."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.plugins.lora.test_training import peft_gradient
from tests.quantized_folders import (
    FAMILIES,
    encode_fp8,
    encode_mxfp4,
    method_of,
    set_quantization,
    unpacked,
    without_weights,
    write_quantized,
)
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from rlhf_core import ConfigError, MissingDependency
from rlhf_testing.errors import has_code
from rlhf_torch.models import quantized_files
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed.packing import PackedLayout


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("quantized")
    return {family: write_quantized(root / family, family) for family in FAMILIES}


def test_numbers_of_four_bits_come_back_from_their_blocks():
    """32 numbers of one output: 6 and 1.5 need the scale 2^0, and half of them 2^-1; 0.26 is nearest to 0.25."""
    weight = torch.zeros(1, 64, 1)
    weight[0, :3, 0] = torch.tensor([6.0, -1.5, 0.4])
    weight[0, 32:35, 0] = torch.tensor([3.0, -0.75, 0.26])

    blocks, scales = encode_mxfp4(weight)

    assert (blocks.shape, scales.tolist()) == ((1, 1, 2, 16), [[[127, 126]]])
    assert blocks[0, 0, 0, :2].tolist() == [7 + 16 * (8 + 3), 1]
    found = convert_moe_packed_tensors(blocks, scales)
    assert found[0, :3, 0].tolist() == [6.0, -1.5, 0.5]
    assert found[0, 32:35, 0].tolist() == [3.0, -0.75, 0.25]


def test_numbers_of_eight_bits_are_as_near_as_their_format():
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(0))

    numbers, scale = encode_fp8(weight)

    found = numbers.float() * scale.repeat_interleave(16, 0).repeat_interleave(16, 1)
    # Three bits behind the leading one round by at most 2^-4; below 2^-6 of 448 steps are 2^-9.
    largest = scale.max() * 2**-10
    assert bool(((found - weight).abs() <= weight.abs() / 16 + largest).all())


def packed_logprobs(lm, rows):
    """(N, V) of all rows in one."""
    offsets = [0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()]
    layout = PackedLayout(offsets, lm.device)
    with torch.no_grad():
        return lm.logits(lm.hidden(torch.cat(rows), layout.positions(), layout)).log_softmax(-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_model_that_transformers_unpacks(folders, family, caplog):
    rows = [(torch.arange(length) * 7919) % 96 + 4 for length in (40, 5, 23)]

    with caplog.at_level("INFO", logger=quantized_files.__name__):
        lm = load_causal_lm(str(folders[family]), dtype="float32")

    plain = unpacked(folders[family])
    with torch.no_grad():
        expected = torch.cat([plain(input_ids=row[None]).logits[0] for row in rows]).log_softmax(-1)
    torch.testing.assert_close(packed_logprobs(lm, rows), expected, atol=1e-5, rtol=0.0)
    assert [record.getMessage().count(method_of(family)) for record in caplog.records] == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_has_plain_weights_and_loads_to_the_bit(folders, tmp_path, family, dtype):
    lm = load_causal_lm(str(folders[family]), dtype=dtype)

    lm.model.save_pretrained(tmp_path)

    assert {parameter.dtype for parameter in lm.model.parameters()} == {dtype}
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    with safe_open(tmp_path / "model.safetensors", framework="pt") as tensors:
        assert not [name for name in tensors.keys() if "scale" in name or "blocks" in name]  # noqa: SIM118
    found, info = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=dtype, output_loading_info=True
    )
    assert not any(info.values())
    state, expected = found.state_dict(), unpacked(folders[family], dtype).state_dict()
    assert state.keys() == expected.keys()
    for name, weight in lm.model.state_dict().items():
        assert torch.equal(state[name], weight), name
        assert torch.equal(state[name], expected[name]), name


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe"])
def test_one_step_is_that_of_a_plain_loop_and_a_run_goes_on_to_the_bit(
    folders, start, sgd_spec, make_batch, make_plan, tmp_path, family
):
    backend, batch = start(sgd_spec(folders[family])), make_batch()
    before = {name: weight.detach().clone() for name, weight in backend._model.named_weights()}

    backend.train_step(batch, make_plan(batch))

    expected = peft_gradient(unpacked(folders[family]), batch)
    moved = {name: before[name] - each.detach() for name, each in backend._model.named_weights()}
    assert moved.keys() == expected.keys()
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-4)
    backend.save(tmp_path)
    resumed = start(sgd_spec(folders[family]))
    resumed.load(tmp_path)
    later = [each.logprobs(batch.trajectories) for each in (backend, resumed)]
    np.testing.assert_array_equal(*later)


REFUSED = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4},
        "quantized by gptq .*Give the model in bfloat16",
        "model/quantized",
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4},
        "quantized by awq .*Give the model in bfloat16",
        "model/quantized",
    ),
    "8 bits": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        r"quantized by bitsandbytes in 8 bits .*Give the model in bfloat16",
        "model/quantized",
    ),
    "unnamed": ({"bits": 3}, "an unnamed method", "model/quantized"),
    "tables": (
        {"quant_method": "fp8", "modules_to_convert": ["embed_tokens"]},
        "embeddings in fp8 .*Give the model in bfloat16",
        "model/fp8-embeddings",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_unpacked_is_refused_before_weights_are_read(folders, tmp_path, case):
    settings, message, code = REFUSED[case]
    folder = without_weights(folders["qwen3"], tmp_path / "model")
    set_quantization(folder, settings)

    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        load_causal_lm(str(folder), dtype="float32")


def test_weights_in_four_bits_are_trained_beside_an_adapter_that_holds_them_so(
    folders, start, sgd_spec, tmp_path
):
    folder = without_weights(folders["qwen3"], tmp_path / "model")
    set_quantization(folder, {"quant_method": "bitsandbytes", "load_in_4bit": True})

    with pytest.raises(
        ConfigError, match=r"4 bits.*--actor\.adapter qlora", check=has_code("model/in-4-bits")
    ):
        start(sgd_spec(folder))


def test_quantization_of_a_part_alone_is_refused(folders, tmp_path):
    folder = without_weights(folders["qwen3"], tmp_path / "model")
    set_quantization(folder, {})
    set_quantization(folder, {"quant_method": "fp8"}, within="text_config")

    with pytest.raises(ConfigError, match="text_config", check=has_code("model/quantized")):
        load_causal_lm(str(folder), dtype="float32")


def test_blocks_that_are_cut_are_refused_by_the_weights_name(tmp_path):
    folder = write_quantized(tmp_path / "model", "qwen3", intermediate_size=72)

    with pytest.raises(
        ConfigError,
        match=r"layers\.0\.mlp\..*\.weight.*72.*16 x 16",
        check=has_code("model/fp8-blocks"),
    ):
        load_causal_lm(str(folder), dtype="float32")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_a_whole_weight_is_taken(folders, tmp_path, shape):
    """As Ministral is published, with scales of activations that nobody reads here."""
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3"], folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_scale_inv")]:
        weights[name] = torch.full(shape, 0.25)
        weights[name.replace("weight_scale_inv", "activation_scale")] = torch.tensor(0.5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    static = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    set_quantization(folder, static)

    lm = load_causal_lm(str(folder), dtype="float32")

    found = lm.model.state_dict()
    for name in [name for name in weights if name.endswith("proj.weight")]:
        assert torch.equal(found[name], weights[name].float() / 4), name


def test_numbers_of_eight_bits_without_scales_are_refused(folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3"], folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight_scale_inv"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(
        ConfigError,
        match=r"layers\.1\.mlp\.up_proj\.weight is in fp8",
        check=has_code("model/no-scales"),
    ):
        load_causal_lm(str(folder), dtype="float32")


def test_stacks_of_experts_in_eight_bits_are_refused(folders, tmp_path):
    """Transformers would take their numbers for weights, without the scales."""
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3_moe"], folder)
    weights = load_file(folder / "model.safetensors")
    stack = torch.zeros(4, 64, 64).to(torch.float8_e4m3fn)
    weights["model.layers.0.mlp.experts.gate_up_proj"] = stack
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(
        ConfigError,
        match=r"experts\.gate_up_proj is in fp8",
        check=has_code("model/fp8-outside-linear"),
    ):
        load_causal_lm(str(folder), dtype="float32")


def test_fp8_without_accelerate_is_refused_with_the_command(folders, monkeypatch):
    monkeypatch.setattr(quantized_files, "find_spec", lambda name: None)

    with pytest.raises(
        MissingDependency,
        match="pip install 'accelerate",
        check=has_code("plugin/missing-dependency"),
    ):
        load_causal_lm(str(folders["qwen3"]), dtype="float32")
    load_causal_lm(str(folders["gpt_oss"]), dtype="float32")


def test_a_weight_that_stays_packed_is_refused(folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3"], folder)
    lm = load_causal_lm(str(folder), dtype="float32")
    layer = lm.model.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(
        layer.weight.detach().to(torch.float8_e4m3fn), requires_grad=False
    )

    with pytest.raises(
        ConfigError,
        match=r"up_proj\.weight is still torch\.float8_e4m3fn",
        check=has_code("model/still-quantized"),
    ):
        quantized_files.settle_unpacked("M", lm.model, torch.float32)
