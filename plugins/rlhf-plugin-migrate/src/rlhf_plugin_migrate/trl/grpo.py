"""Migration of a YAML file for TRL's GRPO: the table's plain entries, then the rules by which keys act together."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from . import grpo_algorithm, grpo_rewards, grpo_sizes
from .common.model_adapter import set_adapter
from .common.optimization import set_optimization
from .common.shared_rules import set_computing, set_data


def migrate(source: SourceOptions, processes: int, adapter: str) -> Outcome:
    """Return the configuration that a file for GRPO means.

    Args:
        processes: number of processes that accelerate starts.
        adapter: path of the file that calls the user's reward functions, if it is needed.
    """
    out = Outcome(source)
    out.apply_plain_entries()
    if not source.given("model_name_or_path"):
        out.warnings.append("model_name_or_path is missing: the configuration needs model.path")
    if processes == 1 and not source.given("deepspeed", "fsdp"):
        out.warnings.append("one process is assumed; --processes says how many accelerate starts")
    backend = grpo_sizes.set_components(source, out, processes)
    set_computing(source, out, backend)
    set_adapter(source, out, backend=backend)
    grpo_sizes.set_batches(source, out, processes)
    grpo_sizes.set_records(source, out, processes)
    set_data(source, out)
    set_optimization(source, out)
    grpo_algorithm.set_advantage(source, out)
    grpo_algorithm.set_loss(source, out)
    grpo_algorithm.set_kl(source, out)
    grpo_algorithm.set_entropy(source, out)
    grpo_algorithm.set_correction(source, out)
    grpo_rewards.set_rewards(source, out, adapter)
    out.without_shapers()
    return out
