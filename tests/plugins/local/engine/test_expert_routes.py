"""Experts that the engine tells: the trainer that follows them computes the engine's own log-probs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import (
    EngineSpec,
    GenerationRequest,
    PolicyObjective,
    RoleSpec,
    SamplingParams,
    TrainBatch,
    TrajectoryColumns,
    Uid,
)
from rlhf_episodes import EpisodeGraph
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.conformance.tiny_policy import LOSS, SGD, plain_plugins, step_plan
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer, write_tiny_model
from rlhf_torch.experts.choices import ExpertChoices

LAYERS, EXPERTS, TOP_K = 2, 4, 2
FAMILIES = ("qwen3_moe", "deepseek_v3", "granitemoe")
PROMPTS = [tuple((np.arange(3 + 35 * n) * 7 + n) % 90 + 4) for n in range(3)]
"""The last one fills a page of the cache, which its later turns find again."""
PROMPTS = [tuple(map(int, prompt)) for prompt in PROMPTS]
ROUNDING = 1e-5


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny mixture of a family, with weights large enough that the choice of experts matters."""
    folders: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in folders:
            folders[family] = _write(tmp_path_factory.mktemp(family), family)
        return folders[family]

    return folder_of


def _write(folder: Path, family: str) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_tokenizer()
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 32,
        "moe_intermediate_size": 32,
        "num_hidden_layers": LAYERS + (family == "deepseek_v3"),
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts_per_tok": TOP_K,
        "max_position_embeddings": 256,
    }
    sizes |= {
        "qwen3_moe": {"num_experts": EXPERTS, "head_dim": 8},
        "granitemoe": {"num_local_experts": EXPERTS},
        "deepseek_v3": {
            "n_routed_experts": EXPERTS,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 2,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
        },
    }[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def policy(mixture) -> Iterator[Callable[..., TorchBackend]]:
    """Set up the policy of a run on a mixture of a family."""
    opened: list[TorchBackend] = []

    def open_policy(
        family: str,
        *,
        share_prompts: bool = True,
        recomputes: bool = False,
        compiles: bool = False,
        **changes: Any,
    ) -> TorchBackend:
        config = TorchBackendConfig(
            device="cpu",
            share_prompts=share_prompts,
            gradient_checkpointing=recomputes,
            compile=compiles,
        )
        backend = TorchBackend(config)
        spec = RoleSpec(
            role="policy",
            model_path=str(mixture(family)),
            objective=PolicyObjective(loss=LOSS, aggregation="token-mean"),
            optimizer=SGD,
            **{"replays_routes": True, **changes},
        )
        backend.setup(spec, plain_plugins(None))
        opened.append(backend)
        return backend

    yield open_policy
    for backend in opened:
        backend.close()


@pytest.fixture
def other_choices(monkeypatch) -> None:
    """An engine that sends each token to its worst experts, so that the trainer's own are others everywhere."""
    plain = ExpertChoices.answer

    def worst(self: ExpertChoices, layer: int, scores: torch.Tensor, own: Any) -> Any:
        if self._taken is None:
            return plain(self, layer, scores, own)
        # Scores of groups that were left out are minus infinity; here none is.
        own = torch.topk(scores, self.top_k or own.indices.shape[-1], largest=False)
        return plain(self, layer, scores, own)

    monkeypatch.setattr(ExpertChoices, "answer", worst)


@pytest.fixture
def play(run, decode) -> Callable[..., TrajectoryColumns]:
    """Two samples of each prompt, with a second turn, and a fork in the first answer, as rows of a batch."""

    def played(policy: TorchBackend, **options: Any) -> TrajectoryColumns:
        return run(_play(policy, {"decode": decode, "slots": 4, **options}))

    return played


async def _play(policy: TorchBackend, options: dict[str, Any]) -> TrajectoryColumns:
    engine = EmbeddedEngine(EmbeddedEngineConfig(**options))
    spec = EngineSpec(
        model_path=policy._spec.model_path,
        dtype="float32",
        max_length=160,
        max_concurrency=8,
        eos_token_ids=(),
        returns_routes=True,
    )
    await engine.start(spec, policy)

    async def episode(number: int, sample: int) -> list[Any]:
        graph = EpisodeGraph(Uid(0, number, sample))

        async def ask(prompt: tuple[int, ...], seed: int) -> tuple[int, ...]:
            request = GenerationRequest(
                uid=graph.uid,
                prompt_ids=prompt,
                seeds=(seed,),
                sampling=SamplingParams(max_new_tokens=18),
            )
            (completion,) = await engine.generate(request)
            graph.add(prompt, completion)
            return tuple(completion.token_ids.tolist())

        first = await ask(PROMPTS[number], 10 * number + sample)
        await ask((*PROMPTS[number], *first, 5, 6, 7), 100 + sample)
        await ask((*PROMPTS[number], *first[:7], 8, 9), 200 + sample)
        return graph.trajectories()

    try:
        pairs = [(number, sample) for number in range(len(PROMPTS)) for sample in range(2)]
        played = await asyncio.gather(*(episode(*pair) for pair in pairs))
    finally:
        await engine.close()
    return TrajectoryColumns.from_trajectories([row for rows in played for row in rows])


def with_routes(rows: TrajectoryColumns, routes: np.ndarray | None) -> TrajectoryColumns:
    """The rows with other routes."""
    return replace(rows, tokens=replace(rows.tokens.read(), routes=routes))


def distance(policy: TorchBackend, rows: TrajectoryColumns) -> float:
    return float(np.abs(policy.logprobs(rows) - rows.rollout_logprobs).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trainer_that_follows_the_engine_has_its_logprobs(family, policy, play, other_choices):
    trainer = policy(family)

    rows = play(trainer)

    routes = rows.tokens.read().routes
    assert routes.dtype == np.int8
    assert routes.shape == (len(rows.token_ids), LAYERS, TOP_K)
    ends = rows.token_offsets[1:] - 1
    unknown = np.flatnonzero((routes < 0).any(axis=(1, 2)))
    assert set(unknown.tolist()) == set(ends.tolist())  # nothing has read the last tokens
    assert distance(trainer, rows) <= ROUNDING
    assert distance(trainer, with_routes(rows, None)) > 1e-2


def test_routes_do_not_depend_on_company(policy, play, other_choices):
    trainer = policy("qwen3_moe")

    together = play(trainer, slots=8)
    alone = play(trainer, slots=1, share_prefixes=False)

    found, expected = alone.tokens.read(), together.tokens.read()
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.routes, expected.routes)


@pytest.mark.parametrize("decode", ["resident"])
def test_packed_rows_compute_what_each_computes_alone(policy, play, other_choices):
    whole, single = policy("qwen3_moe"), policy("qwen3_moe", max_tokens_per_micro_batch=1)
    rows = play(whole)

    expected = policy("qwen3_moe", share_prompts=False).logprobs(rows)

    np.testing.assert_allclose(whole.logprobs(rows), expected, atol=ROUNDING)
    np.testing.assert_allclose(single.logprobs(rows), expected, atol=ROUNDING)


@pytest.mark.parametrize("decode", ["resident"])
def test_a_wrong_route_changes_the_logprobs_behind_it_alone(policy, play):
    trainer = policy("qwen3_moe", max_tokens_per_micro_batch=1)
    rows = play(trainer)
    routes = rows.tokens.read().routes.copy()
    place = int(rows.token_offsets[2]) + 4
    routes[place] = (routes[place] + 1) % EXPERTS

    found = np.abs(trainer.logprobs(with_routes(rows, routes)) - rows.rollout_logprobs)

    own = np.arange(rows.action_offsets[2], rows.action_offsets[3])
    assert found[own].max() > 1e-3
    assert np.delete(found, own).max() <= ROUNDING


@pytest.mark.parametrize("decode", ["resident"])
@pytest.mark.parametrize(
    ("change", "message", "code"),
    [
        (
            lambda routes: routes[:, :1],
            r"\(1, 2\); its model has \(2, 2\)",
            "rollout/routes-of-another-model",
        ),
        (
            lambda routes: routes[:, :, :1],
            r"\(2, 1\); its model has \(2, 2\)",
            "rollout/routes-of-another-model",
        ),
        (
            lambda routes: np.where(routes == 3, 4, routes),
            "name expert 4 in layer 0",
            "rollout/unknown-expert",
        ),
        (
            lambda routes: routes * np.array([1, 0], np.int8) - np.array([0, 1], np.int8),
            "fewer",
            "rollout/incomplete-routes",
        ),
    ],
)
def test_routes_of_another_model_are_refused(change, message, policy, play, code):
    trainer = policy("qwen3_moe")
    rows = play(trainer)

    with pytest.raises(PluginError, match=message, check=has_code(code)):
        trainer.logprobs(with_routes(rows, change(rows.tokens.read().routes)))


@pytest.mark.parametrize("decode", ["resident"])
def test_an_update_follows_routes_in_recomputed_layers_too(policy, play, other_choices):
    rows = play(policy("qwen3_moe"))
    batch = batch_of(rows)
    found = []
    for recomputes in (False, True):
        trainer = policy("qwen3_moe", recomputes=recomputes)
        metrics = trainer.train_step(batch, step_plan(rows)).metrics
        assert metrics["policy/moe/replayed_differently"].total == 1.0
        found.append({name: weight.clone() for name, weight in trainer._model.named_weights()})
    plain = policy("qwen3_moe", replays_routes=False)
    plain.train_step(batch, step_plan(rows))
    weights = dict(plain._model.named_weights())

    gates = [name for name in weights if name.endswith("gate.weight")]
    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, atol=1e-6, rtol=1e-5, msg=name)
    assert len(gates) == LAYERS  # the weights of the given experts have a gradient
    assert all((found[0][name] - weights[name]).abs().max() > 1e-4 for name in gates)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Inductor itself uses what torch has deprecated.
@pytest.mark.parametrize("decode", ["resident"])
def test_compiled_layers_follow_routes(policy, play, other_choices, caplog):
    rows = play(policy("qwen3_moe"))
    found = []
    for compiles in (False, True):
        trainer = policy("qwen3_moe", compiles=compiles)
        assert distance(trainer, rows) <= ROUNDING
        metrics = trainer.train_step(batch_of(rows), step_plan(rows)).metrics
        assert metrics["policy/moe/replayed_differently"].total == 1.0
        found.append({name: weight.clone() for name, weight in trainer._model.named_weights()})

    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, atol=1e-5, rtol=1e-4, msg=name)
    assert "not compiled" not in caplog.text


@pytest.mark.parametrize("decode", ["resident"])
def test_an_engine_of_the_same_choices_shows_no_difference(policy, play):
    trainer = policy("qwen3_moe")
    rows = play(trainer)

    metrics = trainer.train_step(batch_of(rows), step_plan(rows)).metrics

    assert metrics["policy/moe/replayed_differently"].total == 0.0


@pytest.mark.parametrize("decode", ["resident"])
def test_samples_without_routes_are_refused(policy, play):
    trainer = policy("qwen3_moe")
    rows = with_routes(play(trainer), None)

    with pytest.raises(PluginError, check=has_code("rollout/no-routes")):
        trainer.train_step(batch_of(rows), step_plan(rows))


def test_a_dense_model_has_no_routes(tmp_path):
    backend = TorchBackend(TorchBackendConfig(device="cpu"))
    spec = RoleSpec(
        role="policy",
        model_path=str(write_tiny_model(tmp_path)),
        objective=PolicyObjective(loss=LOSS, aggregation="token-mean"),
        optimizer=SGD,
        replays_routes=True,
    )

    with pytest.raises(ConfigError, match="replay_routes", check=has_code("model/no-experts")):
        backend.setup(spec, plain_plugins(None))


def batch_of(rows: TrajectoryColumns) -> TrainBatch:
    columns = {"advantages": np.cos(np.arange(len(rows.rollout_logprobs))).astype(np.float32)}
    columns["old_logprobs"] = rows.rollout_logprobs
    return TrainBatch(trajectories=rows, columns=columns)
