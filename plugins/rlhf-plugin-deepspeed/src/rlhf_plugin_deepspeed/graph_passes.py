"""What DeepCompile does to the graph of the layers, and from which step on."""

from __future__ import annotations

from typing import Any

import torch

PREFETCH_STEP = 5
"""Stage 3 fetches weights ahead from this step on, by what the steps before it took."""


def schedule(stage: int) -> list[tuple[int, list[Any]]]:
    """The passes over the graph, by the step from which they hold.

    DeepSpeed's own schedule for stage 3 also keeps weights whole in memory that it finds free; an engine on the same
    GPU may need that later.
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
    """A pass of DeepCompile: cast each parameter's gradient to float32, in which ranks and micro-batches are summed."""
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
    results = [casts.get(result, result) for result in output.args[0]]
    output.args = (tuple(results),)
    return gm


def keep_buckets(gm: torch.fx.GraphModule, *_: Any) -> torch.fx.GraphModule:
    """A pass of DeepCompile, after its own at stage 1: leave the buckets for sums over ranks where they are.

    DeepSpeed releases them after every backward pass, and ends the process in one that finds none. At stage 1 only the
    last pass of a step sums over ranks, so from the second step on the first one would find none.
    """
    for node in gm.graph.nodes:
        if node.target == torch.ops.dc.end_backward.default:
            gradients, graph, _ = node.args
            node.args = (gradients, graph, False)
    return gm
