"""Graph passes: the rewritings of the layers' graph that DeepCompile does, and the update from which each holds."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_arg

PREFETCH_STEP = 5
"""Number of updates after which stage 3 fetches weights ahead, by the times that these updates took."""


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
