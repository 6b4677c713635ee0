"""Names of the metrics of evaluations, which follow from options alone, and the check of the one that says which
checkpoint is the best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rlhf_core.errors import ConfigError

from ..run import RunConfig


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


def best_metric_problems(run: RunConfig, sets: Collection[str]) -> Iterator[ConfigError]:
    """Yield the problem of a best metric that no evaluation of these sets gives.

    Metrics of plugins have names that are known once they are asked, so any name of a set and temperature will do.
    """
    wanted = run.checkpoint.named_metric
    if wanted is None:
        return
    names = metric_names(sets, run.eval.temperatures, run.eval.n_samples, draws=bool(run.env.use))
    folders = {name.rpartition("/")[0] for name in names}
    may_come = bool(run.eval.metrics) and any(wanted.startswith(f"{one}/") for one in folders)
    if wanted not in names and not may_come:
        yield ConfigError(
            f"--checkpoint.best_metric {wanted}: expected a metric that this run evaluates: {', '.join(names)}",
            code="metric/unknown",
        )
