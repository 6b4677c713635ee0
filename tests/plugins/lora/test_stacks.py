"""Factors of stacked experts: PEFT's own in updates, files and merged weights, and refused where they cannot be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.plugins.lora.conftest import base_of, logits_of, own_logits, plain_model, trained
from tests.plugins.lora.test_engine import request, rows_of, run, started
from tests.plugins.lora.test_training import moved
from tests.plugins.peft_folders import write_adapter  # noqa: F401
from tests.plugins.torch.conftest import FAST_ADAM, make_batch, make_trajectories
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_plugin_lora.dora import DoraOptions
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_plugin_lora.qlora import QloraOptions
from rlhf_testing.errors import has_code
from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.adapters.merging import merge_adapter

STACKS = ("experts.gate_up_proj", "experts.down_proj")
FIRST = "model.layers.0.mlp.experts"


@pytest.fixture
def spec_for(spec_of):
    """The spec of a mixture whose stacks are adapted."""

    def build(adapter="lora", *, options=None, **changes):
        options = {"rank": 4, "target_parameters": STACKS, **(options or {})}
        if adapter == "lora":
            options.setdefault("serve", "merged")
        return spec_of(adapter, "qwen3_moe", options=options, **changes)

    return build


@pytest.fixture
def base(models):
    return models["qwen3_moe"]


@pytest.fixture
def by_peft(base):
    def logits(folder):
        return logits_of(PeftModel.from_pretrained(plain_model(base), folder).eval())

    return logits


def test_the_first_policy_is_the_base(start, spec_for, base):
    backend = start(spec_for(), fresh=True)

    torch.testing.assert_close(
        own_logits(backend), logits_of(plain_model(base)), atol=1e-5, rtol=1e-5
    )


def test_each_expert_of_a_stack_has_factors_of_the_rank(start, spec_for, base, tmp_path):
    options = {"rank_pattern": ["experts.down_proj=2"], "alpha_pattern": ["experts.down_proj=6"]}
    backend = start(spec_for(options=options))

    shapes = {name: tuple(weight.shape) for name, weight in trained(backend).items()}

    # 4 experts of width 64 in a model of width 32; of the two wrappers that of gate_up_proj is inside.
    assert shapes[f"{FIRST}.base_layer.lora_A.default.weight"] == (4 * 4, 32)
    assert shapes[f"{FIRST}.base_layer.lora_B.default.weight"] == (128, 4 * 4)
    assert shapes[f"{FIRST}.lora_A.default.weight"] == (2 * 4, 64)
    assert shapes[f"{FIRST}.lora_B.default.weight"] == (32, 2 * 4)
    backend.export(tmp_path)
    merged = merge_adapter(plain_model(base), str(base), read_adapter(str(tmp_path)))
    torch.testing.assert_close(logits_of(merged), own_logits(backend), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("targets", [STACKS[:1], STACKS[1:]])
def test_one_stack_alone_is_exported_and_merged(start, spec_for, base, by_peft, tmp_path, targets):
    backend = start(spec_for(options={"target_parameters": targets, "use_rslora": True}))

    backend.export(tmp_path)

    torch.testing.assert_close(own_logits(backend), by_peft(tmp_path), atol=1e-5, rtol=1e-5)
    served = dict(backend._model.adapter.merged_weights(backend._lm.model))
    merged = logits_of(plain_model(base, served))
    torch.testing.assert_close(merged, own_logits(backend), atol=1e-5, rtol=1e-5)
    changed = {n for n, each in plain_model(base).state_dict().items() if (each != served[n]).any()}
    assert {name.rpartition(".")[2] for name in changed if "experts" in name} == {
        targets[0].rpartition(".")[2]
    }


@pytest.mark.parametrize(("dtype", "compute"), [("float32", "bfloat16"), ("bfloat16", "bfloat16")])
def test_the_factors_learn_and_the_base_stays(start, spec_for, train, dtype, compute):
    spec = spec_for(dtype=dtype, optimizer=FAST_ADAM)
    backend = start(spec, fresh=True, compute_dtype=compute)
    before, base = trained(backend), base_of(backend)

    train(backend, range(3))

    still = [name for name, weight in trained(backend).items() if torch.equal(weight, before[name])]
    assert still == []
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)


def test_packed_rows_micro_batches_and_recomputed_layers_change_nothing(start, spec_for, plain_sgd):
    spec, batch, rows = spec_for(**plain_sgd), make_batch(), make_trajectories()
    backend = start(spec)
    alone = [backend.logprobs(rows.select(np.array([row]))) for row in range(len(rows))]
    np.testing.assert_allclose(backend.logprobs(rows), np.concatenate(alone), atol=2e-5)
    whole = moved(backend, batch)

    cut = moved(start(replace(spec, max_tokens_per_micro_batch=40)), batch)
    recomputed = moved(start(spec, gradient_checkpointing=True), batch)

    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(recomputed, whole, atol=0, rtol=0)


@pytest.mark.matrix
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_compiled_layers_train_alike(start, spec_for, plain_sgd):
    spec, batch = spec_for(**plain_sgd), make_batch()

    plain, compiled = (moved(start(spec, compile=on), batch) for on in (False, True))

    torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("begun", [False, True])
def test_a_restored_run_goes_on_to_the_bit(start, spec_for, train, tmp_path, begun):
    spec, rows = spec_for(), make_trajectories()
    if begun:
        start(spec).export(tmp_path / "begun")
        spec = spec_for(
            options={"rank": None, "init_from": str(tmp_path / "begun"), "target_parameters": ()}
        )
    straight = start(spec, fresh=True)
    first = straight.logprobs(rows)
    train(straight)
    straight.save(tmp_path / "saved")
    expected = train(straight, range(2, 4))
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path / "saved")

    assert train(resumed, range(2, 4)) == expected
    torch.testing.assert_close(trained(resumed), trained(straight), atol=0, rtol=0)
    np.testing.assert_array_equal(resumed.base_logprobs(rows), straight.base_logprobs(rows))
    if begun:
        np.testing.assert_array_equal(resumed.base_logprobs(rows), first)


@pytest.mark.parametrize("targets", [STACKS, STACKS[1:]])
def test_a_folder_of_pefts_own_goes_on(
    start,
    spec_for,
    base,
    by_peft,
    train,
    write_adapter,  # noqa: F811
    tmp_path,
    targets,
):
    config = {
        "target_parameters": [*targets],
        "target_modules": [],
        "init_lora_weights": "gaussian",
    }
    folder = write_adapter(base, **config)
    options = {"rank": None, "target_parameters": (), "init_from": str(folder)}
    backend = start(spec_for(options=options), fresh=True)
    expected = by_peft(folder)
    torch.testing.assert_close(own_logits(backend), expected, atol=1e-5, rtol=1e-5)

    train(backend)

    assert (own_logits(backend) - expected).abs().max() > 1e-3
    backend.export(tmp_path / "out")
    torch.testing.assert_close(own_logits(backend), by_peft(tmp_path / "out"), atol=1e-5, rtol=1e-5)


def test_transformers_loads_the_export(start, spec_for, tmp_path):
    backend = start(spec_for())

    backend.export(tmp_path)

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(logits_of(loaded), own_logits(backend), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weights", ["shared", "copy"])
def test_the_engine_samples_from_the_merged_stacks(start, spec_for, train, weights):
    backend = start(spec_for())
    train(backend)

    async def sample():
        engine = await started(backend, weights=weights)
        completions = await engine.generate(request())
        digest = await engine.checksum()
        await engine.close()
        return completions, digest

    completions, digest = run(sample())

    rows = rows_of(completions)
    np.testing.assert_allclose(backend.logprobs(rows), rows.rollout_logprobs, atol=1e-4)
    assert digest == backend.checksum()
    assert np.abs(backend.base_logprobs(rows) - rows.rollout_logprobs).max() > 1e-2


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_an_engine_that_takes_factors_alone_is_refused_by_name(start, spec_for, adapter):
    fix = "adapter lora with --actor.lora.serve merged" if adapter == "qlora" else "serve merged"
    backend = start(spec_for(adapter, options={"serve": "adapter"} if adapter == "lora" else {}))

    with pytest.raises(
        ConfigError, match=f"{FIRST}.*{fix}", check=has_code("adapter/unservable-layer")
    ):
        list(backend.buckets())


def test_beside_four_bits_stacks_are_plain_and_their_factors_learn(start, spec_for, train):
    backend = start(spec_for("qlora"), fresh=True)
    before, base = trained(backend), base_of(backend)

    train(backend, range(3))

    still = [name for name, weight in trained(backend).items() if torch.equal(weight, before[name])]
    assert still == []
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)


def test_a_warning_names_the_stacks_that_stay_and_the_option(start, spec_for, caplog):
    start(spec_for(), fresh=True)
    assert "stacked parameters" not in caplog.text

    start(spec_for(options={"target_parameters": STACKS[:1]}), fresh=True)

    assert f"such as {FIRST}.down_proj" in caplog.text
    assert (
        "target_parameters of the adapter names stacks to adapt too, such as experts.down_proj"
        in (caplog.text)
    )


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        (
            "experts.gate_proj",
            r"no parameter of that name; its stacks are experts\.gate_up_proj, ",
            "adapter/no-such-parameter",
        ),
        (
            "q_proj.weight",
            r"q_proj\.weight has the shape \(32, 32\); expected stacks of matrices",
            "adapter/no-stack",
        ),
        ("(", r"target_parameters '\(' .* regular expression", "adapter/target-expression"),
    ],
)
def test_a_name_that_is_no_stack_is_refused(start, spec_for, name, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        start(spec_for(options={"target_parameters": (name,)}))


def test_a_model_without_experts_is_refused(start, spec_of):
    with pytest.raises(
        ConfigError,
        match="it has no stacks of experts",
        check=has_code("adapter/no-such-parameter"),
    ):
        start(spec_of(options={"target_parameters": STACKS}))


def test_what_pefts_wrapper_has_not_is_refused_by_name(start, spec_for, tmp_path):
    for options in (LoraOptions, QloraOptions):
        with pytest.raises(ValueError, match=r"target_parameters .* dropout 0\.1"):
            options(target_parameters=STACKS, dropout=0.1)
    with pytest.raises(ValueError, match=r"init pissa and target_parameters"):
        LoraOptions(target_parameters=STACKS, init="pissa")
    with pytest.raises(ValueError, match="target_parameters"):
        DoraOptions.model_validate({"target_parameters": STACKS})
    start(spec_for()).export(tmp_path)
    with pytest.raises(
        ConfigError, match=r"0\.1.*target_parameters", check=has_code("adapter/dropout-of-a-stack")
    ):
        LoraOptions(init_from=str(tmp_path), dropout=0.1).check_outside()


def test_a_folder_that_contradicts_itself_or_the_options_is_refused(start, spec_for, tmp_path):
    start(spec_for()).export(tmp_path)
    wrong = LoraOptions(init_from=str(tmp_path), target_parameters=("experts.down_proj",))
    with pytest.raises(
        ConfigError,
        match=r"target_parameters experts\.down_proj",
        check=has_code("adapter/goes-on-as-it-is"),
    ):
        wrong.check_outside()
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    name = f"base_model.model.{FIRST}.lora_A.weight"
    options = {"rank": None, "target_parameters": (), "init_from": str(tmp_path)}

    save_file({**tensors, name: tensors[name][:8].clone()}, file)
    with pytest.raises(
        ConfigError,
        match=r"down_proj has the shape .* A \(16, 64\) and B",
        check=has_code("adapter/does-not-fit"),
    ):
        start(spec_for(options=options))

    kept = {
        key: each
        for key, each in tensors.items()
        if not key.startswith(name.rpartition(".lora")[0])
    }
    save_file(kept, file)
    with pytest.raises(
        ConfigError, match="target_parameters", check=has_code("adapter/no-factors")
    ):
        start(spec_for(options=options))
