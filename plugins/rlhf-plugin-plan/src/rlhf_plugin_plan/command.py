"""The command ``rlhf plan``: it reads the flags, predicts the run and prints the report."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from rlhf_cli.runs import PlannedRun, read_run, run_layers
from rlhf_config import leaves
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import Accelerator, RoleSpec
from rlhf_core.plugins import Plugins

from .fitting import Values, fastest, options_of
from .machine.fleet import Fleet, find_fleet
from .machine.hardware import GPUS, GpuSpec, find_gpu
from .memory.placement import ClusterSize
from .memory.roles import Workload
from .model.activations import Precision
from .model.adapters import AdaptedModels, AdapterCounts
from .model.configs import configs_of, shapes_of
from .model.shapes import ModelShape
from .prediction import Prediction, predict, require_sane
from .remedies import Remedy, remedies
from .report import as_json, render


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"rlhf plan: {message}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own flags; all other flags belong to the run."""
    own = _Parser(
        prog="rlhf plan",
        description="Predict memory and seconds of a run, and say whether the run fits. The command takes all flags of "
        "rlhf train: -c FILE, and flags that override the file. rlhf plan MODEL needs none of them.",
        allow_abbrev=False,
    )
    own.add_argument("--gpu", default="h200", help=f"one of {', '.join(GPUS)} (h200)")
    own.add_argument(
        "--gpus",
        metavar="NxGPU",
        help="GPUs of one machine, such as 4xa100-80 or, by memory alone, 8x24GB: print the fastest configuration that "
        "fits them, and its command",
    )
    own.add_argument(
        "--nodes", type=int, help="number of machines; unset: as many GPUs as the run takes"
    )
    own.add_argument("--gpus-per-node", type=int, help="number of GPUs of each machine (8)")
    own.add_argument(
        "--model-config",
        action="append",
        default=[],
        metavar="[ROLE=]FILE",
        help="config.json, for models that are not on this machine",
    )
    own.add_argument(
        "--prompt-tokens", type=int, help="number of tokens of each prompt; unset: the longest"
    )
    own.add_argument(
        "--response-tokens", type=int, help="number of tokens of each response; unset: the longest"
    )
    own.add_argument(
        "--image-tokens",
        type=int,
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
    models = AdaptedModels(plugins)
    one = Accelerator(name=gpu.name, memory_gib=gpu.memory_gib)
    accelerators = (one,) * (cluster.nodes * cluster.gpus_per_node if cluster else 1)

    def predicted(more: Sequence[str]) -> tuple[PlannedRun, Prediction]:
        planned = read_run(replaced(words, more), plugins, accelerators)
        return planned, predicted_run(planned, models, gpu, cluster, own)

    return _report(predicted, own, plugins)


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
    gpu, models = fleet.gpu, AdaptedModels(plugins)
    accelerators = (Accelerator(name=gpu.name, memory_gib=gpu.memory_gib),) * fleet.count
    of_run = list(words)
    if fleet.count > 1:
        of_run += ["--gpus", str(fleet.count)]
        if not {"--engine", "--engine.name"} & {word.partition("=")[0] for word in words}:
            of_run += [
                "--engine",
                "vllm",
            ]  # what is installed here says nothing of the machine that is planned
    layers = run_layers(of_run, accelerators)
    given = frozenset(path for layer in layers for path, _ in leaves(layer.values))

    def predicted(more: Sequence[str]) -> tuple[PlannedRun, Prediction]:
        planned = read_run(replaced(of_run, more), plugins, accelerators)
        return planned, predicted_run(planned, models, gpu, None, own)

    def with_values(values: Values) -> Prediction:
        return predicted(_flags(values))[1]

    found = fastest(predicted([])[0], given, with_values)
    if found is None:
        return _report(predicted, own, plugins)
    best, compared = found
    if own.json:
        print(json.dumps(as_json(best.prediction, []), indent=2))
        return 0
    print(render(best.prediction, []))
    print(options_of(best, compared).reason)
    print(shlex.join(["rlhf", "train", *of_run, *_flags(best.values)]))
    return 0


def _flags(values: Values) -> list[str]:
    return [
        word
        for path, value in values.items()
        for word in (f"--{path}", str(value).lower() if isinstance(value, bool) else f"{value}")
    ]


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


def _report(
    predicted: Callable[[Sequence[str]], tuple[PlannedRun, Prediction]],
    own: argparse.Namespace,
    plugins: Plugins,
) -> int:
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


def predicted_run(
    planned: PlannedRun,
    models: AdaptedModels,
    gpu: GpuSpec,
    cluster: ClusterSize | None,
    own: argparse.Namespace,
) -> Prediction:
    """Return the prediction of a run.

    Args:
        own: what ``parser`` reads.

    Raises:
        ConfigError: see ``prediction.predict``.
    """
    workload = _workload(planned, own.prompt_tokens, own.response_tokens)
    configs = configs_of(planned, own.model_config)

    def adapted(spec: RoleSpec, precision: Precision) -> AdapterCounts:
        return models.counts(spec, configs[spec.role], precision)

    shapes = shapes_of(configs)
    workload = replace(
        workload,
        image_tokens=_image_tokens(planned, shapes["policy"], workload, own.image_tokens),
    )
    return predict(planned, shapes, gpu, cluster, workload, adapted)


def replaced(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words of a command line in which ``flags`` replace the flags of the same names.

    Args:
        flags: names and values in turn.
    """
    names = set(flags[::2])
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("-"):
            dropping = word.partition("=")[0] in names
        if not dropping:
            kept.append(word)
    merged = dict(zip(flags[::2], flags[1::2], strict=True))
    return [*kept, *(word for pair in merged.items() for word in pair)]


def _cluster(nodes: int | None, gpus_per_node: int | None) -> ClusterSize | None:
    for flag, value in (("--nodes", nodes), ("--gpus-per-node", gpus_per_node)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} {value}: expected a positive number")
    if nodes is None and gpus_per_node is None:
        return None
    return ClusterSize(nodes=nodes or 1, gpus_per_node=gpus_per_node or 8)


def _workload(planned: PlannedRun, prompt: int | None, response: int | None) -> Workload:
    rollout = planned.run.rollout
    for flag, value in (("--prompt-tokens", prompt), ("--response-tokens", response)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} {value}: expected a positive number")
    longest_prompt = min(planned.run.data.max_prompt_tokens, planned.max_length - 1)
    used = prompt or longest_prompt
    workload = Workload(
        prompts=rollout.batch_size,
        samples=rollout.n_samples_per_prompt,
        prompt_tokens=used,
        response_tokens=response or min(rollout.max_new_tokens, planned.max_length - used),
        known_lengths=prompt is not None and response is not None,
    )
    require_sane(workload, planned.max_length)
    return workload


def _image_tokens(
    planned: PlannedRun, policy: ModelShape, workload: Workload, given: int | None
) -> int:
    """Return the number of tokens of each prompt that stand for its image.

    Raises:
        ConfigError: the given number is none that a prompt can have, or the run's model reads text alone.
    """
    reader = bool(planned.selections.get("model.vision"))
    sees = reader and policy.tower is not None
    if given is None:
        return _largest_image(planned, policy, workload.prompt_tokens) if sees else 0
    if not sees:
        fix = (
            "No tower for images is in its config.json; leave"
            if reader
            else "Set --model.vision, or leave"
        )
        raise ConfigError(
            f"--image-tokens {given}: the run's model reads text alone. {fix} --image-tokens out."
        )
    if not 0 <= given <= workload.prompt_tokens:
        raise ConfigError(
            f"--image-tokens {given}: expected a number from 0 to the prompt's {workload.prompt_tokens} tokens"
        )
    return given


def _largest_image(planned: PlannedRun, policy: ModelShape, longest: int) -> int:
    (vision,) = planned.selections["model.vision"]
    pixels = getattr(vision.options, "max_pixels", None)
    assert policy.tower is not None
    largest = policy.tower.image_tokens(pixels)
    return longest if largest is None else min(longest, largest)
