"""Cost of the observer ``token_files`` in the quickstart: processor time of its files beside that of the whole step.

    python examples/reverse_digits/prepare.py
    python benchmarks/token_files.py [--steps 100] [--samples 4]

All are medians of all steps but the first, in which pyarrow is imported. Every second file has no entropy, so that the
last ratio is of steps of one run. Processor time counts, so other programs may run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlhf_cli.main import main as rlhf
from rlhf_core.contracts import RolloutSample
from rlhf_plugin_lab.token_files import TokensObserver


def without_entropy(sample: RolloutSample) -> RolloutSample:
    """Return a sample without the column of entropies."""
    assert sample.tokens is not None
    columns = {name: each for name, each in sample.tokens.columns.items() if name != "entropy"}
    return replace(sample, tokens=replace(sample.tokens, columns=columns))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=4, help="whose tokens are recorded, a step")
    arguments = parser.parse_args()
    begun, spent = [], []
    write = TokensObserver.rollout_end

    def timed(
        self: TokensObserver,
        step: int,
        samples: Sequence[RolloutSample],
        metrics: Mapping[str, float],
    ) -> None:
        if step % 2:
            samples = [without_entropy(sample) for sample in samples]
        begun.append(time.process_time())
        write(self, step, samples, metrics)
        spent.append(time.process_time() - begun[-1])

    TokensObserver.rollout_end = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        words = "--eval.every 0 --eval.at_start false --observers.use token_files --log.curve false"
        words += " --log.tensorboard false --log.progress off --log.summary false"
        words += f" --steps {arguments.steps} --log.samples {arguments.samples} --output {Path(folder) / 'run'}"
        code = rlhf(["train", "-c", "examples/reverse_digits/run.toml", *words.split()])
    if code:
        raise SystemExit(code)
    steps = [after - before for before, after in itertools.pairwise(begun[1:])]
    file, plain = statistics.median(spent[1::2]), statistics.median(spent[2::2])
    rest = statistics.median(steps) - file
    print(f"a file {1e3 * file:.2f} ms, the step without it {1e3 * rest:.1f} ms: {file / rest:.2%}")
    print(f"a file without entropy {1e3 * plain:.2f} ms: {file / plain:.2f} times as long with it")


if __name__ == "__main__":
    main()
