"""The steps of ``rlhf sft``: one optimizer update each, on the rows whose turn it is."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_core import NonFiniteError
from rlhf_core.config import ResolvedOptions
from rlhf_core.contracts import (
    ComponentRef,
    PolicyObjective,
    RoleHandle,
    RoleSpec,
    RunResult,
    RuntimeSpec,
    StepPlan,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.data import TokenizerRenderer, eos_token_ids, load_conversations, load_tokenizer
from rlhf_core.plugins import Plugins
from rlhf_core.runs import (
    Export,
    FinishedStep,
    OwnRecord,
    ResumePoint,
    ResumeRules,
    RunFolder,
    RunKind,
    RunState,
    drive,
    fault_point,
    metric_values,
    normalizers_of,
    restore_roles,
    schedule_of,
    seed_of,
)

from .options import SftOptions
from .order import RowOrder

log = logging.getLogger(__name__)

POLICY = "policy"
PATIENCE = 10
"""Steps in a row with a gradient of exactly 0, before the run says that it learns nothing."""


@dataclass(slots=True, kw_only=True)
class SftState(RunState):
    """The state between steps; the rows of a step follow from its number."""

    skipped_in_a_row: int = 0
    """Updates in a row whose gradient was not finite."""
    zero_in_a_row: int = 0
    """Updates in a row whose gradient was exactly 0."""


class SftCourse:
    """See ``rlhf_core.runs.Course``."""

    def __init__(
        self,
        run: SftOptions,
        resolved: ResolvedOptions[SftOptions],
        state: SftState,
        rows: TrajectoryColumns,
        held_out: TrajectoryColumns | None,
        role: RoleHandle,
        exports: Sequence[Export],
    ) -> None:
        self.state = state
        self.exports = exports
        self.records: Mapping[str, OwnRecord] = {}
        self.saved_roles = {POLICY: role}
        self._run = run
        self._resolved = resolved
        self._rows = rows
        self._held_out = held_out
        self._order = order_of(run, len(rows))
        self.total_steps = total_steps(run, len(rows))

    async def begin(
        self, point: ResumePoint[Any] | None, begun: Mapping[str, Any], stack: AsyncExitStack
    ) -> None:
        if point is not None:
            await restore_roles(point, self._resolved, self.saved_roles)

    async def step(self) -> FinishedStep:
        """Do one update.

        Raises:
            NonFiniteError: too many updates in a row had a gradient that is not finite.
        """
        started = time.perf_counter()
        rows = self._rows.select(self._order.rows(self.state.step))
        # Of `advantages` the loss reads nothing, but an objective on rollouts always has them.
        columns = {"advantages": np.ones(int(rows.num_actions.sum()), dtype=np.float32)}
        plan = StepPlan(
            normalizers=normalizers_of(rows.num_actions, self._run.data.max_length), on_policy=True
        )
        batch = TrainBatch(trajectories=rows, columns=columns)
        fault_point("train", self.state.step + 1)
        outcome = await self.saved_roles[POLICY].train_step(batch, plan)
        values = metric_values(outcome.metrics)
        del values["policy/approx_kl"]  # 0 before each update, which is when it is measured
        self.state.step += 1
        values["train/epoch"] = self.state.step / self._order.updates_per_epoch
        self._count_bad_updates(values)
        seconds = time.perf_counter() - started
        self.state.seconds += seconds
        return FinishedStep(
            metrics=values,
            timing={
                "step_s": round(seconds, 6),
                "train_tokens_per_s": round(int(rows.num_tokens.sum()) / seconds, 6),
            },
        )

    def _count_bad_updates(self, values: Mapping[str, float]) -> None:
        state = self.state
        state.skipped_in_a_row = (
            state.skipped_in_a_row + 1 if values["train/skipped_updates"] else 0
        )
        if state.skipped_in_a_row >= self._run.train.max_skipped_updates:
            raise NonFiniteError(
                f"{state.skipped_in_a_row} updates in a row had a gradient that is not finite; the weights are those "
                "of the last good update. Lower the learning rate, or look at the data."
            )
        state.zero_in_a_row = state.zero_in_a_row + 1 if values.get("policy/grad_norm") == 0 else 0
        if state.zero_in_a_row == PATIENCE:
            log.warning(
                "the model learns nothing: each of its last %s steps, up to step %s, had a gradient of norm 0. An "
                "adapter trains what the loss does not depend on, or the backend drops the gradient: ask it with "
                "rlhf check %s",
                PATIENCE,
                state.step,
                self._run.backend.name,
            )

    async def evaluate(self) -> Mapping[str, float] | None:
        """Return the mean negative log-likelihood of the learned tokens held out, in nats, and its exponential."""
        if self._held_out is None:
            return None
        total, rows = 0.0, self._held_out
        for first in range(0, len(rows), self._run.eval.batch_size):
            part = rows.select(np.arange(first, min(first + self._run.eval.batch_size, len(rows))))
            total -= float((await self.saved_roles[POLICY].logprobs(part)).sum(dtype=np.float64))
        nll = total / int(rows.num_actions.sum())
        return {"eval/nll": nll, "eval/perplexity": math.exp(min(nll, 700.0))}


def order_of(run: SftOptions, num_rows: int) -> RowOrder:
    """Return the order of a run's rows."""
    return RowOrder(num_rows, run.train.batch_size, run.seed, shuffle=run.data.shuffle)


def total_steps(run: SftOptions, num_rows: int) -> int:
    """Return the number of updates of the whole run."""
    return run.train.steps or run.train.epochs * order_of(run, num_rows).updates_per_epoch


def policy_spec(resolved: ResolvedOptions[SftOptions], updates: int) -> RoleSpec:
    """Return the model that is trained."""
    run, adapter = resolved.run, resolved.optional("actor.adapter")
    return RoleSpec(
        role=POLICY,
        model_path=run.model.path,
        tokenizer_path=run.model.tokenizer,
        dtype=run.model.dtype,
        trust_remote_code=run.model.trust_remote_code,
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="supervised:sft"),
            aggregation=run.train.aggregation,
        ),
        optimizer=resolved.one("actor.optim").ref("rlhf_optimizers"),
        adapter=adapter.ref("rlhf_model_adapters") if adapter else None,
        schedule=schedule_of(run.actor, updates),
        max_grad_norm=run.actor.max_norm,
        ema_decay=run.actor.ema,
        max_tokens_per_micro_batch=run.train.max_tokens_per_micro_batch,
        seed=seed_of(run.seed, f"role/{POLICY}"),
    )


async def _open(
    resolved: ResolvedOptions[SftOptions],
    plugins: Plugins,
    folder: RunFolder,
    state: SftState,
    stack: AsyncExitStack,
) -> SftCourse:
    run = resolved.run
    rows = _load(run, run.data.train, "data.train")
    held_out = _load(run, run.eval.data, "eval.data") if run.eval.data else None
    spec = RuntimeSpec(
        roles={POLICY: policy_spec(resolved, total_steps(run, len(rows)))},
        backend=resolved.one("backend.name").ref("rlhf_train_backends"),
    )
    selected = resolved.one("runtime.name")
    runtime = selected.registered.build(selected.options)
    stack.push_async_callback(runtime.close)
    placement = await runtime.start(spec, plugins)
    role = placement.roles[POLICY]
    exports = [Export(role=role, folder=folder.model)]
    if run.actor.ema is not None:
        exports.append(Export(role=role, folder=folder.ema_model, ema=True))
    return SftCourse(run, resolved, state, rows, held_out, role, exports)


def _load(run: SftOptions, sets: Sequence[str], option: str) -> TrajectoryColumns:
    model = run.model
    tokenizer = load_tokenizer(
        model.tokenizer or model.path, trust_remote_code=model.trust_remote_code
    )
    # A model may have several end-of-sequence tokens; a text to imitate ends with the tokenizer's own.
    eos: int | None = tokenizer.eos_token_id
    if eos is None:
        eos = eos_token_ids(tokenizer, model.path, trust_remote_code=model.trust_remote_code)[0]
    renderer = TokenizerRenderer(tokenizer)
    return load_conversations(sets, run.data, run.data, renderer, eos=eos, option=option).columns


KIND = RunKind(
    initial_state=lambda run: SftState(),
    resuming=ResumeRules(
        state=SftState,
        binding=("seed", "model", "data", "train.batch_size", "actor.optim"),
        records=(),
        check_books=lambda folder, state, records: None,
    ),
    open=_open,
)


def run(resolved: ResolvedOptions[SftOptions], plugins: Plugins) -> RunResult:
    """Run a whole fine-tuning and return how it ended.

    Raises:
        RLHFError: the run could not start, or failed; ``--resume auto`` goes on from the newest checkpoint.
    """
    return drive(KIND, resolved, plugins)
