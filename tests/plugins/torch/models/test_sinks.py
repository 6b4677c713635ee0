"""Attention sinks: a score of each head that takes a share of every query's weights, in GPT-OSS."""

import asyncio
import math
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from tests.plugins.lora.test_training import peft_gradient
from tests.plugins.torch.models.test_architectures import ACCEPTED, COMMON, Source
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core import PluginError
from rlhf_core.contracts import (
    EngineSpec,
    GenerationRequest,
    SamplingParams,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed import score_matrix
from rlhf_torch.packed.attention import refuse_sinks
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.packed.score_matrix import attention_in_parts, materialized_attention, tail_mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-OSS whose sinks take a large share of the weights, with a tokenizer."""
    path = tmp_path_factory.mktemp("sinks") / "model"
    config = AutoConfig.for_model("gpt_oss", **{**COMMON, **ACCEPTED["gpt_oss"]})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.sinks.copy_(torch.tensor([2.0, -1.0, 0.5, 3.0]))
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def plain(path):
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def test_a_sink_takes_its_share_of_the_weights():
    """Scores ln 1 and ln 2 beside a sink of ln 3: weights 1/6 and 2/6 of the values 6 and 12."""
    query = torch.tensor([[[[1.0]]]])
    key = torch.tensor([[[[0.0], [math.log(2.0)]]]])
    value = torch.tensor([[[[6.0], [12.0]]]])
    mask = torch.ones(1, 2, dtype=torch.bool)

    actual = materialized_attention(
        query, key, value, mask, 1.0, None, torch.tensor([math.log(3.0)])
    )

    torch.testing.assert_close(actual, torch.tensor([[[[5.0]]]]))


def test_a_sink_without_weight_changes_nothing():
    parts = [torch.randn(2, heads, 7, 4) for heads in (6, 2, 2)]
    mask = tail_mask(7, 7, 3, torch.device("cpu"))

    without = materialized_attention(*parts, mask, 0.5, None)

    actual = materialized_attention(*parts, mask, 0.5, None, torch.full((6,), -100.0))
    torch.testing.assert_close(actual, without)


@pytest.mark.parametrize(("softcap", "has_sinks"), [(None, True), (2.0, True), (2.0, False)])
def test_parts_of_the_queries_have_the_numbers_and_gradients_of_all_at_once(
    monkeypatch, softcap, has_sinks
):
    drawn = torch.Generator().manual_seed(1)
    shapes = ((3, 4, 9, 8), (3, 2, 9, 8), (3, 2, 9, 8), *([(4,)] if has_sinks else []))
    parts = [torch.randn(shape, generator=drawn, dtype=torch.float64) for shape in shapes]
    found = []
    for most in (2**26, 3 * 4 * 9 * 2):  # two queries at once
        monkeypatch.setattr(score_matrix, "MAX_SCORES", most)
        query, key, value, *sinks = given = [part.clone().requires_grad_() for part in parts]
        mask = tail_mask(9, 9, 5, torch.device("cpu"))
        output = attention_in_parts(query, key, value, mask, 0.3, softcap, *sinks)
        output.square().sum().backward()
        found.append([output, *(part.grad for part in given)])

    torch.testing.assert_close(found[1], found[0])
    if has_sinks:
        assert found[0][-1].abs().min() > 1e-3


def largest_kept(tokens, sinks):
    """Return the number of elements of the largest tensor that a pass keeps."""
    saved = []
    query, key = (torch.randn(1, heads, tokens, 8).requires_grad_() for heads in (4, 2))
    mask = tail_mask(tokens, tokens, None, torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        attention_in_parts(query, key, key, mask, 0.3, 2.0, sinks)
    return max(tensor.numel() for tensor in saved)


@pytest.mark.parametrize("sinks", [None, torch.zeros(4, requires_grad=True)])
def test_scores_are_kept_of_few_tokens_alone(sinks):
    """Of four heads 512 queries have 2**20 scores with as many keys, and 1024 four times as many."""
    kept = [largest_kept(tokens, sinks) for tokens in (512, 1024)]

    assert kept[0] == 4 * 512**2
    assert kept[1] <= 1024**2  # the mask, which all layers share


@pytest.mark.parametrize("window", [None, 4])
def test_packed_sequences_are_each_alone_with_sinks(window):
    lengths, drawn = (5, 9, 1), torch.Generator().manual_seed(2)
    row = [torch.randn(1, heads, sum(lengths), 8, generator=drawn) for heads in (4, 2, 2)]
    sinks = torch.tensor([0.5, -2.0, 1.0, 3.0])
    layout = PackedLayout([0, *accumulate(lengths)], torch.device("cpu"))
    options = {"scaling": 0.3, "sliding_window": window, "softcap": None, "sinks": sinks}

    together = layout.attend(0, *row, **options)

    alone = [
        PackedLayout([0, length], torch.device("cpu")).attend(0, *parts, **options)
        for length, *parts in zip(lengths, *(part.split(lengths, 2) for part in row), strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), atol=1e-6, rtol=1e-6)


def test_one_step_is_that_of_a_plain_loop(folder, start, sgd_spec, make_batch, make_plan):
    backend, batch = start(sgd_spec(folder)), make_batch()
    before = {name: weight.detach().clone() for name, weight in backend._model.named_weights()}

    backend.train_step(batch, make_plan(batch))

    expected = peft_gradient(plain(folder), batch)
    moved = {name: before[name] - each.detach() for name, each in backend._model.named_weights()}
    assert moved.keys() == expected.keys()
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-4)
    sinks = [gradient for name, gradient in expected.items() if name.endswith("sinks")]
    assert len(sinks) == 2
    assert min(float(each.abs().max()) for each in sinks) > 1e-4


def shared_rows():
    """Four answers to each of two prompts; two of the first begin alike."""
    drawn = np.random.default_rng(3)
    rows = []
    for prompt in range(2):
        first, middle = drawn.integers(4, 90, 20), drawn.integers(4, 90, 6)
        for sample in range(4):
            start = [first, middle] if sample < 2 and not prompt else [first]
            tokens = np.concatenate([*start, drawn.integers(4, 90, 5)]).astype(np.int32)
            mask = np.arange(len(tokens)) >= 20
            rows.append(
                Trajectory(
                    uid=Uid(0, prompt, sample),
                    token_ids=tokens,
                    action_mask=mask,
                    rollout_logprobs=np.zeros(mask.sum(), dtype=np.float32),
                    weight_version=np.zeros(mask.sum(), dtype=np.int32),
                    turns=(Turn(start=20, end=len(tokens)),),
                    reward=1.0,
                )
            )
    return TrajectoryColumns.from_trajectories(rows)


def test_shared_prompts_have_the_numbers_of_each_row_alone(folder, start, sgd_spec):
    rows = shared_rows()

    shared = start(sgd_spec(folder), share_prompts=True).logprobs(rows)

    apart = start(sgd_spec(folder), share_prompts=False)
    np.testing.assert_allclose(shared, apart.logprobs(rows), atol=1e-5)
    alone = [apart.logprobs(rows.select(np.array([row]))) for row in range(len(rows))]
    np.testing.assert_allclose(shared, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize("decode", ["stepwise", "resident"])
def test_sampled_tokens_have_the_logprobs_of_transformers(folder, decode):
    """Prompts of several lengths, beyond the window, and a later turn that goes on from the cache."""
    lm = load_causal_lm(str(folder), dtype="float32")
    prompts = [tuple((np.arange(size) * 7 + size) % 90 + 4) for size in (3, 30, 12)]

    completions = asyncio.run(sampled(lm, folder, prompts, decode))

    model = plain(folder)
    for tokens, completion in completions:
        whole = torch.tensor([[*tokens, *completion.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=whole, use_cache=False).logits[0, len(tokens) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, whole[0, len(tokens) :, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, own.numpy(), atol=1e-4)


async def sampled(lm, folder, prompts, decode):
    engine = EmbeddedEngine(EmbeddedEngineConfig(decode=decode, compile=False))
    spec = EngineSpec(
        model_path=str(folder),
        dtype="float32",
        max_length=120,
        max_concurrency=4,
        eos_token_ids=(),
    )
    await engine.start(spec, Source(lm))
    found = []

    async def answer(number, tokens):
        (completion,) = await engine.generate(
            GenerationRequest(
                uid=Uid(0, number),
                prompt_ids=tokens,
                seeds=(number,),
                sampling=SamplingParams(max_new_tokens=20),
            )
        )
        found.append((tokens, completion))
        return (*tokens, *completion.token_ids, 5, 6, 7)

    later = await asyncio.gather(*(answer(n, tokens) for n, tokens in enumerate(prompts)))
    await asyncio.gather(*(answer(10 + n, tokens) for n, tokens in enumerate(later)))
    await engine.close()
    return found


def test_a_restored_run_goes_on_to_the_bit_and_its_export_is_plain(
    folder, start, make_spec, refs, steps, tmp_path
):
    spec = replace(make_spec(folder), optimizer=refs.fast_adam)
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


def test_layouts_without_sinks_refuse_them_with_the_option():
    with pytest.raises(
        PluginError, match="Set deep_compile to false", check=has_code("model/attention-sinks")
    ):
        refuse_sinks(torch.zeros(4), "Set deep_compile to false.")
