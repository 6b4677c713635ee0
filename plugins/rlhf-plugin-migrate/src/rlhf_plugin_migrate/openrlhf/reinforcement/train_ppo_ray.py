"""Migration of ``train_ppo_ray``: the table's plain entries, then the rules by which flags act together."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ..common.command_line import FLAGS, read_flags
from ..common.records import set_files, set_logs
from . import algorithm, lengths, optimization, placement, prompts, records, rewards


def migrate(words: Sequence[str], adapter: str) -> Outcome:
    """Return the configuration that the flags of ``train_ppo_ray`` mean.

    Args:
        adapter: path of the file that calls the user's reward function, if it is needed.
    """
    source = read_flags(words, FLAGS["train_ppo_ray"])
    out = Outcome(source)
    out.apply_plain_entries()
    if not source.given("actor.model_name_or_path"):
        out.warnings.append(
            "--actor.model_name_or_path is missing: the configuration needs model.path"
        )
    for rule in (
        prompts.set_data,
        prompts.set_prompt,
        placement.set_components,
        placement.set_ranks,
        placement.set_colocation,
        placement.set_async,
        algorithm.set_advantage,
        algorithm.set_loss,
        algorithm.set_kl,
        algorithm.set_correction,
        optimization.set_optimizers,
        optimization.set_critic,
        optimization.set_adapters,
        optimization.set_average,
        lengths.set_lengths,
        lengths.set_micro_batches,
        lengths.set_batch,
        records.set_evaluation,
        set_files,
        set_logs,
    ):
        rule(source, out)
    rewards.set_reward(source, out, adapter)
    return out
