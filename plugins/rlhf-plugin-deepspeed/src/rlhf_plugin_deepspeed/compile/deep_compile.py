"""DeepCompile: all layers as one graph into which DeepSpeed puts its collective calls.

The output head works on a chunk of tokens at a time, so the head and the sums of its gradients over ranks stay outside
of the graph. DeepSpeed keeps the state of a compilation once per process, so one role of a process can be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.node import map_arg

from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.ranks.ranks import Ranks

from ..config import DeepSpeedConfig
from ..library import quietly
from .head_beside_graph import BorrowedHead, HeadGradients

PREFETCH_STEP = 5
"""Number of updates after which stage 3 fetches weights ahead, by the times that these updates took."""

SEQUENCE = 256
"""Number of tokens of one sequence of the rehearsal; every model has positions for that many."""

_compiled: list[Any] = []
"""Compiled DeepSpeed engines of this process, one at most."""


def refuse_deep_compile(config: DeepSpeedConfig, spec: RoleSpec, ranks: Ranks) -> None:
    """Refuse a role for which DeepCompile fails or computes a wrong result.

    Raises:
        ConfigError: the device is no NVIDIA GPU, another role of this process is compiled, or the role has an adapter
            or, at stage 1, bfloat16 parameters.
    """
    from deepspeed.compile.util import is_deepcompile_supported

    if not is_deepcompile_supported():
        raise ConfigError(
            f"deep_compile with the {spec.role} on {ranks.device}: DeepCompile works on NVIDIA GPUs only. Leave "
            "deep_compile out, or use --backend.deepspeed.compile, which works anywhere.",
            code="deepspeed/deep-compile",
        )
    if _compiled:
        raise ConfigError(
            f"deep_compile for the {spec.role}, but another role of this process is compiled already: DeepSpeed keeps "
            "the state of DeepCompile once per process. Give each role processes of its own (--runtime ray), or leave "
            "deep_compile out.",
            code="deepspeed/deep-compile",
        )
    if spec.adapter is not None:
        raise ConfigError(
            "deep_compile with an adapter: DeepCompile sums the gradients of all weights of the graph, frozen weights "
            "too. Leave out deep_compile or the adapter.",
            code="deepspeed/deep-compile",
        )
    if config.zero_stage == 1 and spec.dtype == "bfloat16":
        raise ConfigError(
            "deep_compile at zero_stage 1 with bfloat16 parameters: DeepSpeed has a separate optimizer for that case, "
            "which DeepCompile does not support. Set zero_stage 2 or 3, or --model.dtype float32.",
            code="deepspeed/deep-compile",
        )


class DeepCompiled:
    """DeepSpeed engine whose layers are compiled at their first call.

    Raises:
        ConfigError: DeepSpeed's operations cannot be compiled on this machine.
    """

    def __init__(
        self, engine: Any, role: RoleModel, spec: RoleSpec, config: DeepSpeedConfig, ranks: Ranks
    ) -> None:
        self._engine, self._lm, self._role_name = engine, role.lm, spec.role
        passes = schedule(config.zero_stage)
        _compile(engine, role, passes)
        self._borrowed = BorrowedHead(role) if config.zero_stage == 3 else None
        self._head = HeadGradients(engine.optimizer, config.zero_stage, role, ranks, self._borrowed)
        steps = [step for step, _ in passes]
        self._rehearsal = Rehearsal(engine, role, steps, spec.max_tokens_per_micro_batch)

    def run(self, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``, one pass. The caller calls ``end`` after it and its backward pass, if any.

        Raises:
            ConfigError: the layers cannot be one graph.
        """
        if self._rehearsal.is_due():
            with torch.no_grad():
                self.run(self._rehearsal)
            self.end()
        with _compiling(self._role_name):
            return self._engine(work)

    def add_gradient(self, *, last: bool) -> None:
        """Add the head's gradient of one backward pass to the sum of the update.

        Args:
            last: this backward pass is the last before the update, so ranks sum the head's gradients now.
        """
        self._head.collect()
        if last:
            self._head.hand_over()

    def end(self) -> None:
        """Drop the weights that the head has collected for one pass."""
        if self._borrowed is not None:
            self._borrowed.give_back()

    def close(self) -> None:
        """Free the process's only place for a compiled role, and drop the graph."""
        from deepspeed.compile import util

        _compiled.remove(self._engine)
        if self._lm.whole_graph is not None:
            self._lm.whole_graph.close()
        # DeepSpeed keeps the hooks of a destroyed engine, and would run them for the next one.
        util.pre_backward_hooks.clear()
        util.post_backward_hooks.clear()


def _compile(engine: Any, role: RoleModel, passes: list[tuple[int, list[Any]]]) -> None:
    for parameter in role.parameters():
        if parameter.requires_grad:
            # Stage 3 casts each gradient to this type before the ranks sum it.
            parameter.grad_dtype = torch.float32
    try:
        with _tokens_of_any_number():
            engine.compile(backend="inductor", compile_kwargs={}, schedule=passes)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"deep_compile: the operations of DeepCompile cannot be built on this machine: {error}. Expected nvcc of "
            "torch's CUDA version, and a C++ compiler; ds_report shows what DeepSpeed finds. Or leave "
            "deep_compile out.",
            code="deepspeed/deep-compile",
        ) from error
    _compiled.append(engine)


@contextmanager
def _tokens_of_any_number() -> Iterator[None]:
    """Keep the sizes of inputs other than weights dynamic while DeepSpeed sets up the compiler.

    At stage 3 DeepSpeed replaces torch's wrapping of inputs, so that the compiler sees whole weights instead of
    partitions. Its replacement makes the sizes of all inputs static, which would give a graph for each number of
    tokens. Here the replacement is used for partitioned weights (``ds_id``) only.
    """
    from torch._dynamo.variables import builder

    known = builder.wrap_to_fake_tensor_and_record
    yield
    theirs = builder.wrap_to_fake_tensor_and_record
    if theirs is known:
        return

    def wrap(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return (theirs if hasattr(tensor, "ds_id") else known)(tensor, *args, **kwargs)

    builder.wrap_to_fake_tensor_and_record = wrap  # type: ignore[assignment]  # takes any arguments


@contextmanager
def _compiling(role: str) -> Iterator[None]:
    """Keep DeepSpeed's prints about a compilation off the terminal, and translate the compiler's errors."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        with quietly():
            yield
    except TorchDynamoException as error:
        # The first line may name only the place that raised, so the whole first paragraph is shown.
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise ConfigError(
            f"deep_compile: the layers of the {role} cannot be compiled as one graph: {reason}. Leave deep_compile out "
            "for this model; --backend.deepspeed.compile compiles layer by layer.",
            code="deepspeed/deep-compile",
        ) from error


class Rehearsal:
    """Pass over the same tokens on all ranks, which has to come first after each compilation is due.

    A compiler orders operations by the sizes that it sees first. Ranks begin with micro-batches of different sizes, so
    without the rehearsal they would exchange gradients in different orders.

    Args:
        steps: numbers of updates after which something is compiled.
        num_tokens: the number of tokens of the pass.
    """

    def __init__(self, engine: Any, role: RoleModel, steps: list[int], num_tokens: int) -> None:
        self._engine, self._lm = engine, role.lm
        self._steps = list(steps)
        self._num_tokens = num_tokens

    def is_due(self) -> bool:
        """Return True if the next pass compiles something; once for each compilation, then False."""
        if not self._steps or self._engine.global_steps < self._steps[0]:
            return False
        self._steps.pop(0)
        return True

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Return the hidden states of the rehearsal's tokens: the layers run, the head does not."""
        device = self._lm.device
        offsets = [*range(0, self._num_tokens, SEQUENCE), self._num_tokens]
        layout = PackedLayout(offsets, device)
        tokens = torch.zeros(self._num_tokens, dtype=torch.int64, device=device)
        return (self._lm.hidden(tokens, layout.positions(), layout),)


def schedule(stage: int) -> list[tuple[int, list[Any]]]:
    """Return pairs of a number of updates and the graph passes that hold after that many updates.

    DeepSpeed's own schedule for stage 3 also keeps weights whole in memory that is free at the time. This schedule does
    not, because an engine on the same GPU may need the memory later.
    """
    from deepspeed.compile.passes import prefetch, zero3_compile, zero_1_and_2_compile

    if stage == 1:
        return [(0, [sum_in_float32, zero_1_and_2_compile.add_z1_reduce, keep_buckets])]
    if stage == 2:
        return [(0, [sum_in_float32, zero_1_and_2_compile.add_z2_reduce])]
    whole = [sum_in_float32, zero3_compile.add_z3_gather_release]
    return [(0, whole), (PREFETCH_STEP, [*whole, prefetch.schedule_prefetch])]


def sum_in_float32(
    gm: torch.fx.GraphModule,
    graph_id: int,
    graph_order: Any,
    profiling_results: Any,
    create_inputs_fn: Any,
    mem_budget: float,
    param_manager: Any,
    bwd: bool,
) -> torch.fx.GraphModule:
    """Cast each parameter's gradient to float32, the type of the sums over ranks and micro-batches.

    A graph pass for DeepCompile, which sets the parameters' names and order.
    """
    if not bwd:
        return gm
    output = gm.graph.output_node()
    _, gradients = param_manager[graph_id].get_bwd_mapping(gm.graph)
    casts: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gradients.values():
        if node is not None and node not in casts and node.meta["val"].dtype != torch.float32:
            with gm.graph.inserting_after(node):
                cast = gm.graph.call_function(
                    torch.ops.prims.convert_element_type.default, (node, torch.float32)
                )
            cast.meta["val"] = node.meta["val"].to(torch.float32)
            casts[node] = cast
    output.args = map_arg(output.args, lambda node: casts.get(node, node))
    return gm


def keep_buckets(gm: torch.fx.GraphModule, *_: Any) -> torch.fx.GraphModule:
    """Keep the buckets for sums over ranks after a backward pass: a graph pass behind DeepSpeed's own at stage 1.

    DeepSpeed releases the buckets after every backward pass, and ends the process in a backward pass without buckets.
    At stage 1 only the last backward pass of an update sums over ranks and makes buckets. So the first backward pass of
    the second update would have none.
    """
    for node in gm.graph.nodes:
        if node.target == torch.ops.dc.end_backward.default:
            gradients, graph, _ = node.args
            node.args = (gradients, graph, False)  # False: do not release the buckets
    return gm
