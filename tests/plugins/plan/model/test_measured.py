"""Every family that trains: the plan's numbers beside the trainer's own model with numbers, in packed rows on a CPU."""

import json
from contextlib import nullcontext

import pytest
import torch
from tests.plugins.plan.model.test_activations import adapter_of
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from rlhf_core import ConfigError
from rlhf_plugin_plan.command import main as plan
from rlhf_plugin_plan.memory.role import MicroBatch, Role
from rlhf_plugin_plan.memory.sharing import Sharing
from rlhf_plugin_plan.memory.training_memory import moments
from rlhf_plugin_plan.model import measured
from rlhf_plugin_plan.model.activations import (
    checkpoint_bytes,
    last_norm_bytes,
    layers_bytes,
    weight_gradient_bytes,
)
from rlhf_plugin_plan.model.adapters import count
from rlhf_plugin_plan.model.measured import SEEING, TEXT, Measured
from rlhf_plugin_plan.model.precision import Precision
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_plugin_plan.model.without_numbers import text_of
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_text_families import TEXT_FAMILIES, write_tiny_text_model
from rlhf_testing.tiny_vision import (
    MORE_VISION_FAMILIES,
    VISION_FAMILIES,
    tiny_vision_config,
    tiny_vision_tokenizer,
)
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed.packing import PackedLayout

FLOAT32 = Precision(parameters="float32", compute="float32")
LENGTHS = (512, 512)
TABLED = {"gpt2": (256, 256), "opt": (256, 256)}
"""Lengths of families whose positions are a table, of 256 rows here."""


class Kept(torch.autograd.Function):
    """Keeps what kernels keep; where scores are computed again, queries, keys and values alone."""

    @staticmethod
    def forward(ctx, query, key, value, again):
        batch, heads, tokens, _ = query.shape
        output = query.new_zeros(batch, tokens, heads, value.shape[-1])
        numbers = query.new_zeros(query.shape[:-1])
        ctx.save_for_backward(query, key, value, *(() if again else (output, numbers)))
        return output

    @staticmethod
    def backward(ctx, grad):
        raise AssertionError("only what the forward pass keeps is counted")


class KernelLayout(PackedLayout):
    """The trainer's layout with attention as a GPU keeps it."""

    def attend(self, layer, query, key, value, *, softcap=None, sinks=None, **_):
        again = softcap is not None or sinks is not None
        return Kept.apply(query, key, value, again)


def layout_of_rows(lengths=LENGTHS):
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return KernelLayout([0, *ends], torch.device("cpu"))


def saved_by(lm, layout, tokens):
    """Return the bytes of every tensor that autograd saves of a pass, each storage once, without weights."""
    own = {p.untyped_storage().data_ptr() for p in (*lm.parameters(), *lm.buffers())}
    found = {}

    def note(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = lm.hidden(tokens, layout.positions(), layout)
    assert output.requires_grad
    return sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in own)


def planned(shape, *, outside=None, layers=None):
    """Return the bytes of one token that the plan says of all layers and of what is around them."""
    around = last_norm_bytes(shape, FLOAT32, outside=outside) - 2 * 4 * shape.hidden
    return sum(layers or layers_bytes(shape, FLOAT32)) + around


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            path = tmp_path_factory.mktemp(family)
            made[family] = write_tiny_text_model(path, family, width=8)
        return made[family]

    return folder


def values_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_parameters_are_those_of_the_trainers_model(folder_of, family):
    folder = folder_of(family)

    lm = load_causal_lm(str(folder), dtype="float32")

    shape = shape_of(values_of(folder), family)
    assert shape.parameters == sum(p.numel() for p in lm.model.parameters())


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_what_a_pass_keeps_is_what_the_trainers_model_keeps(folder_of, family):
    """Hidden states of 256 numbers, heads of 64. Closed forms leave out sines and cosines, here 512 bytes a token."""
    folder = folder_of(family)
    lm = load_causal_lm(str(folder), dtype="float32")
    lengths = TABLED.get(family, LENGTHS)
    layout = layout_of_rows(lengths)
    tokens = torch.randint(3, 100, (sum(lengths),), generator=torch.Generator().manual_seed(0))

    saved = saved_by(lm, layout, tokens)

    shape = shape_of(values_of(folder), family)
    near = 0.03 if shape.measured is None else 0.005
    assert planned(shape) * sum(lengths) == pytest.approx(saved, rel=near)


@pytest.mark.parametrize("family", TEXT)
def test_weights_are_counted_by_what_multiplies_them(folder_of, family):
    shape = shape_of(values_of(folder_of(family)), family)

    assert 0 < shape.linear_weights <= shape.layer_parameters < shape.parameters
    assert shape.layer_weights <= shape.layer_parameters
    assert 0 < checkpoint_bytes(shape, FLOAT32) < min(layers_bytes(shape, FLOAT32))


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3n_text", "lfm2", "olmo2", "phi3"])
def test_under_an_adapter_the_numbers_are_those_of_the_trainers_model(folder_of, family):
    folder, adapter = folder_of(family), adapter_of("lora", rank=4)
    lm = load_causal_lm(str(folder), dtype="float32", adapt=lambda model: adapter.wrap(model, 0))
    layout = layout_of_rows()
    tokens = torch.randint(3, 100, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))

    saved = saved_by(lm, layout, tokens)

    counts = count(adapter, "lora", folder, FLOAT32)
    shape = shape_of(values_of(folder), family)
    assert counts.trained == sum(p.numel() for p in lm.model.parameters() if p.requires_grad)
    kept = planned(shape, outside=counts.outside, layers=[each.own for each in counts.layers])
    assert kept * sum(LENGTHS) == pytest.approx(saved, rel=0.03)


class TrainsLayers:
    """An adapter that trains the layers of some numbers as a whole, and nothing else."""

    served_rank = None

    def __init__(self, *numbers):
        self.numbers = numbers

    def wrap(self, model, seed):
        model.requires_grad_(False)
        for number in self.numbers:
            model.model.layers[number].requires_grad_(True)
        return model

    def training(self, model, seed):
        return nullcontext()

    def load_options(self):
        return {}


@pytest.mark.parametrize(("adapted", "begins"), [((4, 5), 4), ((1,), 1), ((0, 5), 0)])
def test_activations_begin_with_the_first_adapted_layer(folder_of, tmp_path, adapted, begins):
    """Of six layers, with windows in every second. Layers behind an adapted one keep what leads to it."""
    values = values_of(folder_of("gemma2"))
    kinds = ["sliding_attention", "full_attention"] * 3
    values |= {"num_hidden_layers": 6, "layer_types": kinds}
    (tmp_path / "config.json").write_text(json.dumps(values))
    whole = Measured(values, "gemma2").kept(FLOAT32).layers

    found = count(TrainsLayers(*adapted), "late", tmp_path, FLOAT32)

    kept = {layer.number: layer.own for layer in found.layers}
    assert list(kept) == list(range(begins, 6))
    for number, own in kept.items():
        # The first one's input has no gradient, and so its norm keeps less.
        if number in adapted and number > begins:
            assert own == whole[number]
        else:
            assert 0 < own < whole[number]


def seeing_config(family):
    return tiny_vision_config(
        family,
        tiny_vision_tokenizer(family=family),
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        vision_layers=2,
        initializer_range=0.02,
        tied=False,
    )


def seeing_shape(family):
    return shape_of(json.loads(seeing_config(family).to_json_string(use_diff=False)), family)


WITHOUT_TIMM = [f for f in (*VISION_FAMILIES, *MORE_VISION_FAMILIES) if f != "gemma3n"]


@pytest.mark.parametrize("family", WITHOUT_TIMM)
def test_parameters_of_models_that_see_are_those_of_transformers(family):
    config = seeing_config(family)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)

    shape = seeing_shape(family)

    text = {id(p) for p in text_of(model).parameters()} | {id(model.lm_head.weight)}
    assert shape.parameters == model.num_parameters()
    assert shape.tower_parameters == sum(p.numel() for p in model.parameters() if id(p) not in text)


@pytest.mark.parametrize("family", [f for f in WITHOUT_TIMM if f in SEEING])
def test_attention_of_models_that_see_is_counted(family):
    """Keys and values have at least one head, and at most as many as queries."""
    shape = seeing_shape(family)

    heads = shape.kv_numbers / (2 * shape.layers * shape.head_dim)
    assert shape.head_dim > 0
    assert shape.pair_numbers >= shape.layers * shape.head_dim * shape.kv_heads
    assert 0 < heads <= shape.heads


@pytest.fixture
def seeing_run(tmp_path, config_text, capsys):
    """Plan a run of LLaVA-NeXT, which has a projector beside its tower; returns the JSON."""
    (tmp_path / "run.toml").write_text(config_text)
    config = seeing_config("llava_next").to_json_string(use_diff=False)
    (tmp_path / "config.json").write_text(config)

    def call(*flags):
        files = ["-c", str(tmp_path / "run.toml"), "--model-config", str(tmp_path / "config.json")]
        assert plan([*files, "--model.vision", "vlm", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def test_a_run_of_a_counted_model_that_sees_is_planned_to_its_end(seeing_run):
    shape = seeing_shape("llava_next")

    result = seeing_run("--prompt-tokens", "256", "--response-tokens", "64")

    assert result["fits"]
    assert result["parameters"] == {"policy": shape.parameters}
    assert "decode" in {phase["name"] for phase in result["phases"]}


NOT_MODELED = "policy: passes of this family's vision tower are not modeled"


def test_images_of_a_counted_family_train_its_tower_and_its_projector(seeing_run):
    """8 bytes of AdamW's state for each parameter; without images nothing of the tower has any."""
    shape = seeing_shape("llava_next")
    frozen = ("--actor.freeze_visual_encoder", "true")
    results = [seeing_run(*more) for more in ((), frozen, ("--data.image_key", ""))]

    seeing, still, idle = (
        result["gpus"][0]["processes"][0]["parts_gib"]["policy: optimizer state"] * 2**30
        for result in results
    )

    assert seeing - idle == pytest.approx(8 * shape.tower_parameters)
    assert still - idle == pytest.approx(8 * shape.projector_parameters)
    assert shape.tower_parameters > shape.projector_parameters > 0


def test_images_of_a_counted_family_take_seconds(seeing_run):
    """24 features are those of the largest image here: of 5 tiles."""
    frozen = ("--actor.freeze_visual_encoder", "true")
    choices = ((), ("--image-tokens", "24"), frozen, ("--image-tokens", "0"))
    results = [seeing_run(*more) for more in choices]

    largest, given, still, none = (
        {phase["name"]: phase["limit_s"] for phase in result["phases"]}["train policy"]
        for result in results
    )

    assert largest == given
    assert none < still < largest
    assert not any(NOT_MODELED in result["notes"] for result in results)


def test_a_tower_whose_images_have_no_known_form_is_told(seeing_run, monkeypatch):
    monkeypatch.setattr("rlhf_plugin_plan.model.measured.tower_of", lambda *_: None)

    given, none = (seeing_run("--image-tokens", number) for number in ("64", "0"))

    assert NOT_MODELED in given["notes"]
    assert NOT_MODELED not in none["notes"]


def without(package: str):
    def refuse(*_, **__):
        raise ImportError(
            f"\nA model requires the {package} library but it was not found. Install\nit."
        )

    return refuse


def test_an_encoder_of_a_package_that_is_missing_is_left_out_and_named(seeing_run, monkeypatch):
    whole = seeing_run("--image-tokens", "64")
    monkeypatch.setattr(AutoModelForImageTextToText, "from_config", without("timm"))
    monkeypatch.setattr(
        measured, "_counted_once", measured._counted_once.__wrapped__
    )  # not the kept one

    text = seeing_run("--image-tokens", "64")

    note = "policy: what reads images and sounds is not counted: A model requires the timm library but it was not found"
    assert note in text["notes"]
    assert note not in whole["notes"]
    left_out = seeing_shape("llava_next")
    assert left_out.tower_parameters == 0
    assert text["parameters"] == {"policy": left_out.parameters}
    assert text["parameters"]["policy"] < whole["parameters"]["policy"]


def test_a_text_model_of_a_package_that_is_missing_is_refused_by_name(monkeypatch):
    for kind in (AutoModelForImageTextToText, AutoModelForCausalLM):
        monkeypatch.setattr(kind, "from_config", without("such"))
    config = seeing_config("idefics3")

    with pytest.raises(
        ConfigError,
        match="needs a package: A model requires",
        check=has_code("plan/missing-package"),
    ):
        Measured(json.loads(config.to_json_string(use_diff=False)), "config.json")


def test_every_family_that_trains_is_planned():
    """Families with closed forms beside those that are counted."""
    from rlhf_plugin_plan.model.shapes import FAMILIES

    families = {*TEXT_FAMILIES, *VISION_FAMILIES, *MORE_VISION_FAMILIES}

    assert families <= {*FAMILIES, *TEXT, *SEEING}
    assert not {*FAMILIES} & {*TEXT, *SEEING}


def test_layers_of_one_kind_are_passed_once(folder_of):
    """Of 30 layers, windows in all but every third, the first three tell."""
    values = values_of(folder_of("gemma2"))
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 10

    found = Measured(values | {"num_hidden_layers": 30, "layer_types": kinds}, "gemma2")

    assert found.prefix == 3
    assert len(found.kept(FLOAT32).layers) == 30


@pytest.mark.parametrize(
    ("family", "bytes_of_a_score"), [("gemma2", (13, 21)), ("gpt_oss", (13, 21)), ("glm", (0, 0))]
)
def test_scores_take_more_backwards_than_forwards(folder_of, family, bytes_of_a_score):
    role = Role(
        name="policy",
        shape=shape_of(values_of(folder_of(family)), family),
        precision=FLOAT32,
        trained=True,
        has_head=True,
    )
    batch = MicroBatch(tokens=64, actions=32, several=False)

    found = moments(role, Sharing(), batch)

    parts = [found[name].get("scores of some queries", 0) for name in ("scoring", "backward")]
    assert parts == [each * 2**26 for each in bytes_of_a_score]


def test_the_largest_gradient_is_of_a_joined_matrix_or_of_a_stack(folder_of):
    """Under autocast a matrix has its gradient in float32 and in bfloat16, and a stack of experts in float32 alone."""
    autocast = Precision(parameters="float32", compute="bfloat16")
    phi3, gpt_oss = (shape_of(values_of(folder_of(each)), each) for each in ("phi3", "gpt_oss"))

    # Phi 3 has gate and up in one matrix; GPT-OSS in one stack of all experts.
    joined = 2 * phi3.hidden * phi3.ffn
    stack = gpt_oss.experts.number * gpt_oss.hidden * 2 * gpt_oss.experts.width
    assert weight_gradient_bytes(phi3, autocast) == 6 * joined
    assert weight_gradient_bytes(gpt_oss, autocast) == 4 * stack


@pytest.mark.parametrize(("family", "holds"), [("gemma2", True), ("gpt_oss", True), ("glm", False)])
def test_scores_in_memory_are_told(folder_of, family, holds):
    """Where scores are capped or have sinks."""
    shape = shape_of(values_of(folder_of(family)), family)

    assert shape.measured.counts.holds_scores is holds
