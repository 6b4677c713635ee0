"""Embeddings of a few tokens learn beside an adapter: computed, saved, served and exported as PEFT's own are."""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from tests.plugins.lora.conftest import base_of, logits_of, own_logits, plain_model, trained
from tests.plugins.lora.test_engine import request, rows_of, run, started
from tests.plugins.lora.test_training import moved, peft_gradient
from tests.plugins.peft_folders import write_adapter  # noqa: F401
from tests.plugins.torch.conftest import make_batch, make_trajectories
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_core.contracts import ValueObjective
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.adapters.merging import merge_adapter

TOKENS = (7, 30, 11)
MODELS = ("qwen3", "gemma3", "qwen3_5", "untied")
"""Embeddings of ``gemma3`` are scaled; those of ``untied`` are not the head's."""
TABLE = "model.embed_tokens"
ROWS = f"{TABLE}.trainable_tokens_delta.default"
IN_PEFT = f"{TABLE}.token_adapter.trainable_tokens_delta.default"


@pytest.fixture(scope="session")
def bases(models, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "untied"
    return {**models, "untied": write_tiny_model(path, "llama", tied=False, initializer_range=0.2)}


@pytest.fixture
def spec_for(spec_of, bases):
    def build(model="qwen3", *, options=None, **changes):
        options = {"trainable_token_indices": TOKENS, "serve": "merged", **(options or {})}
        return spec_of(options=options, model_path=str(bases[model]), **changes)

    return build


@pytest.mark.parametrize("model", MODELS)
def test_the_rows_begin_as_the_bases(start, spec_for, bases, model):
    backend = start(spec_for(model), fresh=True)

    expected = logits_of(plain_model(bases[model]))
    torch.testing.assert_close(own_logits(backend), expected, atol=1e-4, rtol=1e-4)
    assert trained(backend)[ROWS].shape == (3, 32)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_the_rows_are_those_of_peft(
    start, spec_for, plain_sgd, bases, tmp_path, model
):
    backend, batch = start(spec_for(model, **plain_sgd)), make_batch(num=12)
    backend.export(tmp_path)
    by_peft = PeftModel.from_pretrained(plain_model(bases[model]), tmp_path, is_trainable=True)

    actual = moved(backend, batch)

    expected = peft_gradient(by_peft.eval(), batch)
    expected[ROWS] = expected.pop(IN_PEFT)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)
    assert expected[ROWS].abs().amax(dim=1).min() > 1e-4


@pytest.mark.parametrize(
    ("dtype", "compute_dtype"),
    [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")],
)
def test_the_rows_learn_and_the_base_stays(start, spec_for, train, dtype, compute_dtype):
    backend = start(spec_for(dtype=dtype), fresh=True, compute_dtype=compute_dtype)
    before, base = trained(backend)[ROWS], base_of(backend)

    train(backend, range(4))

    assert (trained(backend)[ROWS] != before).any(dim=1).all()
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)


@pytest.mark.parametrize("model", MODELS)
def test_peft_and_transformers_load_the_export(start, spec_for, bases, train, tmp_path, model):
    backend = start(spec_for(model))
    train(backend)

    backend.export(tmp_path)

    expected = own_logits(backend)
    assert (expected - logits_of(plain_model(bases[model]))).abs().max() > 1e-2
    by_peft = PeftModel.from_pretrained(plain_model(bases[model]), tmp_path).eval()
    torch.testing.assert_close(logits_of(by_peft), expected, atol=1e-4, rtol=1e-4)
    by_transformers = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(logits_of(by_transformers), expected, atol=1e-4, rtol=1e-4)
    merged = merge_adapter(
        plain_model(bases[model]), str(bases[model]), read_adapter(str(tmp_path))
    )
    torch.testing.assert_close(logits_of(merged), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_engines_get_the_rows_in_embeddings_and_in_a_tied_head(
    start, spec_for, bases, train, model
):
    backend = start(spec_for(model))
    train(backend)
    plain = plain_model(bases[model])

    state = {name: tensor for bucket in backend.buckets() for name, tensor in bucket.items()}

    assert list(state) == list(plain.state_dict())
    changed = (state[f"{TABLE}.weight"] != plain.get_input_embeddings().weight).any(dim=1)
    assert changed.nonzero()[:, 0].tolist() == sorted(TOKENS)
    is_tied = torch.equal(state["lm_head.weight"], state[f"{TABLE}.weight"])
    assert is_tied == (model != "untied")
    merged = plain_model(bases[model], state)
    torch.testing.assert_close(logits_of(merged), own_logits(backend), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weights", ["shared", "copy"])
def test_the_engine_samples_from_the_model_with_the_rows(start, spec_for, train, weights):
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
    off = backend.base_logprobs(rows)
    assert np.abs(off - rows.rollout_logprobs).max() > 1e-2


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_an_engine_that_takes_factors_alone_is_refused_by_name(start, spec_for, spec_of, adapter):
    options = {"trainable_token_indices": TOKENS}
    fix = (
        r"adapter lora with --actor\.lora\.serve merged" if adapter == "qlora" else r"serve merged"
    )
    backend = start(spec_of(adapter, options=options))

    with pytest.raises(
        ConfigError, match=f"{TABLE}.*{fix}", check=has_code("adapter/unservable-layer")
    ):
        list(backend.buckets())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_run_goes_on_to_the_bit(start, spec_for, train, tmp_path, dtype):
    spec = spec_for(dtype=dtype, options={"dropout": 0.3})
    straight = start(spec, fresh=True)
    train(straight)
    straight.save(tmp_path)
    expected = train(straight, range(2, 4))
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path)

    assert train(resumed, range(2, 4)) == expected
    torch.testing.assert_close(trained(resumed), trained(straight), atol=0, rtol=0)
    assert ROWS in trained(straight)


@pytest.mark.parametrize("model", ["qwen3", "untied"])
def test_an_export_goes_on_with_its_rows_which_are_also_the_reference(
    start, spec_for, spec_of, bases, train, tmp_path, model
):
    first = start(spec_for(model))
    train(first)
    first.export(tmp_path)
    options = {"init_from": str(tmp_path), "serve": "merged"}
    second = start(spec_of(options=options, model_path=str(bases[model])), fresh=True)
    torch.testing.assert_close(own_logits(second), own_logits(first), atol=0, rtol=0)
    rows = make_trajectories()
    began = second.logprobs(rows)
    np.testing.assert_array_equal(second.base_logprobs(rows), began)

    train(second)

    np.testing.assert_array_equal(second.base_logprobs(rows), began)
    assert (trained(second)[ROWS] != trained(first)[ROWS]).any(dim=1).all()


@pytest.mark.parametrize("model", ["qwen3", "untied"])
def test_a_folder_of_pefts_own_goes_on(start, spec_of, bases, write_adapter, model):  # noqa: F811
    folder = write_adapter(bases[model], trainable_token_indices=list(TOKENS))
    options = {"init_from": str(folder), "serve": "merged"}

    backend = start(spec_of(options=options, model_path=str(bases[model])), fresh=True)

    by_peft = PeftModel.from_pretrained(plain_model(bases[model]), folder).eval()
    torch.testing.assert_close(own_logits(backend), logits_of(by_peft), atol=1e-5, rtol=1e-5)


def test_a_folder_whose_file_has_other_rows_is_refused(start, spec_of, bases, write_adapter):  # noqa: F811
    folder = write_adapter(bases["qwen3"], trainable_token_indices=list(TOKENS))
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "trainable_token_indices": [7]}))

    with pytest.raises(
        ConfigError, match=r"\(1, 32\).*\(3, 32\)", check=has_code("adapter/other-rows")
    ):
        start(spec_of(options={"init_from": str(folder), "serve": "merged"}), fresh=True)


def test_a_critic_learns_rows_that_its_unused_head_shares(start, spec_for, train):
    spec = spec_for(role="critic", head="value", objective=ValueObjective())
    backend = start(spec, fresh=True)
    before = trained(backend)[ROWS]

    train(backend, range(4))

    assert (trained(backend)[ROWS] != before).any(dim=1).all()


def test_whole_heads_and_principal_factors_go_with_rows(start, spec_for, bases, train, tmp_path):
    for number, more in enumerate(({"modules_to_save": ("lm_head",)}, {"init": "pissa"})):
        backend = start(spec_for("untied", options=more))
        train(backend)
        backend.export(tmp_path / str(number))
        by_peft = PeftModel.from_pretrained(plain_model(bases["untied"]), tmp_path / str(number))
        torch.testing.assert_close(logits_of(by_peft), own_logits(backend), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "options", "message", "code"),
    [
        (
            "qwen3",
            {"trainable_token_indices": (5, 4000)},
            r"indices 4000 .* has \d+ rows",
            "adapter/no-token-row",
        ),
        (
            "untied",
            {"target": ("embed_tokens", "q_proj")},
            r"changes model\.embed_tokens in another way too",
            "adapter/changed-twice",
        ),
        (
            "untied",
            {"modules_to_save": ("embed_tokens",)},
            r"changes model\.embed_tokens in another way too",
            "adapter/changed-twice",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(start, spec_for, model, options, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        start(spec_for(model, options=options))


@pytest.mark.parametrize("tokens", [(-1,), (3, 3)])
def test_ids_are_tokens_each_once(tokens):
    with pytest.raises(ValueError, match="each once"):
        LoraOptions(trainable_token_indices=tokens)
