"""The kind of run of ``rlhf train``: its trainer, and what its checkpoints depend on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from rlhf_config.resolved import Resolved
from rlhf_config.trained_roles import OPTIONS_OF_PARTS
from rlhf_core.errors import CheckpointError
from rlhf_core.plugins import Plugins
from rlhf_core.storage.run_folder import RunFolder

from ..durable.records import Extent, replay
from .resume import ResumeRules
from .rl_trainer import RLTrainer
from .run_kind import RunKind
from .session import open_session
from .state import LoopState, adopt_options, initial_state

BINDING = (
    "seed",
    "model",
    "data",
    "rollout.n_samples_per_prompt",
    "rollout.batch_size",
    "reward.shapers",
    *("actor.optim", "actor.adapter", *OPTIONS_OF_PARTS),
    *("critic.optim", "critic.adapter", "critic.path"),
    "env.use",
    "supervised.data",
    "supervised.prompt_key",
    "supervised.response_key",
    "eval.fraction",
)
"""Options that a checkpoint's state depends on. The shares of environments, which divide the tasks among them, are too
(``resume.bound_sections``)."""


def check_books(folder: RunFolder, state: LoopState, records: Mapping[str, Extent]) -> None:
    """Compare the groups that are in flight by the state with those that the ledger has neither trained nor dropped.

    Args:
        records: the records that go on, by file name; a ledger that starts over is not compared.

    Raises:
        CheckpointError: they differ.
    """
    extent = records.get(folder.ledger.name)
    if extent is None:
        return
    balance = replay(folder.ledger, num_bytes=extent.num_bytes)
    in_flight = {f"{epoch}.{prompt}" for epoch, prompt in state.in_flight}
    for group in sorted(in_flight ^ set(balance.unsettled()))[:1]:
        expected = "in flight" if group in in_flight else "settled"
        raise CheckpointError(
            f"{folder.ledger} does not balance at step {state.step}: group {group}, which should be {expected}, was "
            f"planned {balance.planned[group]}, trained {balance.trained[group]} and dropped "
            f"{balance.dropped[group]} times",
            code="checkpoint/unbalanced-ledger",
        )


async def _open(
    resolved: Resolved, plugins: Plugins, folder: RunFolder, state: LoopState, stack: AsyncExitStack
) -> RLTrainer:
    return RLTrainer(await open_session(resolved, plugins, stack), state, folder)


TRAINING = RunKind(
    initial_state=initial_state,
    resuming=ResumeRules(
        state=LoopState,
        binding=BINDING,
        records=("ledger.jsonl", "eval_samples.jsonl"),
        check_books=check_books,
        adopt_options=adopt_options,
    ),
    open=_open,
)
