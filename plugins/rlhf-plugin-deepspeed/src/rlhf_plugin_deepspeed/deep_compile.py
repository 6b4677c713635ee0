"""DeepCompile: the layers as one graph, into which DeepSpeed puts what ranks send each other.

The output head works on a chunk of tokens at a time, so it stays outside of the graph, and so do the sums of its
gradients over ranks. DeepSpeed keeps the state of a compilation once per process: one role of a process can have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec
from rlhf_plugin_local.backend.role_model import RoleModel

from .config import DeepSpeedConfig
from .graph_passes import schedule
from .head_beside_graph import BorrowedHead, HeadGradients
from .library import quietly
from .ranks import Ranks
from .rehearsal import Rehearsal

_compiled: list[Any] = []
"""The engine of this process that is compiled, if any."""


def refuse_deep_compile(config: DeepSpeedConfig, spec: RoleSpec, ranks: Ranks) -> None:
    """Raise where DeepCompile would not compute what it should.

    Raises:
        ConfigError: not on a GPU, a second role of this process, or a role that DeepCompile has no way for.
    """
    from deepspeed.compile.util import is_deepcompile_supported

    if not is_deepcompile_supported():
        raise ConfigError(
            f"deep_compile with the {spec.role} on {ranks.device}: DeepSpeed has it for NVIDIA GPUs only. Leave it "
            "out, or use --backend.deepspeed.compile, which works anywhere."
        )
    if _compiled:
        raise ConfigError(
            f"deep_compile for the {spec.role}, and another role of this process has it: DeepSpeed keeps its state "
            "once per process. Give each role processes of its own (--runtime ray), or leave it out."
        )
    if spec.adapter is not None:
        raise ConfigError(
            "deep_compile with an adapter: DeepCompile sums the gradients of all weights that it compiles, frozen ones "
            "too. Leave one of the two out."
        )
    if config.zero_stage == 1 and spec.dtype == "bfloat16":
        raise ConfigError(
            "deep_compile at zero_stage 1 with bfloat16 parameters: DeepSpeed has an optimizer of its own for that "
            "case, which DeepCompile does not know. Set zero_stage 2 or 3, or --model.dtype float32."
        )


class DeepCompiled:
    """An engine whose layers are compiled when they are first called.

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
        """Return what a pass computes. ``end`` comes after it, and after its backward pass if it has one.

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
        """Add the head's gradient of a backward pass to the step's; the last one of the step says so."""
        self._head.collect()
        if last:
            self._head.hand_over()

    def end(self) -> None:
        """Let go of what only a pass needs."""
        if self._borrowed is not None:
            self._borrowed.give_back()

    def close(self) -> None:
        """Let another role of the process be compiled."""
        from deepspeed.compile import util

        _compiled.remove(self._engine)
        if self._lm.whole_graph is not None:
            self._lm.whole_graph.close()
        # Of an engine that is gone; DeepSpeed keeps them.
        util.pre_backward_hooks.clear()
        util.post_backward_hooks.clear()


def _compile(engine: Any, role: RoleModel, passes: list[tuple[int, list[Any]]]) -> None:
    for parameter in role.parameters():
        if parameter.requires_grad:
            # Stage 3 casts each gradient to this type before it is summed over ranks.
            parameter.grad_dtype = torch.float32
    try:
        with _tokens_of_any_number():
            engine.compile(backend="inductor", compile_kwargs={}, schedule=passes)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"deep_compile: DeepSpeed's operations for it cannot be compiled here: {error}. Expected nvcc of the CUDA "
            "version of torch, and a C++ compiler; ds_report shows what DeepSpeed finds. Or leave deep_compile out."
        ) from error
    _compiled.append(engine)


@contextmanager
def _tokens_of_any_number() -> Iterator[None]:
    """At stage 3 DeepSpeed has the compiler see whole weights where there are none, and with them fixes the sizes of
    all other inputs: there would be a graph for each number of tokens. Leave those to the compiler."""
    from torch._dynamo.variables import builder

    known = builder.wrap_to_fake_tensor_and_record
    yield
    theirs = builder.wrap_to_fake_tensor_and_record
    if theirs is known:
        return

    def wrap(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return (theirs if hasattr(tensor, "ds_id") else known)(tensor, *args, **kwargs)

    builder.wrap_to_fake_tensor_and_record = wrap


@contextmanager
def _compiling(role: str) -> Iterator[None]:
    """A pass in which something may be compiled: DeepSpeed tells of it on the terminal, which is the run's own.

    Raises:
        ConfigError: the layers cannot be one graph.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        with quietly():
            yield
    except TorchDynamoException as error:
        # The first line may say no more than where something was raised.
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise ConfigError(
            f"deep_compile: the layers of the {role} cannot be compiled as one graph: {reason}. Leave it out for this "
            "model; --backend.deepspeed.compile compiles layer by layer."
        ) from error
