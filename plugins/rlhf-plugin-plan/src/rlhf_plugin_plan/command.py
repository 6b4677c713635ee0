"""The command ``rlhf plan``: it reads the flags, predicts the run and prints the report."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from functools import partial

from rlhf_config import FlagParser
from rlhf_core import plugins as plugin_loader
from rlhf_core.plugins import Plugins

from .fleet_choice import FleetPlanner, ways_of
from .machine.hardware import GPUS, Fleet, find_fleet, find_gpu
from .memory.placement import ClusterSize
from .remedies import Remedy, remedies
from .report import as_json, render
from .run_prediction import Predicted, require_positive


def parser() -> FlagParser:
    """Return the parser of the command's own flags; all other flags belong to the run."""
    own = FlagParser(
        prog="rlhf plan",
        usage="rlhf plan MODEL [--gpus NxGPU] [OPTIONS] [OPTIONS OF rlhf train]\n"
        "       rlhf plan -c FILE.toml [OPTIONS] [OPTIONS OF rlhf train]",
        description="Predict memory and seconds of a run from its configuration, and say whether the run fits. MODEL "
        "is a folder or hub name. The command also takes all options of rlhf train, which describe the run.",
    )
    own.add_argument(
        "--gpu", default="h200", help=f"kind of GPU, one of {', '.join(GPUS)} (default h200)"
    )
    own.add_argument(
        "--gpus",
        metavar="NxGPU",
        help="GPUs of one machine, such as 4xa100-80 or, by memory alone, 8x24GB: print the fastest configuration that "
        "fits them, and its command",
    )
    own.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="number of machines that must have room for the run; unset: as many as the run takes",
    )
    own.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="number of GPUs of each machine (default 8)"
    )
    own.add_argument(
        "--model-config",
        action="append",
        default=[],
        metavar="[ROLE=]FILE",
        help="config.json of a model that is not on this machine; ROLE=FILE for the model of one role",
    )
    own.add_argument(
        "--prompt-tokens",
        type=int,
        metavar="N",
        help="number of tokens of each prompt; unset: the longest, data.max_prompt_tokens",
    )
    own.add_argument(
        "--response-tokens",
        type=int,
        metavar="N",
        help="number of tokens of each response; unset: the longest, rollout.max_new_tokens",
    )
    own.add_argument(
        "--response-spread",
        type=float,
        metavar="NUMBER",
        help="standard deviation of the logarithm of the responses' lengths, whose mean is --response-tokens; with it "
        "the report compares generation on-policy, a step ahead and with weights in flight",
    )
    own.add_argument(
        "--image-tokens",
        type=int,
        metavar="N",
        help="number of tokens of each prompt that stand for an image; unset: those of the largest image that the "
        "model sees, or the whole prompt",
    )
    own.add_argument("--json", action="store_true", help="print JSON")
    return own


def main(arguments: Sequence[str]) -> int:
    """Print the prediction and return the exit code: 0 if the run fits, 1 if not.

    Raises:
        ConfigError: no GPU could run this configuration, or a flag is wrong (exit code 2).
    """
    own, words = parser().parse_known_args(_with_model(arguments))
    plugins = plugin_loader.load()
    if own.gpus is not None:
        return plan_fleet(find_fleet(own.gpus), words, own, plugins)
    gpu, cluster = find_gpu(own.gpu), _cluster(own.nodes, own.gpus_per_node)
    fleet = Fleet(gpu=gpu, count=cluster.nodes * cluster.gpus_per_node if cluster else 1)
    planner = FleetPlanner(fleet, own, plugins, cluster)
    return _report(partial(planner.predicted, words), own, plugins)


def plan_fleet(
    fleet: Fleet, words: Sequence[str], own: argparse.Namespace, plugins: Plugins
) -> int:
    """Print the fastest configuration that fits these GPUs, and return the exit code.

    Args:
        words: flags of the run, which stay.
        own: what ``parser`` reads.

    Raises:
        ConfigError: no GPU could run this configuration, or a flag is wrong.
    """
    planner = FleetPlanner(fleet, own, plugins)
    ways = ways_of(fleet, words, ragged=own.response_spread is not None)
    best = planner.chosen(ways)
    if best is None:
        return _report(partial(planner.predicted, ways[0]), own, plugins)
    if own.json:
        print(json.dumps(as_json(best.prediction, []), indent=2))
        return 0
    print(render(best.prediction, []))
    print(best.reason)
    print(shlex.join(["rlhf", "train", *best.words, *best.schedule]))
    return 0


def _with_model(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with flags in the place of a model in front, and of all that a run cannot do without."""
    words = list(arguments)
    if not words or words[0].startswith("-"):
        return words
    placeholders = {
        "--data": "prompts.jsonl",
        "--reward": "exact_match",
        "--model.dtype": "bfloat16",
    }
    typed = {word.partition("=")[0] for word in words}
    missing = [word for pair in placeholders.items() if pair[0] not in typed for word in pair]
    return ["--model", words[0], *missing, *words[1:]]


def _report(predicted: Predicted, own: argparse.Namespace, plugins: Plugins) -> int:
    planned, prediction = predicted([])
    found: list[Remedy] = []
    if not prediction.fits:
        adapters = [entry.name for entry in plugins.registries["rlhf_model_adapters"]]
        found = remedies(planned, prediction, lambda flags: predicted(flags)[1], adapters)
    if own.json:
        print(json.dumps(as_json(prediction, found), indent=2))
    else:
        print(render(prediction, found))
    return 0 if prediction.fits else 1


def _cluster(nodes: int | None, gpus_per_node: int | None) -> ClusterSize | None:
    require_positive({"--nodes": nodes, "--gpus-per-node": gpus_per_node})
    if nodes is None and gpus_per_node is None:
        return None
    return ClusterSize(nodes=nodes or 1, gpus_per_node=gpus_per_node or 8)
