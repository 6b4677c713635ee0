"""Observer ``token_files``: tokens of samples with their columns, a Parquet file for each step in ``RUN/tokens``.

``pandas.read_parquet("runs/run/tokens/step-00000012.parquet")`` has a row for each token. Its samples are those of
``samples.jsonl``, as many as ``log.samples`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.capabilities import HEARS_TOKENS
from rlhf_core.contracts import Observer, RolloutSample, RunInfo, SampleTokens
from rlhf_core.lazy import np
from rlhf_core.storage import made_whole

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "tokens"
NAMES = {
    "rollout_logprobs": "rollout_logprob",
    "old_logprobs": "trainer_logprob",
    "ref_logprobs": "reference_logprob",
    "advantages": "advantage",
    "values": "value",
    "entropy": "entropy",
    "loss": "loss",
    "clipped": "clipped",
}
"""Column of the step -> its name in the files. The first is in every file, the others where the run computes them."""


FORM: dict[str, Any] = {
    "compression": "lz4",
    # Names and texts come again and again, numbers do not. What a step has of both is too little to search by range.
    "use_dictionary": ["uid", "text"],
    "write_statistics": False,
    "store_schema": False,
}
"""Options of the files, by which one costs little of a step of 60 ms."""


class TokensConfig(Config):
    """Size of the files."""

    every: int = Field(1, ge=1, description="number of steps between two files")
    max_tokens: int = Field(
        1_000_000,
        ge=1,
        description="largest number of tokens of a file; samples that do not fit as a whole are left out",
    )


class TokensObserver(Observer):
    """Writes the tokens of each step's samples. It has no state: files of steps that are done again are replaced."""

    def __init__(self, config: TokensConfig) -> None:
        self.config = config
        self._folder: Path | None = None

    def run_start(self, run: RunInfo) -> None:
        """Make the folder, and remove the files of steps that the run does again."""
        self._folder = run.output / FOLDER
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.glob("step-*.parquet"):
            step = path.stem.removeprefix("step-")
            if step.isdecimal() and int(step) > run.start_step:
                path.unlink()

    def rollout_end(
        self, step: int, samples: Sequence[RolloutSample], metrics: Mapping[str, float]
    ) -> None:
        """Write the file of a step.

        Raises:
            StorageError: it could not be written.
        """
        if self._folder is None or (step - 1) % self.config.every:
            return
        kept = _within(samples, self.config.max_tokens)
        if not kept:
            return
        import pyarrow.parquet as parquet  # half a second, for runs that record tokens alone

        with made_whole(self._folder / f"step-{step:08d}.parquet") as path:
            parquet.write_table(_table(kept), path, **FORM)


Kept = list[tuple[str, SampleTokens]]
"""Names of samples, and their tokens."""


def _within(samples: Sequence[RolloutSample], limit: int) -> Kept:
    """Return the first samples that have no more tokens than the limit together."""
    kept: Kept = []
    for sample in samples:
        if sample.tokens is not None and len(sample.tokens.token_ids) <= limit:
            limit -= len(sample.tokens.token_ids)
            kept.append((sample.uid, sample.tokens))
    return kept


def _table(samples: Kept) -> pa.Table:
    """Return a row for each token. Numbers that only actions have are null at the other tokens."""
    import pyarrow as pa

    actions = np.concatenate([tokens.action_mask for _, tokens in samples])
    counts = [len(tokens.token_ids) for _, tokens in samples]

    def placed(values: list[Any], kind: Any) -> pa.Array:
        column = np.zeros(len(actions), dtype=kind)
        column[actions] = np.concatenate(values)
        return pa.array(column, mask=~actions | np.isnan(column.astype(np.float64)))

    columns: dict[str, Any] = {
        "uid": [uid for (uid, _), count in zip(samples, counts, strict=True) for _ in range(count)],
        "index": pa.array(np.concatenate([np.arange(count, dtype=np.int32) for count in counts])),
        "token_id": pa.array(np.concatenate([tokens.token_ids for _, tokens in samples])),
        "text": [text for _, tokens in samples for text in tokens.texts],
        "action": pa.array(actions),
        "version": placed([tokens.weight_version for _, tokens in samples], np.int32),
    }
    for name, shown in NAMES.items():
        if all(name in tokens.columns for _, tokens in samples):
            columns[shown] = placed([tokens.columns[name] for _, tokens in samples], np.float32)
    return pa.table(columns)


COMPONENT = Component(
    name="token_files",
    factory=TokensObserver,
    config=TokensConfig,
    summary="writes the tokens of samples with log-probs, advantages, entropies and versions into Parquet files",
    provides=frozenset({HEARS_TOKENS}),
)
