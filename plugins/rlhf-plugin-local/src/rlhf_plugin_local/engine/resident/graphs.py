"""Steps of the batch as captured graphs, one for each number of rows and kind of draw.

A graph holds the addresses of all that it reads and writes. Rows, tables and pages stay where they are; the weights are
the trainer's, and ``still_valid`` says whether they have moved.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from rlhf_core import headline
from rlhf_torch.models.layers import compile_layers

from ..next_token.sampling import DrawKind
from .step import TokenStep

log = logging.getLogger(__name__)


class Steps:
    """Runs steps one by one: on devices without graphs."""

    def __init__(self, step: TokenStep) -> None:
        self._step = step

    def run(self, num_rows: int, kind: DrawKind, times: int) -> None:
        """Sample ``times`` tokens for each of the first rows."""
        for _ in range(times):
            self._step(num_rows, kind)

    def check_weights(self) -> None:
        """Nothing to do: each step reads the weights from where they are."""

    def forget(self) -> None:
        """Nothing to do."""


class GraphedSteps(Steps):
    """Runs steps as CUDA graphs.

    The first step of a size and kind runs as it is, which compiles the layers and picks kernels; then the same step is
    captured, and replayed from there on. Where a model cannot be captured (it reads a number back from the device, say)
    a warning says so, and its steps run one by one.

    Args:
        sizes: numbers of rows for which there may be a graph, increasing; the last is the number of all rows.
        compile: compile the layers.
    """

    def __init__(self, step: TokenStep, sizes: tuple[int, ...], *, compile: bool) -> None:
        super().__init__(step)
        self._sizes = sizes
        self._graphs: dict[tuple[int, DrawKind], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        """Memory of intermediate results, which the graphs share: one runs at a time."""
        self._addresses: list[int] = []
        self._captures = True
        if compile:
            compile_layers(step.lm.model)

    def run(self, num_rows: int, kind: DrawKind, times: int) -> None:
        size = next(size for size in self._sizes if size >= num_rows)
        if not self._captures:
            return super().run(size, kind, times)
        graph = self._graphs.get((size, kind))
        if graph is None:
            self._step(size, kind)
            times -= 1
            graph = self._capture(size, kind)
            if graph is None:
                return super().run(size, kind, times)
        for _ in range(times):
            graph.replay()

    def check_weights(self) -> None:
        """Drop the graphs if the weights have moved since they were captured."""
        if self._graphs and self._addresses != self._weights():
            self.forget()

    def forget(self) -> None:
        """Drop the graphs and the memory of their intermediate results."""
        self._graphs.clear()
        self._pool = None

    def _capture(self, size: int, kind: DrawKind) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=_capture_stream(),
                # Training in another thread may allocate memory meanwhile.
                capture_error_mode="thread_local",
            ):
                self._step(size, kind)
        except RuntimeError as error:
            self._captures = False
            self.forget()
            torch.cuda.synchronize()
            log.warning(
                "%s cannot be captured as a CUDA graph, so that each token waits for the host, which is several times "
                "slower for small models: %s",
                type(self._step.lm.model).__name__,
                headline(error),
            )
            return None
        self._pool = graph.pool()
        self._addresses = self._weights()
        self._graphs[size, kind] = graph
        return graph

    def _weights(self) -> list[int]:
        tensors: list[Tensor] = [*self._step.lm.parameters(), *self._step.lm.buffers()]
        return [tensor.data_ptr() for tensor in tensors]


def _capture_stream() -> torch.cuda.Stream | None:
    """Return the current stream, whose priority the kernels of a graph keep; None: it is the default one, on which
    nothing can be captured."""
    current = torch.cuda.current_stream()
    return None if current == torch.cuda.default_stream() else current


def graph_sizes(num_rows: int) -> tuple[int, ...]:
    """Return numbers of rows with a graph of their own: 8, 16, 32, and on to ``num_rows`` by steps of a quarter of the
    power of 2 below, so that at most a fifth of the computed rows is empty from 16 rows on."""
    sizes = {8, 16, num_rows}
    power = 16
    while power < num_rows:
        sizes |= {power + power * quarter // 4 for quarter in range(5)}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= num_rows))
