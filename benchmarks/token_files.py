"""Cost of the observer ``token_files`` in the quickstart: processor time of its files beside that of the whole step.

    python examples/reverse_digits/prepare.py
    python benchmarks/token_files.py [--steps 100] [--samples 4]

Both are medians of all steps but the first, in which pyarrow is imported. Processor time counts, so other programs may
run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rlhf_cli.main import main as rlhf
from rlhf_plugin_lab.token_files import TokensObserver


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=4, help="whose tokens are recorded, a step")
    arguments = parser.parse_args()
    begun, spent = [], []
    write = TokensObserver.rollout_end

    def timed(self: TokensObserver, **event: Any) -> None:
        begun.append(time.process_time())
        write(self, **event)
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
    file, step = statistics.median(spent[1:]), statistics.median(steps)
    print(
        f"a file {1e3 * file:.2f} ms, the step without it {1e3 * (step - file):.1f} ms: {file / (step - file):.2%}"
    )


if __name__ == "__main__":
    main()
