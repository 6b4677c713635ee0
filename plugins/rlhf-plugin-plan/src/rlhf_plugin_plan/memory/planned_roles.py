"""The run's roles as the prediction sees them: the numbers on which their memory and their work depend.

The module knows components by their qualified names. An unknown component is planned like the most similar known one,
and a note in the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_core.contracts import ComponentRef, RoleSpec

from ..machine import assumptions as assumed
from ..model.adapters import AdapterCounts, UncountedAdapter
from ..model.precision import Precision
from ..model.shapes import ModelShape
from .role import MicroBatch, Role
from .sharing import Sharing
from .workload import Workload

TORCH, DEEPSPEED, FSDP = "local:torch", "deepspeed:deepspeed", "fsdp:fsdp"
LIVE_PARAMETERS = "zero_optimization.stage3_max_live_parameters"
"""The only key of ``backend.deepspeed.args`` on which the prediction depends."""
SMALL = 1_000_000
"""Number of parameters below which the backends compute in float32."""

Adapted = Callable[[RoleSpec, Precision], AdapterCounts]
"""Function that returns the counts of a role's adapter, or raises ``UncountedAdapter``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRole:
    """A role with its ranks and their work."""

    role: Role
    """The role's part on one rank."""
    sharing: Sharing
    """State that the ranks share."""
    batch: MicroBatch
    """The largest micro-batch of one rank."""
    micro_batches: int
    """Number of micro-batches of one update, on one rank."""
    shape: ModelShape
    """Shape of the whole model."""
    ranks: int
    slices: int = 1
    """Number of ranks that compute each sequence together, a slice of its tokens each."""
    parts: int = 1
    """Number of ranks that share every matrix and compute the same tokens."""


def planned_role(
    spec: RoleSpec,
    shape: ModelShape,
    run: PlannedRun,
    workload: Workload,
    ranks: int,
    adapted: Adapted,
    notes: list[str],
) -> PlannedRole:
    """Return a role as its backend would hold it; append to ``notes`` a note on each option that is not modeled.

    Raises:
        ConfigError: the role has more ranks than an update has sequences, or numbers of ranks do not divide.
    """
    backend = run.spec.backend
    options = backend.options
    _note_options(backend, notes)
    _note_compiled(spec, options, notes)
    _note_family(spec, shape, options, workload, notes)
    trained = spec.objective is not None
    states = _optimizer_bytes(spec.optimizer, notes) if trained else (0.0, 0.0)
    slices, parts = _groups(backend, shape, ranks, spec)
    precision = _precision(spec, shape, options)
    base_reference = run.demands.reference and "reference" not in run.spec.roles
    role = Role(
        name=spec.role,
        shape=shape.part(parts),
        precision=precision,
        trained=trained,
        has_head=spec.head == "lm",
        optimizer_bytes=states[0],
        optimizer_table_bytes=states[1],
        scores=spec.role != "policy" or bool(run.demands.old_statistics) or base_reference,
        average=spec.ema_decay is not None,
        reference=spec.reference_sync is not None,
        recompute=trained and bool(options.get("gradient_checkpointing")),
        compiled=bool(options.get("compile")),
        chunk=options.get("logits_chunk") or assumed.GPU_CHUNK,
        scales_logits=spec.temperature != 1.0,
        fused_head=not run.demands.teacher_top_k,
        frozen_tower=spec.vision is None or spec.vision.parts.freeze_tower,
        idle_tower=not workload.image_tokens,
        replays=spec.replays_routes,
        adapter=_adapter(spec, precision, adapted, notes),
    )
    rows = workload.sequences
    if trained:
        rows = min(rows, run.run.train.batch_size or rows)
    together = slices * parts
    _require_rows(spec, ranks, rows, together)
    budget = run.run.train.max_tokens_per_micro_batch
    batch, count = largest_micro_batch(
        -(-rows * together // ranks),
        _dealt(workload, ranks // together),
        budget * slices,
        share_prompts=bool(options.get("share_prompts"))
        and slices == 1
        and not shape.carries_state,
    )
    if slices > 1:
        batch = replace(
            batch, tokens=-(-batch.tokens // slices), actions=-(-batch.actions // slices)
        )
    return PlannedRole(
        role=role,
        sharing=_sharing(backend, shape, ranks // parts, trained=trained),
        batch=batch,
        micro_batches=count,
        shape=shape,
        ranks=ranks,
        slices=slices,
        parts=parts,
    )


def _adapter(
    spec: RoleSpec, precision: Precision, adapted: Adapted, notes: list[str]
) -> AdapterCounts | None:
    if spec.adapter is None:
        return None
    try:
        return adapted(spec, precision)
    except UncountedAdapter as error:
        _note(
            notes,
            f"the adapter {spec.adapter.name} cannot be counted in a model without numbers ({error}); planned as if "
            "all weights were trained",
        )
        return None


def _require_rows(spec: RoleSpec, ranks: int, rows: int, together: int) -> None:
    if ranks // together > rows:
        raise ConfigError(
            f"runtime.ray.ranks.{spec.role} is {ranks}, but a pass has {rows} sequences: some ranks would have no "
            f"sequence. Lower runtime.ray.ranks.{spec.role}, or raise train.batch_size or rollout.batch_size.",
            code="plan/empty-ranks",
        )


def _note_compiled(spec: RoleSpec, options: Mapping[str, Any], notes: list[str]) -> None:
    if options.get("compile") and spec.dtype != "bfloat16":
        _note(notes, "backend.torch.compile: its savings are modeled for --model.dtype bfloat16")
    if options.get("deep_compile"):
        _note(notes, "backend.deepspeed.deep_compile: planned like layers that are not compiled")


def _note_family(
    spec: RoleSpec, shape: ModelShape, options: Any, workload: Workload, notes: list[str]
) -> None:
    """Append notes on what is not modeled of a family without closed forms."""
    if shape.measured is not None and options.get("compile"):
        _note(notes, f"{spec.role}: compiled layers of this family are planned as they are")
    if shape.missing:
        _note(notes, f"{spec.role}: what reads images and sounds is not counted: {shape.missing}")
    if shape.tower_parameters and shape.vision is None and workload.image_tokens:
        _note(notes, f"{spec.role}: passes of this family's vision tower are not modeled")


def _note_options(backend: ComponentRef, notes: list[str]) -> None:
    """Append notes on options of the backend that change memory or time and are not modeled."""
    if backend.name == FSDP:
        text = "backend.fsdp: by its arithmetic; seconds were compared with one run (docs/performance.md)"
        _note(notes, text)
    elif backend.name not in (TORCH, DEEPSPEED):
        _note(notes, f"--backend {backend.name} is not modeled; planned as the torch backend")
    if backend.options.get("device") == "cpu":
        _note(notes, "backend device cpu: planned as if the trainer were on a GPU")
    if backend.name == DEEPSPEED:
        args = backend.options["args"]
        paths = {key for key in args if key != "zero_optimization"}
        paths |= {f"zero_optimization.{key}" for key in args.get("zero_optimization", {})}
        if others := sorted(paths - {LIVE_PARAMETERS}):
            _note(notes, f"backend.deepspeed.args: {', '.join(others)} not modeled")


def _groups(
    backend: ComponentRef, shape: ModelShape, ranks: int, spec: RoleSpec
) -> tuple[int, int]:
    """Return two sizes of rank groups: ranks that slice each sequence, and ranks that share every matrix.

    A role that is not trained shares no matrices.
    """
    if backend.name != DEEPSPEED:
        return 1, 1
    slices: int = backend.options["sequence_parallel"]
    parts: int = backend.options["tensor_parallel"] if spec.objective is not None else 1
    of_ranks = f"ranks of the {spec.role}", ranks
    if parts > 1 and shape.measured is not None:
        raise ConfigError(
            f"backend.deepspeed.tensor_parallel is {parts}; the {spec.role} is of a family of which one rank's part is "
            "not modeled. Plan it with 1. The run itself may still work.",
            code="plan/not-modeled",
        )
    _require_divides("sequence_parallel", slices, of_ranks, ("attention heads", shape.heads))
    _require_divides(
        "tensor_parallel",
        parts,
        of_ranks,
        ("attention heads", shape.heads),
        ("key heads", shape.kv_heads),
    )
    return slices, parts


def _require_divides(option: str, size: int, *numbers: tuple[str, int]) -> None:
    for what, number in numbers:
        if number % size:
            raise ConfigError(
                f"backend.deepspeed.{option} is {size}, which does not divide the {number} {what}",
                code="plan/does-not-divide",
            )


def _dealt(workload: Workload, dealers: int) -> Workload:
    """Return the workload with the samples of a prompt that one of ``dealers`` rank groups has."""
    if keeps_groups(workload, dealers):
        return workload
    return replace(workload, samples=-(-workload.samples // dealers))


def keeps_groups(workload: Workload, dealers: int) -> bool:
    """Return whether each prompt's samples go to one of ``dealers`` rank groups: where that fills all alike."""
    fullest = math.ceil(workload.prompts / dealers) * dealers
    return fullest <= (1 + assumed.UNEVEN_GROUPS) * workload.prompts


def largest_micro_batch(
    rows: int, workload: Workload, budget: int, *, share_prompts: bool = False
) -> tuple[MicroBatch, int]:
    """Return the largest micro-batch of ``rows`` sequences on one rank, and the number of micro-batches.

    With known lengths the sequences are cut as the backends cut them: evenly, into as few micro-batches as can hold
    them, where a prompt that is computed once counts once. With lengths that are upper bounds, a micro-batch may fill
    the budget, or hold one sequence beyond it. What samples share behind their prompt is not known before the run.

    Args:
        budget: number of different tokens that a micro-batch may have.
    """
    length = workload.length
    shares = share_prompts and workload.known_lengths and workload.shares_enough
    if shares:
        held, prompts, count = largest_sharing_run(rows, workload, budget)
        tokens = held * length
    else:
        count = -(-rows // max(1, budget // length))
        tokens = -(-rows // count) * length
        held = prompts = tokens // length
    if not workload.known_lengths:
        tokens = min(max(budget, length), rows * length)
        # As many images as the budget holds, if nothing stands behind them.
        prompts = max(1, tokens // (workload.image_tokens or length))
    batch = MicroBatch(
        tokens=tokens,
        actions=tokens * workload.response_tokens // length,
        several=count > 1,
        repeated=(held - prompts) * workload.prompt_tokens if shares else 0,
        image_tokens=min(rows, workload.prompts, prompts) * workload.image_tokens,
    )
    return batch, count


class SharingRun(NamedTuple):
    """The largest of several micro-batches of neighboring sequences whose prompts are computed once."""

    held: int
    prompts: int
    micro_batches: int


def largest_sharing_run(rows: int, workload: Workload, budget: int) -> SharingRun:
    """Return the micro-batch with the most different tokens, if ``rows`` sequences are cut as the backends cut them.

    The limit in tokens is the smallest one that needs no more micro-batches than ``budget`` does.
    """
    low, high = workload.length, budget
    room = assumed.SHARING_ROOM * budget
    fewest = len(_sharing_runs(rows, workload, budget, room))
    while low < high:
        middle = (low + high) // 2
        if len(_sharing_runs(rows, workload, middle, room)) > fewest:
            low = middle + 1
        else:
            high = middle
    runs = _sharing_runs(rows, workload, max(low, high), room)
    held, prompts = max(runs, key=lambda run: _computed(workload, *run))
    return SharingRun(held, prompts, len(runs))


def _sharing_runs(rows: int, workload: Workload, limit: int, room: int) -> list[tuple[int, int]]:
    """Return the numbers of sequences and of different prompts of each micro-batch with at most ``limit`` different
    tokens, and ``room`` tokens where prompts are counted with every sequence."""
    runs: list[tuple[int, int]] = []
    held = prompts = 0
    for row in range(rows):
        begins = int(row % workload.samples == 0 or not held)
        tokens = _computed(workload, held + 1, prompts + begins)
        if held and (tokens > limit or (held + 1) * workload.length > room):
            runs.append((held, prompts))
            held, prompts, begins = 0, 0, 1
        held, prompts = held + 1, prompts + begins
    return [*runs, (held, prompts)]


def _computed(workload: Workload, held: int, prompts: int) -> int:
    """Return the number of tokens that the layers compute of sequences with so many prompts."""
    saved = (held - prompts) * workload.prompt_tokens
    whole = held * workload.length
    return whole - saved if saved >= assumed.SHARING_IS_WORTH * whole else whole


def _precision(spec: RoleSpec, shape: ModelShape, options: Mapping[str, Any]) -> Precision:
    wanted = options.get("compute_dtype", "auto")
    if spec.dtype == "bfloat16":
        compute = "bfloat16"
    elif wanted == "auto":
        compute = "bfloat16" if shape.parameters >= SMALL else "float32"
    else:
        compute = wanted
    return Precision(parameters=spec.dtype, compute=compute)


def _sharing(backend: ComponentRef, shape: ModelShape, ranks: int, *, trained: bool) -> Sharing:
    options = backend.options
    if backend.name == FSDP:
        # One layer is computed while the next one is collected, and one's gradients travel beside the next one's.
        layer, again = shape.layer_parameters // shape.layers, options["reshard_after_forward"]
        return Sharing(
            stage=3,
            ranks=ranks,
            reduce_bucket=layer if trained else 0,
            overlap=True,
            live_parameters=2 * layer if again else shape.layer_parameters,
            layerwise=True,
            collections=2 if again else 1,
        )
    if backend.name != DEEPSPEED:
        return Sharing(ranks=ranks)
    stage = options["zero_stage"]
    zero = options["args"].get("zero_optimization", {})
    elsewhere = (
        options["offload_optimizer"] or options["deep_compile"] or options["tensor_parallel"] > 1
    )
    # Only stage 3 shares the weights of a role that is not trained; at other stages each rank has the whole role.
    return Sharing(
        stage=stage if trained or stage == 3 else 0,
        ranks=ranks,
        offload_optimizer=options["offload_optimizer"],
        offload_parameters=options["offload_param"],
        reduce_bucket=options["reduce_bucket_size"],
        overlap=options["overlap_comm"],
        in_passing=trained and stage == 2 and not elsewhere,
        live_parameters=zero.get("stage3_max_live_parameters", assumed.LIVE_PARAMETERS),
    )


def _optimizer_bytes(ref: ComponentRef | None, notes: list[str]) -> tuple[float, float]:
    """Return the bytes of state of one parameter of the layers, and of one parameter of embeddings and head."""
    match ref.name if ref else "":
        case "algorithms:adam":
            return 8.0, 8.0
        case "algorithms:adam8bit":
            return 2.0, 2.0
        case "algorithms:muon":
            return 4.0, 8.0
        case "algorithms:sgd":
            assert ref is not None
            state = 4.0 if ref.options["momentum"] else 0.0
            return state, state
        case name:
            _note(notes, f"--optim {name} is not modeled; planned with AdamW's 8 bytes a parameter")
            return 8.0, 8.0


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
