"""The steps of a command that trains on examples: one optimizer update each, on the units whose turn it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_config import OPTIONS_OF_PARTS, ResolvedOptions
from rlhf_core import ResumeError
from rlhf_core.contracts import (
    RoleHandle,
    RunResult,
    RuntimeSpec,
    StepPlan,
    TrajectoryColumns,
)
from rlhf_core.media import ImageReader, ImagesOnUse, writing_of
from rlhf_core.plugins import Plugins
from rlhf_data import (
    TokenizerRenderer,
    check_rows,
    describe_ends,
    eos_token_ids,
    load_tokenizer,
)
from rlhf_trainer.runs import (
    Control,
    Export,
    Exportable,
    FinishedStep,
    OwnRecord,
    RatedState,
    RecordFile,
    ResumePoint,
    ResumeRules,
    RunFolder,
    RunKind,
    count_skipped,
    drive,
    fault_point,
    metric_values,
    normalizers_of,
    restore_roles,
)

from .drawn import with_drawn_rows
from .images import with_images
from .options import ExampleOptions
from .order import UnitOrder
from .recording import RowRecorder
from .roles import TrainedModel, roles_of
from .seen import ModelNumbers, Seen
from .update import Evaluated, Update

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ExampleState(RatedState):
    """The state between steps; the units of a step follow from its number."""

    skipped_in_a_row: int = 0
    """Updates in a row whose gradient was not finite."""
    sizes: list[int] = field(default_factory=list)
    """Units of each set, by which a step's are drawn; empty before the first step."""


class Examples(Protocol):
    """The rows of one command, and what it makes of them."""

    rows: TrajectoryColumns
    sizes: tuple[int, ...]
    """Rows of each set, in their order."""
    rows_per_unit: int
    """1: each row is a unit; 2: neighbors are the answers of a pair."""
    images: ImagesOnUse | None
    """Takes images of the rows in when a model gets them; None: they are there, or the rows have none."""

    async def begin(self, model: RoleHandle, beside: Mapping[str, RoleHandle]) -> None:
        """Compute what has to be known of the model before its first update; of most rows nothing. A resumed run asks
        before the checkpoint is loaded, so the model is the same one.

        Args:
            beside: the models of ``TrainedModel.beside``, by their roles.
        """
        return

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        """Return the data of an update of the model on these rows."""

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return what is known of the rows of an update before it, for the record."""

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the metrics of the held-out sets and what they are made of; None without any."""

    def exported(self, model: RoleHandle) -> Exportable:
        """Return the model as it is exported in the end."""
        return model


class SupervisedTrainer:
    """See ``rlhf_trainer.runs.Trainer``."""

    def __init__(
        self,
        resolved: ResolvedOptions[Any],
        state: ExampleState,
        folder: RunFolder,
        examples: Examples,
        model: TrainedModel,
        roles: Mapping[str, RoleHandle],
        headline: str | None,
    ) -> None:
        role = model.role
        self.state = state
        self.headline = headline
        self.saved_roles = {role: roles[role]}
        self._role = role
        self._model = roles[role]
        self._beside = {name: handle for name, handle in roles.items() if name != role}
        self._resolved = resolved
        self._run: ExampleOptions = resolved.run
        self._folder = folder
        self._examples = examples
        self._reference = model.reference
        self._recorder = RowRecorder.of(resolved, examples, has_scores=model.head == "score")
        self._order = order_of(self._run, examples)
        self.total_steps = total_steps(self._run, examples)

    @property
    def records(self) -> Mapping[str, OwnRecord]:
        return {self._folder.eval_samples.name: self._held_out}

    @property
    def exports(self) -> Sequence[Export]:
        plain = Export(role=self._examples.exported(self._model), folder=self._folder.model)
        if self._run.actor.ema is None:
            return [plain]
        return [plain, Export(role=self._model, folder=self._folder.ema_model, ema=True)]

    async def begin(
        self,
        point: ResumePoint[Any] | None,
        begun: Mapping[str, Any],
        stack: AsyncExitStack,
    ) -> None:
        path = self._folder.eval_samples
        self._held_out = stack.enter_context(closing(RecordFile(path, begun.get(path.name))))
        await self._examples.begin(self._model, self._beside)
        if point is not None:
            await restore_roles(point, self._resolved, self.saved_roles)

    async def step(self) -> FinishedStep:
        """Do one update.

        Raises:
            NonFiniteError: too many updates in a row had a gradient that is not finite.
        """
        started = time.perf_counter()
        units = self._order.units(self.state.step)
        update = await self._examples.update(rows_of(units, self._examples), self._model)
        rows, every = update.batch.trajectories, self._reference.sync_every
        plan = StepPlan(
            normalizers=normalizers_of(rows.num_actions, self._run.data.max_length),
            mismatched_kl=update.mismatched_kl,
            on_policy=True,
            lr_factor=self.state.lr_factors.get(self._role, 1.0),
            undo_bytes=int(self._run.checkpoint.undo_gib * 2**30),
            syncs_reference=every is not None and (self.state.step + 1) % every == 0,
        )
        fault_point("train", self.state.step + 1)
        outcome = await self._model.train_step(update.batch, self._recorder.asking(plan))
        self.state.skipped_in_a_row = count_skipped(
            self.state.skipped_in_a_row,
            outcome.metrics,
            role=self._role,
            limit=self._run.train.max_skipped_updates,
            look_at="the data",
        )
        values = metric_values(outcome.metrics)
        values.pop("policy/approx_kl", None)  # 0 before each update, which is when it is measured
        self.state.step += 1
        values |= {f"{role}/lr_factor": factor for role, factor in self.state.lr_factors.items()}
        values["train/epoch"] = self.state.step / self._order.updates_per_epoch
        epoch = (self.state.step - 1) // self._order.updates_per_epoch
        samples = self._recorder.samples(update, outcome, epoch=epoch)
        seconds = time.perf_counter() - started
        self.state.seconds += seconds
        rate = int(rows.num_tokens.sum()) / seconds
        timing = {"step_s": round(seconds, 6), "train_tokens_per_s": round(rate, 6)}
        return FinishedStep(metrics=values, timing=timing, samples=samples)

    async def evaluate(self) -> Mapping[str, float] | None:
        evaluated = await self._examples.evaluate(self._model)
        if evaluated is None:
            return None
        for sample in self._recorder.held_out(evaluated):
            self._held_out.write({"step": self.state.step, **sample})
        return evaluated.metrics


def check_sizes(state: ExampleState, sizes: Sequence[int]) -> None:
    """Compare the number of each set's units with that of the checkpoint, and keep it in the state.

    Raises:
        ResumeError: they differ, so that a step has other rows now: some would be learned twice, and some never.
    """
    if state.sizes not in ([], [*sizes]):
        before, now = (" + ".join(map(str, numbers)) for numbers in (state.sizes, sizes))
        raise ResumeError(
            f"data.train: expected {before} rows, as there were when the checkpoint was made; now there are {now}. Put "
            "the rows back, or start a new run in another --output, such as from the model of this one.",
            code="resume/data-changed",
        )
    state.sizes = [*sizes]


def rows_of(units: NDArray[np.int64], examples: Examples) -> NDArray[np.int64]:
    """Return the rows of some units."""
    size = examples.rows_per_unit
    return (units[:, None] * size + np.arange(size)).ravel()


def order_of(run: ExampleOptions, examples: Examples) -> UnitOrder:
    """Return the order of a run's units."""
    return UnitOrder(
        [size // examples.rows_per_unit for size in examples.sizes],
        run.train.batch_size,
        run.seed,
        shuffle=run.data.shuffle,
        probabilities=run.data.probabilities,
    )


def total_steps(run: ExampleOptions, examples: Examples) -> int:
    """Return the number of updates of the whole run."""
    return run.train.steps or run.train.epochs * order_of(run, examples).updates_per_epoch


def renderer_of(run: ExampleOptions, images: ImageReader | None) -> tuple[TokenizerRenderer, int]:
    """Return the renderer, and the token that goes behind texts which no chat template ends.

    Args:
        images: reader of images; None: the model reads text alone.
    """
    model = run.model
    trusted = model.trust_remote_code
    tokenizer = load_tokenizer(model.tokenizer or model.path, trust_remote_code=trusted)
    check_rows(
        tokenizer,
        model.path,
        "--model",
        resize=model.resize_embeddings,
        has_adapter=run.actor.adapter is not None,
        trust_remote_code=trusted,
    )
    ends = eos_token_ids(tokenizer, model.path, trust_remote_code=trusted)
    log.info("%s", describe_ends(tokenizer, ends))
    # A model may have several end-of-sequence tokens; a text to imitate ends with the tokenizer's own.
    eos: int | None = tokenizer.eos_token_id
    if eos is None:
        eos = ends[0]
    return TokenizerRenderer.by(run.data, tokenizer, writing_of(images)), eos


def run_of(
    load: Callable[[ResolvedOptions[Any]], Examples],
    trained: Callable[[ResolvedOptions[Any]], TrainedModel],
    evaluated: Sequence[str],
    *,
    binding: Sequence[str] = (),
) -> Callable[..., RunResult]:
    """Return the function that runs a command.

    Args:
        load: reader of the command's rows, which is called before a model is loaded.
        trained: function that returns the model to train.
        evaluated: metrics of held-out sets, without ``eval/``; the best checkpoint is by the first unless an option
            names another.
        binding: options, beside those of every command, that a resumed run may not change.
    """

    async def open_course(
        resolved: ResolvedOptions[Any],
        plugins: Plugins,
        folder: RunFolder,
        state: ExampleState,
        stack: AsyncExitStack,
    ) -> SupervisedTrainer:
        drawn = with_drawn_rows(resolved, folder, is_resumed=state.step > 0)
        examples, model = load(drawn), trained(resolved)
        check_sizes(state, [size // examples.rows_per_unit for size in examples.sizes])
        updates = total_steps(resolved.run, examples)
        spec = RuntimeSpec(
            roles=roles_of(resolved, model, examples.rows, updates),
            backend=resolved.one("backend.name").ref("rlhf_train_backends"),
        )
        selected = resolved.one("runtime.name")
        runtime = plugins.build(selected.ref("rlhf_runtimes"))
        stack.push_async_callback(runtime.close)
        placement = await runtime.start(spec, plugins)
        roles = with_images(placement.roles, examples.images)
        headline = f"eval/{evaluated[0]}" if resolved.run.eval.holds_rows_out else None
        return SupervisedTrainer(resolved, state, folder, examples, model, roles, headline)

    kind: RunKind[Any, ExampleState] = RunKind(
        initial_state=lambda run: ExampleState(),
        resuming=ResumeRules(
            state=ExampleState,
            binding=(
                "seed",
                "model",
                "data",
                "train.batch_size",
                *("actor.optim", "actor.adapter", *OPTIONS_OF_PARTS),
                "eval.fraction",
                *binding,
            ),
            records=("eval_samples.jsonl",),
            check_books=lambda folder, state, records: None,
        ),
        open=open_course,
    )

    def run(
        resolved: ResolvedOptions[Any], plugins: Plugins, control: Control | None = None
    ) -> RunResult:
        """Run a whole training and return how it ended.

        Args:
            control: steers the run from outside; None: only signals can end it early.

        Raises:
            RLHFError: the run could not start, or failed; ``--resume auto`` continues from the newest checkpoint.
        """
        return drive(kind, resolved, plugins, control)

    return run
