"""Training at ZeRO stages 1 to 3: DeepSpeed's engine with the framework's objective, schedule and moving average."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import Metric, Metrics, Optimizer, ParameterGroup, RoleSpec
from rlhf_torch.cut.average import holding_average, move_average
from rlhf_torch.cut.flattening import whole_parameters
from rlhf_torch.cut.whole_updates import WholeUpdates
from rlhf_torch.models.modeling import DTYPES
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks
from rlhf_torch.training.group_options import group_options
from rlhf_torch.training.named_optimizer import class_of
from rlhf_torch.training.trained_parts import (
    log_groups,
    parameter_groups,
    peak_lrs,
    require_trainable,
)
from rlhf_torch.training.updater import exchanged, reference_of, sync_reference

from ..compile.deep_compile import DeepCompiled, refuse_deep_compile
from ..config import DeepSpeedConfig
from ..library import load_deepspeed, quietly
from ..parallel.tensor_shards import ShardingCheck, refuse_uneven_heads
from ..partitioned_model import PartitionedModel, WholeHead
from .engine_config import engine_config
from .fragments import fragments, master_vectors, publish
from .gradient_exchange import GradientExchange
from .leaf_modules import mark_leaf_modules, refuse_expert_blocks

NOT_FOR_ZERO = "Choose another optimizer, such as adam, or --backend.deepspeed.zero_stage 0."


class ZeroTraining:
    """Training of a role whose training state is shared by the ranks.

    Args:
        role: the model, on the host or on this rank's device; DeepSpeed moves and cuts it.
        optimizer: the optimizer component.

    Raises:
        ConfigError: no parameter is trainable, or the options do not fit the model.
        PluginError: ZeRO cannot share the parameter groups or the state of the optimizer.
    """

    def __init__(
        self,
        role: RoleModel,
        spec: RoleSpec,
        optimizer: Optimizer,
        config: DeepSpeedConfig,
        ranks: Ranks,
    ) -> None:
        self._spec, self.stage = spec, config.zero_stage
        self._data_ranks = ranks.world_size // config.tensor_parallel
        self.tensor_parallel = config.tensor_parallel
        self.shard = ranks.rank % config.tensor_parallel
        """Index of the part of every matrix that this rank has, 0 to ``tensor_parallel`` - 1."""
        named = role.named_trainable()
        self.named = dict(named)
        require_trainable(spec.role, self.named)
        # The component decides by shapes, so it makes its parameter groups before DeepSpeed cuts the parameters.
        shapes = {name: parameter.shape for name, parameter in named}
        groups = parameter_groups(optimizer, named)
        if ranks.is_first:
            log_groups(spec.role, groups)
        torch_optimizer = create_optimizer(optimizer, groups, config, ranks)
        self.peak_lrs = peak_lrs(torch_optimizer, groups)
        self.initial_groups = group_options(torch_optimizer)
        self.engine = start_engine(role, spec, config, ranks, torch_optimizer)
        self.zero: Any = self.engine.optimizer
        self.fragments = fragments(self.zero, self.stage, self.named, ranks.rank)
        if isinstance(self.optimizer, WholeUpdates):
            self.optimizer.attach(self.masters, self.fragments, shapes, ranks)
        self._exchange: GradientExchange | None = None
        if exchanges_gradients(config):
            largest = config.reduce_bucket_size
            self._exchange = GradientExchange(self.zero, self.named, ranks, largest)
        self._graph: DeepCompiled | None = None
        self._head: WholeHead | None = None
        if config.deep_compile:
            self._graph = DeepCompiled(self.engine, role, spec, config, ranks)
        elif self.stage == 3:
            self._head = WholeHead(role)
        self.updates = 0
        """Number of updates so far, skipped updates included, because the schedule follows the plan."""
        self.ema: list[Tensor] = []
        """This rank's part of the moving average, in the layout of ``masters``; empty if none is kept."""
        if spec.ema_decay is not None:
            self.ema = [vector.detach().clone() for vector in self.masters]
        self.reference = reference_of(self.masters, spec.reference_sync)
        """This rank's part of the role's own reference, in the layout of ``masters``; empty if none is kept."""

    @property
    def is_deep_compiled(self) -> bool:
        """Whether DeepCompile compiles the layers as one graph."""
        return self._graph is not None

    @property
    def masters(self) -> list[Tensor]:
        """This rank's part of the float32 weights, as vectors."""
        return master_vectors(self.zero, self.stage)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer, whose parameters are ``masters``."""
        torch_optimizer: torch.optim.Optimizer = self.zero.optimizer
        return torch_optimizer

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """Return the loss that ``work`` computes; a collective call, so all ranks make equally many."""
        loss: Tensor
        if self._graph is not None:
            loss = self._graph.run(work)
            return loss
        if self._head is not None:
            self._head.fetch()
        if self._exchange is not None:
            self._exchange.start_pass()
            loss = self.engine.module(work)
            return loss
        loss = self.engine(work)
        return loss

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this micro-batch to the gradient of the update; a collective call.

        Args:
            last: this micro-batch is the last of the update.
        """
        self.engine.set_gradient_accumulation_boundary(last)
        if self._exchange is not None:
            loss.backward()
            self._exchange.finish_pass()
            return
        # DeepSpeed takes the mean over data-parallel ranks, but the update's loss is the sum of the ranks' losses.
        self.engine.backward(loss * self._data_ranks, scale_wrt_gas=False)
        if self._graph is not None:
            self._graph.add_gradient(last=last)
            self._graph.end()

    @property
    def recovers(self) -> bool:
        """Whether a pass that failed can be given up without ranks that wait."""
        return self._exchange is not None

    def drop_gradient(self) -> None:
        """Forget what an attempt before has added to the gradient of the update."""
        if self._exchange is not None:
            self._exchange.forget()

    def give_up_pass(self) -> None:
        """Take part in what other ranks do in a pass that failed here; a collective call."""
        assert self._exchange is not None, "only where it recovers"
        self._exchange.give_up_pass()

    def complete(self) -> None:
        """Sum the gradient over ranks, as far as ``backward`` has not; a collective call after the last pass."""
        if self._exchange is not None:
            self._exchange.finish_update()

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the results of ``work``, which runs without a gradient; a collective call at stage 3."""
        results: tuple[Tensor, ...]
        if self._graph is not None:
            results = self._graph.run(work)
            self._graph.end()
            return results
        if self._head is not None:
            self._head.fetch()
        results = self.engine.module(work)
        return results

    def update(self, factor_of_plan: float) -> Metrics:
        """Clip the gradient, update the weights and the moving average, and return learning rate and gradient norm.

        If a gradient is not finite on any rank, all ranks skip the update: only ``updates`` and ``skipped`` count it.

        Args:
            factor_of_plan: ``StepPlan.lr_factor``.
        """
        factor = self._spec.schedule.factor(self.updates) * factor_of_plan
        self.updates += 1
        for group, peak in zip(self.optimizer.param_groups, self.peak_lrs, strict=True):
            group["lr"] = peak * factor
        self.engine.step()
        skipped = bool(self.zero.overflow)
        metrics = {"lr": Metric(self.peak_lrs[0] * factor, reduction="last")}
        if not skipped:
            move_average(self, self._spec.ema_decay)
            metrics["grad_norm"] = Metric(float(self.zero._global_grad_norm))
        return metrics | {"skipped": Metric(float(skipped), reduction="sum")}

    def changing(self) -> Iterator[Tensor]:
        """Yield every tensor of this rank that an update changes: optimizer state, float32 weights, their average, the
        role's own reference.

        The model's own weights are not among them: ``publish`` makes them of ``masters``.
        """
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield from self.masters
        yield from self.ema
        yield from self.reference

    def publish(self) -> None:
        """Copy the float32 weights, rounded, into the model's parameters; a collective call."""
        publish(self.zero, self.stage)

    def sync_reference(self) -> None:
        """Move this rank's part of the role's own reference to the weights, if there is one."""
        sync_reference(self.reference, self.masters, self._spec.reference_sync)

    def holding_reference(self) -> AbstractContextManager[None]:
        """Have the model hold the role's own reference inside of the context, and its own weights again after it."""
        return exchanged(self.masters, self.reference, self.publish)

    def holding_average(self) -> AbstractContextManager[None]:
        """Have the model hold the moving average inside of the context, and its own weights again after it."""
        return holding_average(self)

    def close(self) -> None:
        """Remove all hooks from the model and drop the compiled graph."""
        if self._exchange is not None:
            self._exchange.close()
        self.engine.destroy()
        if self._graph is not None:
            self._graph.close()


def exchanges_gradients(config: DeepSpeedConfig) -> bool:
    """Return whether ``GradientExchange`` sums gradients, which DeepSpeed does elsewhere: at other stages, in graphs of
    DeepCompile, in host memory, and among ranks that share matrices."""
    elsewhere = config.deep_compile or config.offload_optimizer or config.tensor_parallel > 1
    return config.zero_stage == 2 and not elsewhere


def create_optimizer(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], config: DeepSpeedConfig, ranks: Ranks
) -> torch.optim.Optimizer:
    """Return the component's optimizer, wrapped in ``WholeUpdates`` if it has to see whole parameters.

    Raises:
        PluginError: the optimizer has to see whole parameters, but ``tensor_parallel`` shards them.
    """
    whole = whole_parameters(optimizer, groups, ranks.device, NOT_FOR_ZERO)
    created = optimizer.create(groups)
    if not whole:
        return created
    if config.tensor_parallel > 1:
        raise PluginError(
            f"{class_of(optimizer)} needs whole parameters, but with backend.deepspeed.tensor_parallel "
            f"{config.tensor_parallel} each rank has only a shard of them. {NOT_FOR_ZERO}",
            code="optimizer/needs-whole-parameters",
        )
    return WholeUpdates(created, whole)


def use_one_dtype(role: RoleModel, dtype: torch.dtype) -> None:
    """Give all parameters one dtype, value heads and norms that were kept in float32 included.

    ZeRO lays the parameters of a parameter group end to end in vectors of one dtype. Buffers, such as the frequencies
    of rotary positions, keep theirs.
    """
    for parameter in role.parameters():
        parameter.data = parameter.data.to(dtype)


def refuse_quantized(role: RoleModel, stage: int) -> None:
    """Refuse a base in 4 or 8 bits, whose parameters hold packed integers that DeepSpeed would cast and cut.

    Raises:
        ConfigError: a parameter is no floating-point tensor.
    """
    packed = [name for name, p in role.named_weights() if not p.is_floating_point()]
    if packed:
        raise ConfigError(
            f"backend.deepspeed.zero_stage {stage} with a quantized base: DeepSpeed would cast {packed[0]} and "
            f"{len(packed) - 1} more from packed integers to floats. Set --backend.deepspeed.zero_stage 0, or choose "
            "--actor.adapter lora.",
            code="deepspeed/quantized-base",
        )


def start_engine(
    role: RoleModel,
    spec: RoleSpec,
    config: DeepSpeedConfig,
    ranks: Ranks,
    torch_optimizer: torch.optim.Optimizer | None,
) -> Any:
    """Return DeepSpeed's engine around the role; without a torch optimizer the engine cannot train.

    Raises:
        ConfigError: the options do not fit the model or the machine.
        PluginError: DeepSpeed cannot shard the model's matrices.
    """
    deepspeed = load_deepspeed(ranks.device)
    refuse_quantized(role, config.zero_stage)
    deep_compile = config.deep_compile and torch_optimizer is not None
    if deep_compile:
        refuse_deep_compile(config, spec, ranks)
    settings = engine_config(config, spec, ranks.world_size, deep_compile=deep_compile)
    partitioned = PartitionedModel(role)
    if config.zero_stage < 3 and ranks.world_size > 1:
        refuse_expert_blocks(role.lm.model, config.zero_stage)
    use_one_dtype(role, DTYPES[spec.dtype])
    sharding = None
    if config.tensor_parallel > 1:
        refuse_uneven_heads(role, config.tensor_parallel)
        sharding = ShardingCheck(role.lm)
    with quietly(), sharding or nullcontext():
        # DeepSpeed takes over the process group that ``join`` has made.
        deepspeed.init_distributed("nccl" if ranks.device.type == "cuda" else "gloo")
        if config.zero_stage == 3:
            mark_leaf_modules(partitioned, config.leaf_modules)
            # Init cuts one parameter after the other on its way to the device, which never holds the whole model.
            deepspeed.zero.Init(module=partitioned, config_dict_or_path=settings)
        engine, *_ = deepspeed.initialize(
            model=partitioned, optimizer=torch_optimizer, config=settings, dist_init_required=False
        )
    if sharding is not None:
        # This check of DeepSpeed's pickles the arguments of a call to compare ranks; a function cannot be pickled.
        engine.first_dataloader_check.remove()
        sharding.compare()
    return engine
