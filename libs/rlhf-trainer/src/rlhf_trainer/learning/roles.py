"""From the resolved configuration to the models of a run: one RoleSpec for each, and the token ids that all know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf_config.checks.features import aggregation_of, has_entropy_bonus, prompts_in_flight
from rlhf_config.files import writable
from rlhf_config.resolved import Resolved, Selection, TermOptions
from rlhf_core.batch.vocabulary import Vocabulary
from rlhf_core.capabilities import SEVERAL_TURNS
from rlhf_core.component import ComponentRef
from rlhf_core.contracts.backend import (
    LossTerm,
    PolicyObjective,
    RoleSpec,
    ValueObjective,
)
from rlhf_core.contracts.engine import EngineSpec
from rlhf_core.contracts.model_adapter import ModelAdapter
from rlhf_core.contracts.runtime import RolloutSpec, RuntimeSpec
from rlhf_core.plugins import require_methods
from rlhf_core.rng import seed_of
from rlhf_data.vocabulary import (
    check_rows,
    check_same_tokens,
    common_rows,
    note_other_template,
    vocabulary_of,
)
from rlhf_guard.environments.chosen import environment_spec
from rlhf_guard.rewards.spec import spec_of

from ..rollouts.images import image_reader_spec, vision_spec
from .demands import Demands
from .schedules import schedule_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf_data.chat.renderer import TokenizerRenderer

POLICY, CRITIC, REFERENCE, TEACHER = "policy", "critic", "reference", "teacher"


def runtime_spec(
    resolved: Resolved,
    demands: Demands,
    *,
    total_steps: int,
    eos_token_ids: tuple[int, ...],
    vocabulary: Vocabulary | None = None,
) -> RuntimeSpec:
    """Return the description of everything that the runtime has to build.

    Args:
        eos_token_ids: tokens that end a turn.
        vocabulary: token ids that have a probability; None: every row of an output head.
    """
    run, adapted = resolved.run, resolved.optional("actor.adapter")
    adapter: ModelAdapter | None = None
    if adapted is not None:
        adapter = require_methods("rlhf_model_adapters", adapted.registered, adapted.build())
    roles = {POLICY: policy_role(resolved, demands, total_steps)}
    if demands.critic:
        roles[CRITIC] = critic_role(resolved, demands, total_steps)
    if demands.reference and not is_base_reference(resolved):
        roles[REFERENCE] = _role(resolved, REFERENCE, run.ref.path or run.model.path)
    if demands.teacher:
        assert run.algo.teacher.path is not None
        roles[TEACHER] = _role(resolved, TEACHER, run.algo.teacher.path)
    rows = vocabulary.size if vocabulary is not None and run.model.resize_embeddings else None
    roles = {
        name: replace(role, vocabulary=vocabulary, embedding_rows=rows)
        for name, role in roles.items()
    }
    completions = prompts_in_flight(run.rollout) * run.rollout.n_samples_per_prompt
    return RuntimeSpec(
        roles=roles,
        backend=_ref(resolved, "backend.name", "rlhf_train_backends"),
        engine=_ref(resolved, "engine.name", "rlhf_engines"),
        engine_spec=EngineSpec(
            model_path=run.model.path,
            dtype=run.model.dtype,
            max_length=max(run.longest_sequence, run.longest_held_out),
            max_concurrency=max(completions, run.eval.n_samples),
            eos_token_ids=eos_token_ids,
            vocabulary=vocabulary,
            embedding_rows=rows,
            trust_remote_code=run.model.trust_remote_code,
            vision=vision_spec(resolved),
            adapter_rank=None if adapter is None else adapter.served_rank,
            quantization=_quantization(adapter),
            overlaps=run.rollout.max_staleness > 0,
            returns_routes=run.algo.correction.replay_routes,
            several_turns=resolved.provides("rollout.executor", SEVERAL_TURNS),
        ),
        overlaps=run.rollout.max_staleness > 0,
        config=writable(resolved.tree),
        rollouts=_rollout_spec(resolved),
    )


def is_base_reference(resolved: Resolved) -> bool:
    """True when the policy keeps the reference, if any, so that no second model is needed: as its adapter began, or a
    copy of the weights that follows them."""
    if resolved.run.ref.sync_every is not None:
        return True
    reference, adapter = resolved.run.ref.path, resolved.optional("actor.adapter")
    if adapter is None or reference is None:
        return adapter is not None
    return reference == resolved.run.model.path and adapter.options.continued_from() is None


def _quantization(adapter: ModelAdapter | None) -> Mapping[str, Any] | None:
    """Return how the base is quantized as it is loaded, in plain values; None: it is not, or no engine serves it."""
    if adapter is None or adapter.served_rank is None:
        return None
    config = adapter.load_options().get("quantization_config")
    return None if config is None else json.loads(config.to_json_string(use_diff=False))


def _rollout_spec(resolved: Resolved) -> RolloutSpec:
    model = resolved.run.model
    return RolloutSpec(
        executor=_ref(resolved, "rollout.executor", "rlhf_rollout_executors"),
        environments=tuple(map(environment_spec, resolved.selections["env.use"])),
        tokenizer_path=model.tokenizer or model.path,
        trust_remote_code=model.trust_remote_code,
        control_words=resolved.run.data.control_words,
        template_kwargs=resolved.run.data.chat_template_kwargs,
        rewards=tuple(map(spec_of, resolved.selections["reward.use"])),
        images=image_reader_spec(resolved),
    )


def policy_role(resolved: Resolved, demands: Demands, total_steps: int) -> RoleSpec:
    run = resolved.run
    algo = run.algo
    kl_in_loss = algo.kl.coef > 0 and algo.kl.mode == "loss"
    policy_steps = total_steps - (run.critic.warmup_steps if demands.critic else 0)
    return replace(
        _role(resolved, POLICY, run.model.path),
        objective=PolicyObjective(
            loss=_ref(resolved, "algo.loss.policy", "rlhf_policy_losses"),
            aggregation=aggregation_of(
                algo.loss.aggregation,
                [resolved.one("algo.loss.policy"), resolved.one("algo.advantage.estimator")],
            ),
            correction=_optional_ref(resolved, "algo.correction.kind", "rlhf_is_corrections"),
            kl_estimator=_ref(resolved, "algo.kl.estimator", "rlhf_kl_estimators")
            if kl_in_loss
            else None,
            kl_tail=algo.kl.tail,
            kl_unbiased_gradient=algo.kl.unbiased_gradient,
            entropy_bonus=has_entropy_bonus(run),
            terms=tuple(_term(selection) for selection in resolved.selections["algo.terms.use"]),
            off_policy_mask=algo.loss.off_policy_mask,
        ),
        optimizer=_ref(resolved, "actor.optim", "rlhf_optimizers"),
        adapter=_optional_ref(resolved, "actor.adapter", "rlhf_model_adapters"),
        schedule=schedule_of(
            resolved.optional("actor.lr_schedule"),
            run.actor,
            max(1, policy_steps * demands.updates_per_step),
        ),
        max_grad_norm=run.actor.max_norm,
        router_aux_loss=run.actor.router_aux_loss,
        replays_routes=run.algo.correction.replay_routes,
        ema_decay=run.actor.ema,
        reference_sync=run.ref.sync_alpha if demands.reference and run.ref.sync_every else None,
    )


def _term(selection: Selection) -> LossTerm:
    options = selection.term
    assert isinstance(options, TermOptions)
    return LossTerm(
        loss=selection.ref("rlhf_policy_losses"),
        weight=options.weight,
        aggregation=aggregation_of(options.aggregation, [selection]),
        rows="supervised" if "supervised_data" in selection.needs else "rollouts",
    )


def critic_role(resolved: Resolved, demands: Demands, total_steps: int) -> RoleSpec:
    run = resolved.run
    return replace(
        _role(resolved, CRITIC, run.critic.path or run.model.path),
        head="value",
        objective=ValueObjective(value_clip=run.critic.value_clip),
        optimizer=_ref(resolved, "critic.optim", "rlhf_optimizers"),
        adapter=_optional_ref(resolved, "critic.adapter", "rlhf_model_adapters"),
        schedule=schedule_of(
            resolved.optional("critic.lr_schedule"),
            run.critic,
            total_steps * demands.updates_per_step,
        ),
        max_grad_norm=run.critic.max_norm,
        router_aux_loss=run.critic.router_aux_loss,
    )


def _role(resolved: Resolved, role: str, path: str) -> RoleSpec:
    run = resolved.run
    return RoleSpec(
        role=role,
        model_path=path,
        tokenizer_path=run.model.tokenizer,
        dtype=run.model.dtype,
        trust_remote_code=run.model.trust_remote_code,
        vision=vision_spec(resolved, run.actor.parts()),
        temperature=run.rollout.temperature,
        max_tokens_per_micro_batch=run.train.max_tokens_per_micro_batch,
        seed=seed_of(run.seed, f"role/{role}"),
    )


def _ref(resolved: Resolved, slot: str, hook: str) -> ComponentRef:
    return resolved.one(slot).ref(hook)


def _optional_ref(resolved: Resolved, slot: str, hook: str) -> ComponentRef | None:
    selection = resolved.optional(slot)
    return selection.ref(hook) if selection else None


_CRITIC = "--critic.path"

_Model = tuple[str, str]
"""The option that names a model of the run, and the model's path."""


def run_vocabulary(
    resolved: Resolved, demands: Demands, tokenizer: PreTrainedTokenizerBase
) -> Vocabulary:
    """Return the ids that have a probability in every role and the engine: those of the tokenizer's tokens; with
    ``rollout.sample_padding`` those for which all models have a row.

    Raises:
        ConfigError: a model has another tokenizer than the run, or fewer rows than it has tokens and gets no more.
    """
    run = resolved.run
    trusted, resize = run.model.trust_remote_code, run.model.resize_embeddings
    models = [("--model.path", run.model.path), *_others(resolved, demands)]
    has_adapter = resolved.optional("actor.adapter") is not None
    for label, path in models:
        check_rows(
            tokenizer,
            path,
            label,
            resize=resize,
            has_adapter=has_adapter,
            trust_remote_code=trusted,
        )
    for label, path in (*models[1:], *_readers_of_ids(resolved)):
        if path not in (run.model.path, run.model.tokenizer):
            check_same_tokens(tokenizer, path, label, trust_remote_code=trusted)
    vocabulary = vocabulary_of(tokenizer)
    if not run.rollout.sample_padding:
        return vocabulary
    return common_rows(
        vocabulary, [path for _, path in models], resize=resize, trust_remote_code=trusted
    )


def notes_on_templates(
    resolved: Resolved, demands: Demands, renderer: TokenizerRenderer
) -> Iterator[str]:
    """Yield a line for each model that judges the policy's tokens and has a chat template of its own, another one."""
    run = resolved.run
    for label, path in _others(resolved, demands):
        if label == _CRITIC:
            continue  # it learns on what it reads
        note = note_other_template(
            renderer,
            path,
            label,
            f"To train the policy on that form: --model.tokenizer {path}.",
            trust_remote_code=run.model.trust_remote_code,
        )
        if note is not None:
            yield note


def _others(resolved: Resolved, demands: Demands) -> Iterator[_Model]:
    """Yield the models beside the policy that have paths of their own."""
    run = resolved.run
    paths = (
        (demands.critic, _CRITIC, run.critic.path),
        (demands.reference, "--ref.path", run.ref.path),
        (demands.teacher, "--algo.teacher.path", run.algo.teacher.path),
    )
    for is_needed, label, path in paths:
        if is_needed and path is not None:
            yield label, path


def _readers_of_ids(resolved: Resolved) -> Iterator[_Model]:
    """Yield the tokenizers by which rewards read the policy's ids."""
    for selection in resolved.selections["reward.use"]:
        path = selection.options.tokenizer_of_ids()
        if path is not None:
            yield f"the reward {selection.name}", path
