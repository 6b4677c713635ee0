"""Rotary embeddings that are scaled for long sequences: a sequence in a row is rotated as it is alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import (
    EngineSpec,
    GenerationRequest,
    RoleSpec,
    SamplingParams,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.plugins import empty
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.errors import has_code
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed import rope
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.packed.shared_starts import SharedLayout
from rlhf_torch.rows.packed_rows import pack_rows

LIMIT = 32
SHORT, LONG = [1.0, 1.0, 1.0, 1.0], [2.0, 3.0, 4.0, 6.0]
MODELS = {
    "phi3_longrope": (
        "phi3",
        {
            "max_position_embeddings": 4 * LIMIT,
            "original_max_position_embeddings": LIMIT,
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": SHORT,
                "long_factor": LONG,
                "rope_theta": 10000.0,
            },
        },
    ),
    "llama_dynamic": ("llama", {"rope_type": "dynamic", "factor": 4.0}),
    "qwen2_dynamic": ("qwen2", {"rope_type": "dynamic", "factor": 4.0}),
    "llama_linear": ("llama", {"rope_type": "linear", "factor": 4.0}),
    "qwen2_yarn": (
        "qwen2",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LIMIT // 4},
    ),
    "llama_llama3": (
        "llama",
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": LIMIT // 4,
        },
    ),
}
LENGTH_DEPENDENT = ("phi3_longrope", "llama_dynamic", "qwen2_dynamic")
LENGTHS = [(8, 70), (70, 8), (LIMIT, LIMIT + 1, 90), (90, 5, 60, LIMIT + 1, LIMIT)]


def write(folder: Path, name: str, **changes: object) -> Path:
    """A tiny model with random weights that are large enough for positions to matter."""
    model_type, options = MODELS[name]
    if "rope_type" in options:
        options = {"rope_parameters": {"rope_theta": 10000.0, **options}}
    config = AutoConfig.for_model(
        model_type,
        **{
            "vocab_size": 100,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": LIMIT,
            "initializer_range": 0.2,
            "pad_token_id": 0,
            **options,
            **changes,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("rope")
    return {name: write(root / name, name) for name in MODELS}


def row_of(length: int) -> torch.Tensor:
    return (torch.arange(length) * 7919 + length) % 90 + 4


def packed_logprobs(lm: CausalLM, *lengths: int) -> list[torch.Tensor]:
    """(T, V) for each row."""
    layout = PackedLayout([0, *np.cumsum(lengths).tolist()], lm.device)
    tokens = torch.cat([row_of(length) for length in lengths])
    with torch.no_grad():
        logits = lm.logits(lm.hidden(tokens, layout.positions(), layout))
    return list(logits.log_softmax(-1).split(lengths))


def own_logprobs(folder: Path, length: int) -> torch.Tensor:
    """(T, V) by a model of Transformers that has seen nothing else."""
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return own(input_ids=row_of(length)[None], use_cache=False).logits[0].log_softmax(-1)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_packed_logprobs_are_those_of_each_sequence_alone(folders, name, lengths):
    lm = load_causal_lm(str(folders[name]), dtype="float32")

    for length, actual in zip(lengths, packed_logprobs(lm, *lengths), strict=True):
        torch.testing.assert_close(actual, own_logprobs(folders[name], length), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("name", MODELS)
def test_what_was_computed_before_changes_nothing(folders, name):
    lm = load_causal_lm(str(folders[name]), dtype="float32")
    (before,) = packed_logprobs(lm, LIMIT)
    (long_before,) = packed_logprobs(lm, 60)

    packed_logprobs(lm, 90, 5)

    torch.testing.assert_close(packed_logprobs(lm, LIMIT)[0], before, atol=0, rtol=0)
    torch.testing.assert_close(packed_logprobs(lm, 60)[0], long_before, atol=0, rtol=0)


def batch_of(prompt: int, *responses: int) -> TrajectoryColumns:
    """Samples of one prompt."""
    start = row_of(prompt).tolist()
    return TrajectoryColumns.from_trajectories(
        [
            Trajectory(
                uid=Uid(0, 0, sample),
                token_ids=np.array([*start, *row_of(length).tolist()], dtype=np.int32),
                action_mask=np.arange(prompt + length) >= prompt,
                rollout_logprobs=np.zeros(length, dtype=np.float32),
                weight_version=np.zeros(length, dtype=np.int32),
                turns=(Turn(start=prompt, end=prompt + length),),
                reward=0.0,
            )
            for sample, length in enumerate(responses)
        ]
    )


@pytest.mark.parametrize(("responses", "shared"), [((5, 9, 7), True), ((5, 40, 7), False)])
@pytest.mark.parametrize("name", LENGTH_DEPENDENT)
def test_a_prompt_is_shared_by_sequences_that_rotate_it_alike(
    folders, name, responses, shared, caplog
):
    caplog.set_level("INFO", logger="rlhf_torch")
    backend = TorchBackend(TorchBackendConfig(device="cpu"))
    backend.setup(RoleSpec(role="reference", model_path=str(folders[name])), empty())
    batch = batch_of(20, *responses)

    actual = backend.logprobs(batch)

    own = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32).eval()
    expected = []
    for row in range(len(batch)):
        tokens = torch.from_numpy(batch.select(np.array([row])).token_ids.astype(np.int64))
        with torch.no_grad():
            logprobs = own(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        expected.append(logprobs[19:-1].gather(1, tokens[20:, None])[:, 0])
    torch.testing.assert_close(torch.from_numpy(actual), torch.cat(expected), atol=1e-5, rtol=0.0)
    layout = backend._packed(batch, np.arange(len(batch))).layout
    assert isinstance(layout, SharedLayout) is shared
    said = [line for line in caplog.messages if "compute beginnings for each of them" in line]
    assert len(said) == (0 if shared else 1)


def test_sequences_that_share_nothing_count_whole_in_a_micro_batch(folders):
    spec = RoleSpec(
        role="reference",
        model_path=str(folders["phi3_longrope"]),
        max_tokens_per_micro_batch=130,
    )
    backend = TorchBackend(TorchBackendConfig(device="cpu"))
    backend.setup(spec, empty())
    batch = batch_of(20, 40, 40, 40, 40)

    cut = backend._micro_batches(batch)

    assert [batch.num_tokens[rows].sum() for rows in cut] == [120, 120]


def test_a_shared_prompt_of_different_lengths_is_an_error(folders):
    lm = load_causal_lm(str(folders["phi3_longrope"]), dtype="float32")
    packed = pack_rows(batch_of(20, 5, 40), np.arange(2), lm.device, share_prompts=True)

    with pytest.raises(RuntimeError, match="sequences of different lengths share tokens"):
        lm.hidden(packed.input_ids, packed.position_ids, packed.layout)


class Source:
    """A training backend whose model the engine shares."""

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm

    def module(self) -> torch.nn.Module:
        return self._lm


async def generate(lm: CausalLM, folder: Path, prompts: list[int], max_length: int):
    engine = EmbeddedEngine(EmbeddedEngineConfig())
    spec = EngineSpec(
        model_path=str(folder),
        dtype="float32",
        max_length=max_length,
        max_concurrency=8,
        eos_token_ids=(),
    )
    await engine.start(spec, Source(lm))
    requests = [
        GenerationRequest(
            uid=Uid(0, number),
            prompt_ids=tuple(row_of(length).tolist()),
            seeds=(1,),
            sampling=SamplingParams(max_new_tokens=max_length),
        )
        for number, length in enumerate(prompts)
    ]
    return [group[0] for group in await asyncio.gather(*map(engine.generate, requests))]


@pytest.mark.parametrize(
    ("name", "max_length"),
    [(name, LIMIT) for name in LENGTH_DEPENDENT]
    + [(name, 70) for name in MODELS if name not in LENGTH_DEPENDENT]
    + [("equal_factors", 70)],
)
def test_the_engine_samples_by_the_trainers_logprobs(folders, name, max_length, tmp_path):
    if name == "equal_factors":
        options = MODELS["phi3_longrope"][1]["rope_parameters"] | {"short_factor": LONG}
        folder = write(tmp_path / "equal", "phi3_longrope", rope_parameters=options)
    else:
        folder = folders[name]
    lm = load_causal_lm(str(folder), dtype="float32")
    prompts = [3, 17, LIMIT - 1]
    packed_logprobs(lm, 90, 5)

    completions = asyncio.run(generate(lm, folder, prompts, max_length))

    for prompt, completion in zip(prompts, completions, strict=True):
        tokens = torch.tensor([*row_of(prompt).tolist(), *completion.token_ids])
        assert len(tokens) == max_length
        layout = PackedLayout([0, len(tokens)], lm.device)
        with torch.no_grad():
            logprobs = lm.logits(lm.hidden(tokens, layout.positions(), layout)).log_softmax(-1)
        expected = logprobs[prompt - 1 : -1].gather(1, tokens[prompt:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("name", LENGTH_DEPENDENT)
def test_the_engine_refuses_lengths_at_which_earlier_tokens_rotate_anew(folders, name):
    lm = load_causal_lm(str(folders[name]), dtype="float32")

    with pytest.raises(
        ConfigError,
        match=r"than 32 tokens.*allows 33.*--rollout.max_length 32",
        check=has_code("model/rope-changes"),
    ):
        asyncio.run(generate(lm, folders[name], [3], LIMIT + 1))


@pytest.mark.parametrize("name", LENGTH_DEPENDENT)
def test_frequencies_that_nobody_keeps_apart_are_refused(folders, name, monkeypatch):
    """The probe's rows are short; it has the ends of long sequences for this."""
    monkeypatch.setattr(rope, "constant_length", lambda rotary: None)

    with pytest.raises(PluginError, match="rotary_emb", check=has_code("model/rope-of-row")):
        load_causal_lm(str(folders[name]), dtype="float32")


def test_layers_that_look_at_lengths_are_no_single_graph(folders):
    lm = load_causal_lm(str(folders["llama_dynamic"]), dtype="float32")

    with pytest.raises(
        PluginError,
        match="rotary embedding depend on the length",
        check=has_code("model/not-compilable"),
    ):
        lm.compile_layers()
