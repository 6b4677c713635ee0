"""The fastest configuration that fits the GPUs of one machine, among ways to use them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.runs import PlannedRun, read_run, run_layers
from rlhf_config import leaves
from rlhf_core.contracts import Accelerator
from rlhf_core.plugins import Plugins

from .fitting import Values, fastest, options_of
from .machine.hardware import Fleet
from .memory.placement import ClusterSize
from .model.adapters import AdaptedModels
from .prediction import Prediction
from .run_prediction import predicted_run, replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The fastest configuration of a way to use the GPUs."""

    prediction: Prediction
    words: tuple[str, ...]
    """Flags of ``rlhf train``."""
    reason: str

    @property
    def schedule(self) -> tuple[str, ...]:
        """Flags of the fastest schedule; none where all responses have one length."""
        found = self.prediction.schedules
        return found[0].flags if found else ()

    @property
    def seconds(self) -> float:
        """Seconds of a step in the fastest schedule."""
        found = self.prediction.schedules
        return found[0].step_s if found else self.prediction.step.rates_s


def ways_of(fleet: Fleet, words: Sequence[str], *, ragged: bool) -> list[list[str]]:
    """Return the flags of the ways to use a machine's GPUs, the way that a run takes by itself first.

    Where responses have different lengths, half of the GPUs may train while the other half generates ahead.

    Args:
        words: flags of the run, which stay.
    """
    typed = {word.partition("=")[0] for word in words}
    if fleet.count == 1:
        return [list(words)]
    together = [*words, "--gpus", str(fleet.count)]
    if not {"--engine", "--engine.name"} & typed:
        # What is installed here says nothing of the machine that is planned.
        together += ["--engine", "vllm"]
    half = fleet.count // 2
    apart = {
        "--runtime.ray.ranks.policy": str(half),
        "--runtime.ray.engines": str(fleet.count - half),
        "--runtime.ray.colocate": "none",
    }
    if not ragged or typed & apart.keys():
        return [together]
    return [together, [*together, *(word for pair in apart.items() for word in pair)]]


class FleetPlanner:
    """Predictions of runs on GPUs of one model.

    Args:
        own: what the command's parser reads.
        cluster: the machines that have the GPUs; None: as many as a run takes.
    """

    def __init__(
        self,
        fleet: Fleet,
        own: argparse.Namespace,
        plugins: Plugins,
        cluster: ClusterSize | None = None,
    ) -> None:
        self._gpu, self._own, self._plugins = fleet.gpu, own, plugins
        self._cluster = cluster
        self._models = AdaptedModels(plugins)
        one = Accelerator(name=fleet.gpu.name, memory_gib=fleet.gpu.memory_gib)
        self._accelerators = (one,) * fleet.count

    def predicted(
        self, words: Sequence[str], more: Sequence[str] = ()
    ) -> tuple[PlannedRun, Prediction]:
        """Return a run, in whose words ``more`` replaces flags of the same names, and its prediction.

        Raises:
            ConfigError: no GPU could run this configuration, or a flag is wrong.
        """
        planned = read_run(replaced(words, more), self._plugins, self._accelerators)
        return planned, predicted_run(planned, self._models, self._gpu, self._cluster, self._own)

    def chosen(self, ways: Sequence[Sequence[str]]) -> Chosen | None:
        """Return the fastest configuration of all ways; None: none fits, or all options are given."""
        found = [self._best(words) for words in ways]
        return min(filter(None, found), key=lambda one: one.seconds, default=None)

    def _best(self, words: Sequence[str]) -> Chosen | None:
        layers = run_layers(words, self._accelerators)
        given = frozenset(path for layer in layers for path, _ in leaves(layer.values))
        planned, _ = self.predicted(words)
        found = fastest(planned, given, lambda values: self.predicted(words, _flags(values))[1])
        if found is None:
            return None
        best, compared = found
        return Chosen(
            prediction=best.prediction,
            words=(*words, *_flags(best.values)),
            reason=options_of(best, compared).reason,
        )


def _flags(values: Values) -> list[str]:
    return [
        word
        for path, value in values.items()
        for word in (f"--{path}", str(value).lower() if isinstance(value, bool) else f"{value}")
    ]
