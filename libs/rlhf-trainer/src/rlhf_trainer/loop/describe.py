"""Description of what a run would build, for ``rlhf train --dry-run``. Loads neither weights nor data."""

from __future__ import annotations

from rlhf_config.resolved import Resolved, Selection
from rlhf_core.contracts.backend import PolicyObjective, RoleSpec
from rlhf_core.contracts.runtime import PlansPlacement
from rlhf_core.plugins import Plugins

from ..learning.demands import Demands, demands_of
from ..learning.roles import REFERENCE, is_base_reference, policy_role, runtime_spec
from .sleeping import LEAVING, asleep_while_it_learns


def describe(resolved: Resolved, plugins: Plugins) -> str:
    """Return the plan of a run: components with their origin, models, batch sizes, passes over each batch."""
    demands = demands_of(resolved)
    run = resolved.run
    spec = runtime_spec(resolved, demands, total_steps=run.train.steps or 1, eos_token_ids=())
    lines = ["components"]
    for slot, selections in resolved.selections.items():
        for selection in selections:
            if demands.critic or not slot.startswith("critic."):
                lines.append(f"  {slot:26} {_component(selection)}")
    lines.append("models")
    lines += [f"  {name:26} {_role(role)}" for name, role in spec.roles.items()]
    if demands.reference and is_base_reference(resolved):
        adapter = resolved.optional("actor.adapter")
        begun = adapter.options.continued_from() if adapter else None
        what = f"the adapter {begun}" if begun else "the policy without its adapter"
        if run.ref.sync_every is not None:
            what = f"a copy of what the policy trains, moved to it every {run.ref.sync_every} steps"
        lines.append(f"  {REFERENCE:26} {what}")
    runtime = resolved.one("runtime.name").options
    if isinstance(runtime, PlansPlacement):
        lines.append("placement")
        lines += [f"  {line}" for line in runtime.placement(list(spec.roles))]
    sleep = resolved.run.runtime.sleep
    if sleep in LEAVING:
        moving = asleep_while_it_learns(resolved, spec, LEAVING[sleep]).moving_roles
        lines.append(
            f"  the engine sleeps while roles compute; out while it generates: {', '.join(moving)}"
        )
    trained = ", ".join(run.data.train) or run.data.source or "tasks of the environment"
    lines += ["data", f"  {'train':26} {trained}"]
    if run.eval.holds_rows_out:
        held_out = ", ".join(run.eval.data) or f"{run.eval.fraction:.0%} of the training data"
        lines.append(f"  {'evaluation':26} {held_out}")
    evaluates = run.eval.holds_rows_out or run.may_play_held_out
    unused = [", ".join(resolved.unused)] if resolved.unused else []
    for title, entries in (
        ("one step", _step(resolved, demands)),
        ("output", [run.output, run.checkpoint.described(evaluates=evaluates)]),
        ("chosen by auto", resolved.choices),
        ("warnings", resolved.cautions),
        ("sections of the files that this run does not use", unused),
        ("plugins that could not be loaded", plugins.failed),
    ):
        if entries:
            lines += [title, *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def _component(selection: Selection) -> str:
    options = selection.options.model_dump(mode="json", exclude_defaults=True)
    shown = ", ".join(f"{name}={value}" for name, value in options.items())
    return selection.registered.label + (f": {shown}" if shown else "")


def _role(role: RoleSpec) -> str:
    if role.objective is None:
        return f"{role.model_path}, {role.dtype}, frozen"
    kind = "policy" if isinstance(role.objective, PolicyObjective) else "value head"
    optimizer = role.optimizer.name if role.optimizer else "none"
    adapter = f", adapter {role.adapter.name}" if role.adapter else ""
    schedule = role.schedule.name or "constant"
    return f"{role.model_path}, {role.dtype}, {kind}{adapter}, {optimizer}, {schedule} schedule"


def _step(resolved: Resolved, demands: Demands) -> list[str]:
    run = resolved.run
    prompts, group = run.rollout.batch_size, run.rollout.n_samples_per_prompt
    passes = [
        name
        for name, wanted in (
            ("old log-probs", bool(demands.old_statistics)),
            ("reference log-probs", demands.reference),
            ("teacher log-probs", demands.teacher),
            ("values", demands.critic),
            ("a greedy episode per prompt", demands.greedy_rewards),
        )
        if wanted
    ]
    ahead = run.rollout.max_staleness
    swap = "while they are written" if run.rollout.in_flight_updates else "between them"
    steps = run.train.steps or f"{run.train.epochs} epoch(s) of the data"
    objective = policy_role(resolved, demands, total_steps=1).objective
    assert isinstance(objective, PolicyObjective)
    return [
        f"{prompts} prompts x {group} samples = {prompts * group} episodes of up to {run.longest_sequence} tokens",
        *([f"of weights up to {ahead} version(s) old, swapped {swap}"] if ahead else []),
        f"extra passes: {', '.join(passes) or 'none'}",
        f"{demands.updates_per_step} optimizer update(s), steps: {steps}",
        f"loss: {objective.aggregation}"
        + "".join(
            f", + {term.weight:g} {term.loss.name} of {term.rows}" for term in objective.terms
        ),
    ]
