"""How often ``rlhf doctor`` blames runs in which nothing is wrong but luck: records drawn at random, without a model.

    python benchmarks/diagnoses_by_luck.py --runs 2000

Rewards of 0 and 1 are drawn prompt by prompt, with difficulties that differ, from a share of right answers that rises
along a logistic curve, or stays; held-out rewards and the accuracies of a reward model are drawn alike. Entropy, KL,
lengths, effective samples and the difference of log-probs take noisy courses as of runs that learn. Each record is
looked at after every tenth step. This is the noise of batches alone: what real runs do beside is measured by
``diagnoses.py``.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from rlhf_plugin_lab.doctor.command import diagnoses_of
from rlhf_plugin_lab.doctor.diagnosis import diagnose
from rlhf_plugin_lab.doctor.record import Record, Texts
from rlhf_plugin_lab.doctor.text import Text
from rlhf_plugin_lab.recorded.metrics import Metrics, Series

EVERY = 10
"""Steps from look to look, and from evaluation to evaluation."""
Values = dict[str, NDArray[np.float64]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = np.random.default_rng(arguments.seed)
    blamed, by, looks = Counter[str](), Counter[str](), 0
    for number in range(arguments.runs):
        kind = "a reward model" if number % 4 == 3 else "rollouts"
        steps = int(draw.integers(60, 300))
        values = ranked(draw, steps) if number % 4 == 3 else rolled(draw, steps)
        found: set[str] = set()
        for step in range(EVERY, steps + 1, EVERY):
            run = record(values, step)
            found |= set(diagnose(run, diagnoses_of(run)).found)
            looks += 1
        blamed[kind] += bool(found)
        by.update(found)
    print(f"{arguments.runs} records, {looks} looks: blamed {dict(blamed)}, by {dict(by)}")


def rolled(draw: np.random.Generator, steps: int) -> Values:
    """Return metrics of a run with rollouts."""
    groups, samples = int(draw.choice([8, 16, 32, 64])), int(draw.choice([4, 8, 16]))
    at = np.arange(steps) / steps
    start = draw.uniform(-3.0, 1.0)
    gain = draw.choice([0.0, 1.0, 3.0, 6.0])
    ability = start + gain / (1.0 + np.exp(-10.0 * (at - draw.uniform(0.1, 0.8))))
    values: Values = {}
    hard = draw.normal(0.0, 1.5, (steps, groups))
    right = draw.binomial(samples, 1.0 / (1.0 + np.exp(hard - ability[:, None]))) / samples
    share = right.mean(1)
    values["reward/mean"], values["reward/std"] = share, np.sqrt(share * (1.0 - share))
    values["group/no_signal"] = ((right == 0.0) | (right == 1.0)).mean(1)
    values["advantage/abs_mean"] = 2.0 * (right * (1.0 - right)).mean(1)
    values["loss/policy"] = draw.normal(0.0, 0.02, steps)
    values["policy/ratio"] = 1.0 + draw.normal(0.0, 1e-4, steps)
    values["policy/entropy"] = noisy(
        draw, draw.uniform(0.3, 3.0) * np.exp(-draw.uniform(0.0, 3.0) * at), 0.03
    )
    values["policy/approx_kl"] = noisy(draw, np.full(steps, 10.0 ** draw.uniform(-4.0, -1.5)), 0.3)
    values["policy/grad_norm"] = noisy(draw, np.full(steps, 0.5), 0.3)
    values["kl/ref"] = noisy(draw, 10.0 ** draw.uniform(-3.0, 0.0) * at, 0.2)
    values["clip/fraction_low"] = values["clip/fraction_high"] = noisy(
        draw, np.full(steps, 0.1), 0.5
    )
    values["response/length_mean"] = noisy(draw, 100.0 * (1.0 + draw.uniform(-0.5, 2.0) * at), 0.1)
    values["response/truncated"] = draw.binomial(
        groups * samples, draw.uniform(0.0, 0.4), steps
    ) / (groups * samples)
    values["mismatch/ess"] = draw.uniform(0.5, 1.0, steps)
    gap = np.full(steps, 10.0 ** draw.uniform(-7.0, -1.5))
    values["mismatch/logprob_diff_mean"] = noisy(draw, gap, 0.3)
    prompts = int(draw.choice([32, 128]))
    held = 1.0 / (1.0 + np.exp(draw.normal(0.0, 1.5, (steps, prompts)) - ability[:, None]))
    values["eval/held_out/T0/reward"] = draw.binomial(1, held).mean(1)[::EVERY]
    return values


def ranked(draw: np.random.Generator, steps: int) -> Values:
    """Return metrics of a reward model's training."""
    at, pairs = np.arange(steps) / steps, int(draw.choice([16, 64]))
    share = 0.5 + draw.uniform(0.1, 0.45) * (1.0 - np.exp(-draw.uniform(3.0, 10.0) * at))
    loss = 0.69 - 0.6 * (share - 0.5)
    return {
        "ranking/accuracy": draw.binomial(pairs, share) / pairs,
        "loss/ranking": loss + draw.normal(0.0, 0.5 / pairs**0.5, steps),
        "eval/loss": (0.69 - 0.5 * (share - 0.5) + draw.normal(0.0, 0.02, steps))[::EVERY],
    }


def noisy(
    draw: np.random.Generator, values: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """Return values times log-normal noise."""
    return values * np.exp(draw.normal(0.0, share, len(values)))


def record(values: Values, steps: int) -> Record:
    """Return the record of a run after some of its steps."""
    series = {}
    for name, column in values.items():
        every = EVERY if name.startswith("eval/") else 1
        at = [each for each in range(0, steps + 1 - (every == 1), every)][: len(column)]
        shown = column[: len(at)].tolist()
        series[name] = Series([each + (every == 1) for each in at], [0.0] * len(at), shown)
    texts = Texts(first=[Text(1, "0.0", "", 0.0), Text(1, "0.1", "", 1.0)], steps=1)
    return Record(metrics=Metrics(series=series, last_step=steps), texts=texts)


if __name__ == "__main__":
    main()
