"""Seconds of a step's phases, at the limit of the hardware and at measured rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..machine import assumptions as assumed
from ..memory.engine_memory import BYTES, kv_bytes
from ..memory.planned_roles import PlannedRole, keeps_groups
from ..memory.role import Role, trained_parameters, weight_bytes
from . import measured
from .exchange import ENGINE_EXCHANGE, LINKS, engine_exchange, layerwise_exchange, role_exchange
from .setting import Phase, Setting
from .work import (
    Decoding,
    EngineRates,
    PassTokens,
    decode,
    forward_flops,
    gradient_bytes,
    prompts,
    sequences,
    training_flops,
)


def phases_of(setting: Setting) -> tuple[Phase, ...]:
    """Return the phases in the order in which a step goes through them."""
    demands = setting.planned.demands
    phases = [*_generation(setting)] if setting.engine.modeled else []
    passes = {
        "old log-probs": ("policy", bool(demands.old_statistics)),
        # Beside an adapter the reference is the policy with the adapter off.
        BASE_PASS: ("reference" if "reference" in setting.roles else "policy", demands.reference),
        "teacher log-probs": ("teacher", demands.teacher),
        "values": ("critic", demands.critic),
    }
    phases += [_scoring(setting, name, role) for name, (role, there) in passes.items() if there]
    scored = {role for role, there in passes.values() if there}
    for name, role in setting.roles.items():
        if role.role.trained:
            phases += _training(setting, name)
        phases += role_exchange(setting, name, scored=name in scored)
    phases += _weight_sync(setting)
    return tuple(phase for phase in phases if phase.limit_s > 0)


GENERATION = ("prefill", "decode", ENGINE_EXCHANGE)
"""Names of the phases in which the engines work."""
SYNC = "weight sync"
PASSES = "matmuls"
"""Bound of the phases in which models compute whole sequences."""
TRAINING = "train "
"""Beginning of the names of the phases of passes with gradients; the rest is the role's name."""
BASE_PASS = "reference log-probs"
"""Name of the phase in which a policy with an adapter computes what its base computes."""


def first_passes_s(phases: Sequence[Phase], updates: int) -> float:
    """Return the seconds of the roles' passes before their first optimizer step, at measured rates.

    Args:
        updates: optimizer steps of each role, among which training passes are split evenly.
    """
    passes = (phase for phase in phases if phase.bound == PASSES and phase.name not in GENERATION)
    return sum(p.seconds / (updates if p.name.startswith(TRAINING) else 1) for p in passes)


def moves_phase(seconds: float) -> Phase:
    """Return the phase in which engine and roles leave the GPU and come back to it."""
    return Phase(
        name="sleep and wake",
        limit_s=seconds,
        bound="host memory over PCIe; state comes back beside the passes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of a whole step."""

    limit_s: float
    """Seconds at the limit of the hardware."""
    rates_s: float
    """Seconds at measured rates; a phase without a measurement counts at its limit."""
    overlaps: bool
    """Whether engines generate while the samples of the step before are trained on, so that the slower side counts."""


def step_of(phases: Sequence[Phase], *, overlaps: bool) -> Step:
    """Return the sum of the phases; with ``overlaps`` the slower of generation and training, plus the weight sync."""
    limits = [(phase.name, phase.limit_s) for phase in phases]
    rates = [(phase.name, phase.seconds) for phase in phases]
    limit_s, rates_s = (_joined(times, overlaps=overlaps) for times in (limits, rates))
    return Step(limit_s=limit_s, rates_s=rates_s, overlaps=overlaps)


def _joined(times: Sequence[tuple[str, float]], *, overlaps: bool) -> float:
    generation = sum(time for name, time in times if name in GENERATION)
    sync = sum(time for name, time in times if name == SYNC)
    rest = sum(time for _, time in times) - generation - sync
    return sync + (max(generation, rest) if overlaps else generation + rest)


def concurrency(setting: Setting) -> int:
    """Return the number of sequences that one copy of the engine's model decodes together.

    This is the smallest of the engine's limit, the copy's share of the sequences, and the room of its KV cache.
    """
    mine = -(-setting.drawn_prompts * setting.workload.samples // setting.copies)
    room = setting.kv_tokens // setting.workload.length
    return max(1, min(setting.engine.max_sequences, mine, room))


def _generation(setting: Setting) -> Iterator[Phase]:
    """Yield the phases of the slowest copy of the engine's model, which has its share of the prompts, rounded up."""
    engine, work, gpu = setting.engine, setting.workload, setting.gpu
    shape = setting.roles["policy"].shape
    flops = gpu.flops(engine.compute) * engine.gpus_of_copy
    mine = -(-setting.drawn_prompts // setting.copies)
    prefills = mine if engine.shares_prefixes else mine * work.samples
    read = replace(
        prompts(prefills, work.prompt_tokens), images=mine, image_tokens=work.image_tokens
    )
    prefill = forward_flops(shape, read) / flops
    data = measured.load()
    vllm = engine.vllm is not None
    share = data.training_share(shape, recompute=False)
    yield Phase(
        name="prefill", limit_s=prefill, measured_s=prefill / share if vllm else None, bound=PASSES
    )
    done = decode(
        shape,
        [work.response_tokens] * (mine * work.samples),
        work.prompt_tokens,
        concurrency(setting),
        engine_rates(setting),
    )
    yield Phase(
        name="decode",
        limit_s=done.seconds,
        measured_s=decoding_seconds(setting, done),
        bound="GPU memory: weights and KV cache",
    )
    yield from engine_exchange(setting, prefills * work.prompt_tokens + done.requests)


def decoding_seconds(setting: Setting, done: Decoding) -> float:
    """Return the seconds of decoding steps at the rates that were measured of the run's engine."""
    data = measured.load()
    if setting.engine.vllm is not None:
        return data.decoding_seconds(done, logprob_share(setting))
    return data.captured_seconds(done, setting.roles["policy"].shape.layers)


def engine_rates(setting: Setting) -> EngineRates:
    """Return the rates of one copy of the engine's model."""
    engine, gpu = setting.engine, setting.gpu
    return EngineRates(
        flops=gpu.flops(engine.compute) * engine.gpus_of_copy,
        bandwidth=gpu.bandwidth * engine.gpus_of_copy,
        weight_bytes=_decoded_weight_bytes(setting),
        kv_token_bytes=kv_bytes(setting.roles["policy"].shape, engine.kv_width),
    )


def logprob_share(setting: Setting) -> float:
    """Return the share of the samples for which the engine returns log-probs, 0 to 1."""
    demands = setting.planned.demands
    return 1.0 if demands.rollout_logprobs else setting.planned.run.rollout.compared_share


def _scoring(setting: Setting, name: str, role: str) -> Phase:
    planned = setting.roles[role]
    shape = planned.role.shape
    adapter = None if name == BASE_PASS else planned.role.adapter
    flops = forward_flops(
        shape, _all_sequences(setting, planned), head=planned.role.has_head, adapter=adapter
    )
    limit = flops / _role_flops(setting, planned)
    share = measured.load().training_share(
        planned.shape, recompute=False, weights=_weights_of(planned.role)
    )
    return Phase(name=name, limit_s=limit, measured_s=limit / share, bound=PASSES)


def _training(setting: Setting, name: str) -> Iterator[Phase]:
    planned = setting.roles[name]
    role, sharing, run = planned.role, planned.sharing, setting.planned.run
    flops = run.train.inner_epochs * training_flops(
        role.shape,
        _all_sequences(setting, planned),
        head=role.has_head,
        recompute=role.recompute,
        adapter=role.adapter,
        frozen_tower=role.frozen_tower,
    )
    limit = flops / _role_flops(setting, planned)
    share = measured.load().training_share(
        planned.shape, recompute=role.recompute, compiled=role.compiled, weights=_weights_of(role)
    )
    updates = setting.planned.demands.updates_per_step
    seconds = measured.load().training_seconds(
        limit / share, role.shape.layers, updates * planned.micro_batches
    )
    yield Phase(name=f"{TRAINING}{name}", limit_s=limit, measured_s=seconds, bound=PASSES)
    trained = trained_parameters(role)
    moved = trained * sharing.part(1) * assumed.OPTIMIZER_TRAFFIC
    rate = 1e9 * setting.gpu.host_gb_s if sharing.offload_optimizer else setting.gpu.bandwidth
    yield Phase(
        name=f"optimizer {name}",
        limit_s=updates * moved / rate,
        bound="host memory" if sharing.offload_optimizer else "GPU memory",
    )
    if sharing.layerwise:
        yield layerwise_exchange(setting, name, seconds)
        return
    # Below stage 3 the ranks collect what an update has changed.
    changed = role.adapter is not None and sharing.stage < 3
    sent = gradient_bytes(
        role.precision.weight_bytes * trained if changed else weight_bytes(role),
        sharing.ranks,
        sharing.stage,
        planned.micro_batches,
        4.0 * trained,
        role.precision.weight_bytes * trained if sharing.in_passing else None,
    )
    exchange = updates * sent / setting.link(sharing.ranks)
    rates = measured.load()
    yield Phase(
        name=f"exchange {name}",
        limit_s=exchange,
        measured_s=exchange / (rates.passing_share if sharing.in_passing else rates.exchange_share),
        bound=LINKS,
    )


def _weight_sync(setting: Setting) -> Iterator[Phase]:
    """Yield the phase in which the engines get the policy's new weights.

    They are the factors of an adapter that engines serve beside the base, or all weights. On the same GPU they are read
    and written once, to another GPU they are sent once. Through the object store they go to host memory and back.
    """
    if setting.placement.in_process and not setting.engine.copies_weights:
        return
    policy = setting.roles["policy"]
    adapter = policy.role.adapter
    served = setting.planned.spec.engine_spec
    sends_factors = adapter is not None and served is not None and served.adapter_rank is not None
    sent = adapter.factors if adapter is not None and sends_factors else policy.shape.parameters
    size = float(policy.role.precision.weight_bytes * sent)
    seconds, bound = {
        "memory": (2 * size / setting.gpu.bandwidth, "GPU memory"),
        "collective": (
            size / setting.link(setting.placement.gpus),
            "links between GPUs, to all engines at once",
        ),
        "store": (2 * size / (1e9 * setting.gpu.host_gb_s), "host memory, out and back"),
    }[setting.placement.weights]
    yield Phase(name=SYNC, limit_s=seconds, bound=bound)


def _weights_of(role: Role) -> measured.Kind:
    if role.adapter is None:
        return "trained"
    return "fixed" if role.adapter.linear_weight_bytes is None else "quantized"


def _decoded_weight_bytes(setting: Setting) -> float:
    """Return the bytes of one weight that the engine reads in a decoding step, on average over layers and head."""
    width = float(BYTES[setting.engine.compute])
    policy = setting.roles["policy"].role
    adapter, shape = policy.adapter, setting.roles["policy"].shape
    shares = setting.engine.embedded and not setting.engine.copies_weights
    if not shares or adapter is None or adapter.linear_weight_bytes is None:
        return width
    layers = adapter.linear_weight_bytes * shape.linear_weights
    rest = width * (shape.layer_weights - shape.linear_weights + shape.head_weights)
    return (layers + rest) / (shape.layer_weights + shape.head_weights)


def _all_sequences(setting: Setting, planned: PlannedRole) -> PassTokens:
    """Return the tokens of one pass of a role over the step's sequences.

    Where the role computes a prompt once for several sequences, attention still computes it for each sequence.
    """
    work = setting.workload
    # Each rank group that has samples of a prompt computes the prompt; groups stay together where that is even.
    dealers = planned.ranks // (planned.slices * planned.parts)
    computing = 1 if keeps_groups(work, dealers) else min(work.samples, dealers)
    once = work.prompts * computing
    found = sequences(work.sequences, work.prompt_tokens, work.response_tokens)
    if work.image_tokens:
        # Without shared prompts the samples of one may be in as many micro-batches, each of which reads the image.
        images = once if planned.batch.repeated else work.sequences
        found = replace(found, images=images, image_tokens=work.image_tokens)
    if not planned.batch.repeated:
        return found
    repeated = (work.sequences - once) * work.prompt_tokens
    return replace(found, tokens=found.tokens - repeated)


def _role_flops(setting: Setting, planned: PlannedRole) -> float:
    """Return the operations per second of a role's ranks.

    Ranks that share matrices count as one rank, since ``PlannedRole.role`` has the shape of one rank's part.
    """
    return setting.gpu.flops(planned.role.precision.compute) * planned.sharing.ranks
