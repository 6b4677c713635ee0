"""Names of the metrics of evaluations, which follow from options alone, and the check of those that options name: the
one that says which checkpoint is the best, and those that components wait for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from rlhf_core.errors import ConfigError

from ..resolved import Selections
from ..run import RunConfig
from .reward_rules import reward_names


def metric_names(
    sets: Iterable[str], temperatures: Sequence[float], num_samples: int, *, draws: bool
) -> list[str]:
    """Return the names that an evaluation gives of sets of which something could be scored.

    Args:
        draws: the run has an environment, which may draw.
    """
    return [
        full_name(name, temperature, metric)
        for name in sets
        for temperature in temperatures
        for metric in (
            *("reward", "response_length", "truncated"),
            *(
                f"pass@{k}"
                for k in powers_of_two(samples_at(temperature, num_samples, draws=draws))
            ),
        )
    ]


def samples_at(temperature: float, num_samples: int, *, draws: bool) -> int:
    """Episodes per prompt: greedy ones are all the same, unless an environment draws."""
    return 1 if temperature == 0 and not draws else num_samples


def full_name(set_name: str, temperature: float, metric: str) -> str:
    """Return the name under which a metric of a set at a temperature is recorded."""
    return f"eval/{set_name}/T{temperature:g}/{metric}"


def powers_of_two(num_samples: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples."""
    return [1 << exponent for exponent in range(num_samples.bit_length())]


def metric_problems(
    best: str | None,
    selections: Selections,
    names: Sequence[str],
    labels: Callable[[str], str],
    open_folders: Iterable[str] = (),
) -> Iterator[ConfigError]:
    """Yield the problem of each metric of evaluations that options name and no evaluation of the run gives.

    Args:
        best: ``checkpoint.named_metric``; components say what they wait for by ``Config.metrics_named``.
        names: metrics that evaluations give; none: there is no evaluation.
        labels: from the path of an option to how it is written.
        open_folders: beginnings of names of which it is known once they come.
    """
    waited = [] if best is None else [(best, "checkpoint.best_metric")]
    for selection in (one for found in selections.values() for one in found):
        named = sorted(selection.options.metrics_named().items())
        waited += [
            (name, f"{selection.section}.{option}")
            for name, option in named
            if name.startswith("eval/")
        ]
    for wanted, path in waited:
        if wanted in names or wanted.startswith(tuple(open_folders)):
            continue
        if not names:
            yield ConfigError(
                f"{labels(path)} {wanted}: there is no evaluation to take it from. Add --eval.data FILE or "
                "--eval.fraction 0.05.",
                code="metric/no-evaluation",
            )
            continue
        close = difflib.get_close_matches(wanted, names, n=1)
        near = f" Did you mean {close[0]}?" if close else ""
        yield ConfigError(
            f"{labels(path)} {wanted}: expected a metric that this run evaluates: {', '.join(names)}.{near}",
            code="metric/unknown",
        )


def eval_name_problems(
    run: RunConfig,
    selections: Selections,
    sets: Collection[str],
    labels: Callable[[str], str] = "--{}".format,
) -> Iterator[ConfigError]:
    """Yield the problem of each metric that the run waits for and that no evaluation of these sets gives.

    Metrics of plugins have names that are known once they are asked, and environments report what they like, so any
    name of a set and temperature will do for them. That something could not be scored is counted where it happens.
    """
    names = metric_names(sets, run.eval.temperatures, run.eval.n_samples, draws=bool(run.env.use))
    folders = sorted({name.rpartition("/")[0] for name in names})
    rewards = reward_names(selections)
    names += [f"{folder}/reward/{name}" for folder in folders for name in rewards or ()]
    unlisted = ["rollout/", "dropped_", *(["reward/"] if rewards is None else [])]
    free = [""] if run.eval.metrics else unlisted
    starts = [f"{folder}/{start}" for folder in folders for start in free]
    yield from metric_problems(run.checkpoint.named_metric, selections, names, labels, starts)
