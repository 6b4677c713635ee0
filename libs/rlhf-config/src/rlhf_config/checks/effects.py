"""Refusal of options that change nothing: no option that was typed for this run is silently ignored.

Only the command line is checked. In a file an option may wait for the run that switches its feature on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlhf_core.capabilities import ENDS_AT_FLOOR, OWN_ORDER, SEVERAL_TURNS, UNDOES_UPDATES
from rlhf_core.errors import ConfigError
from rlhf_core.storage.run_folder import RESTART

from ..common import RunOptions
from ..problems import Labels
from ..resolved import Selections
from ..run import RunConfig, SupervisedConfig
from ..trained_roles import OPTIONS_OF_PARTS, ReferenceSync, SeeingActor, TrainedRole
from .features import needs, old_logprobs_from, renormalizes
from .held_out import held_out_without_effect, splits_without_effect
from .reward_rules import learns_from_rewards


def check(run: RunConfig, selections: Selections, labels: Labels) -> None:
    """Refuse typed options that change nothing.

    Raises:
        ConfigError: names the option and what would make it count.
    """
    refuse_typed(_without_effect(run, selections, labels), labels)


def refuse_typed(without_effect: Iterable[tuple[str, str]], labels: Labels) -> None:
    """Refuse the first option that changes nothing and was typed for this run.

    Args:
        without_effect: paths of options, each with the reason.

    Raises:
        ConfigError: names the option and the reason.
    """
    for path, reason in without_effect:
        if labels.is_typed(path):
            raise ConfigError(
                f"{labels(path)} would change nothing: {reason}", code="config/no-effect"
            )


def components_without_effect(selections: Selections) -> Iterator[tuple[str, str]]:
    """Yield each option of a component that the component's other options switch off, and the reason."""
    for chosen in selections.values():
        for selection in chosen:
            shared = (selection.reward, selection.term, selection.environment)
            for options in (selection.options, *filter(None, shared)):
                for name, reason in options.without_effect().items():
                    yield f"{selection.section}.{name}", reason


def shared_without_effect(run: RunOptions, selections: Selections) -> Iterator[tuple[str, str]]:
    """Yield each option of the sections that every command has, if the rest of them switches it off, and the reason."""
    if run.checkpoint.best_metric is None:
        yield (
            "checkpoint.best_mode",
            "no best checkpoint is kept. Leave --checkpoint.best_metric none out.",
        )
    if run.checkpoint.every:
        yield (
            "checkpoint.every_minutes",
            "checkpoints are written by steps. Leave --checkpoint.every out.",
        )
    if run.resume.checkpoint in (None, RESTART):
        for name in ("strict", "damaged_records", "past_end"):
            yield f"resume.{name}", "the run begins at its beginning. Add --resume auto."
    for part in ("backend", "runtime"):
        (chosen,) = selections[f"{part}.name"]
        if UNDOES_UPDATES not in chosen.registered.component.provides:
            yield (
                "checkpoint.undo_gib",
                f"--{part} {chosen.name} cannot undo updates. Leave it out.",
            )
    if not selections["log.to"]:
        yield "log.wait_s", "the run has no logger. Add --log.to NAME."
        if not (run.log.tensorboard and run.log.images and selections["model.vision"]):
            yield "log.samples_every", "the run has no logger. Add --log.to NAME."
        if not run.log.tensorboard:
            yield (
                "log.images",
                "TensorBoard is off, and the run has no logger. Leave that option out.",
            )


def length_without_effect(steps: int | None) -> Iterator[tuple[str, str]]:
    """Yield the option ``train.epochs``, if the run has a number of steps, and the reason."""
    if steps is not None:
        yield (
            "train.epochs",
            "train.steps says how long the run is. Leave it out, or set --steps none.",
        )


def reference_without_effect(ref: ReferenceSync) -> Iterator[tuple[str, str]]:
    """Yield the option of a reference that follows the policy, if it stays as it is, and the reason."""
    if ref.sync_every is None:
        yield "ref.sync_alpha", "the reference stays as it is. Set --ref.sync_every too."


def schedule_without_effect(
    role: str, selections: Selections, options: TrainedRole | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the options of a trained role's learning-rate schedule that change nothing, and the reason.

    Args:
        options: the role's own, to look at its warm-up too.
    """
    if options is not None and not options.warmup_ratio:
        yield f"{role}.init_lr_ratio", f"there is no warm-up. Set --{role}.warmup_ratio above 0."
    chosen = selections[f"{role}.lr_schedule"]
    if not chosen:
        reason = f"the learning rate is constant. Set --{role}.lr_schedule too."
    elif ENDS_AT_FLOOR not in chosen[0].registered.component.provides:
        reason = f"--{role}.lr_schedule {chosen[0].registered.name} has no floor. Leave it out."
    else:
        return
    yield f"{role}.min_lr_ratio", reason


def _evaluation_without_effect(run: RunConfig) -> Iterator[tuple[str, str]]:
    # Whether an environment has tasks to evaluate on is known when its code is imported.
    # Without a split, a run on environments is not evaluated: the option itself has that effect.
    otherwise = {"environment_split"} if run.env.use else set()
    yield from held_out_without_effect(
        run.eval, None if run.may_play_held_out else frozenset(otherwise)
    )
    if run.eval.holds_rows_out:
        yield "eval.environment_split", "the run is evaluated on --eval.data or --eval.fraction."
    if not any(run.eval.temperatures):
        for name in ("top_p", "top_k", "min_p"):
            yield f"eval.{name}", "evaluations are greedy. Set --eval.temperatures above 0 too."


def _without_effect(
    run: RunConfig, selections: Selections, labels: Labels
) -> Iterator[tuple[str, str]]:
    """Yield the path of each option that the rest of the configuration switches off, and the reason."""
    kl, needed = run.algo.kl, needs(selections, labels)
    if kl.mode == "reward":
        for name in ("tail", "unbiased_gradient"):
            yield f"algo.kl.{name}", "the KL is in the reward. Set --algo.kl.mode loss too."
    if kl.unbiased_gradient:
        yield (
            "algo.kl.tail",
            "--algo.kl.unbiased_gradient replaces the gradient that the tail shapes. Leave one of the two out.",
        )
    if kl.coef == 0:
        for name in ("mode", "estimator", "tail"):
            yield f"algo.kl.{name}", "there is no KL penalty. Set --algo.kl.coef too."
    if kl.target is None:
        yield "algo.kl.horizon", "the coefficient is fixed. Set --algo.kl.target to adapt it."
    if kl.coef == 0 and "ref_logprobs" not in needed:
        for name in ("path", "sync_every"):
            yield f"ref.{name}", "nothing uses a reference model. Set --algo.kl.coef too."
    yield from reference_without_effect(run.ref)
    if "values" not in needed:
        for path in labels.typed_below("critic"):
            yield path, "the run has no critic. Choose an --estimator that needs one."
    if not learns_from_rewards(selections):
        for path in labels.typed_below("algo.advantage"):
            yield path, "no loss of this run is weighted with advantages. Leave it out."
    yield from _losses_without_effect(run, needed)
    yield from _evaluation_without_effect(run)
    yield from splits_without_effect((*run.data.train, *run.supervised.data), run.eval)
    yield from shared_without_effect(run, selections)
    yield from length_without_effect(run.train.steps)
    yield from schedule_without_effect("actor", selections, run.actor)
    yield from schedule_without_effect("critic", selections, run.critic)
    if not run.log.samples:
        yield "log.samples_every", "no samples are kept. Set --log.samples too."
    if run.data.source is not None:
        for name in ("shuffle", "probabilities", "split", "on_bad_row"):
            yield (
                f"data.{name}",
                "rows of --data.source come in their order, and each has to be good.",
            )
    for sampler in selections["data.sampler"]:
        # In a mix, the order also says which prompts of each set an epoch has.
        is_mix = run.data.probabilities or len(run.env.use) > 1
        if OWN_ORDER in sampler.registered.component.provides and not is_mix:
            yield (
                "data.shuffle",
                f"--data.sampler {sampler.name} draws in an order of its own. Leave one of the two out.",
            )
    if not (run.data.train or run.eval.data or run.data.source):
        yield "data.form", "there are no sets whose rows have a form. Leave it out."
    if len(run.env.use) == 1:
        (environment,) = selections["env.use"]
        yield f"{environment.section}.share", "it is the only environment. Leave it out."
    yield from _rollouts_without_effect(run, selections, labels)
    yield from images_without_effect(selections, run.actor)
    yield from _drawn_images_without_effect(selections)


def _rollouts_without_effect(
    run: RunConfig, selections: Selections, labels: Labels
) -> Iterator[tuple[str, str]]:
    if not run.rollout.max_staleness:
        yield (
            "rollout.in_flight_updates",
            "nothing is in flight when weights change. Set --rollout.max_staleness 1 or more.",
        )
    if run.rollout.concurrency == 1:
        yield (
            "rollout.oversampling",
            "with --rollout.concurrency 1 prompts end in the order in which they begin. Let more run at once.",
        )
    if not selections["rollout.filters"]:
        yield (
            "rollout.max_refills",
            "no filter drops what could be replaced. Add --rollout.filters NAME.",
        )
    if run.rollout.max_staleness or renormalizes(run):
        yield (
            "rollout.max_mismatch",
            "samples of older weights, or of a truncated distribution, differ for good reasons. "
            "Leave that option out.",
        )
    as_old = old_logprobs_from(run, selections) == "rollout"
    masks = run.algo.loss.off_policy_mask is not None
    if as_old or masks or "rollout_logprobs" in needs(selections, labels):
        yield (
            "rollout.compared_share",
            "all samples carry the sampler's log-probs, because this run needs them. Leave that option out.",
        )


def images_without_effect(selections: Selections, actor: SeeingActor) -> Iterator[tuple[str, str]]:
    """Yield the options on images if the model reads none, rates of parts that are not trained, and the reason."""
    if not selections["model.vision"]:
        names = (
            *("max_images", "max_image_pixels", "max_image_bytes", "allow_image_urls"),
            *("max_pixels", "min_pixels", "copy_images"),
        )
        others = (*OPTIONS_OF_PARTS, "log.images")
        for name in (*(f"data.{name}" for name in names), *others):
            yield name, "the model reads text alone. Set --model.vision too."
    if actor.freeze_visual_encoder:
        yield (
            "actor.vision_lr_ratio",
            "--actor.freeze_visual_encoder is set. Leave one of the two out.",
        )
    if actor.freeze_projector:
        yield (
            "actor.projector_lr_ratio",
            "--actor.freeze_projector is set. Leave one of the two out.",
        )


def _drawn_images_without_effect(selections: Selections) -> Iterator[tuple[str, str]]:
    name = "rollout.drawn_images_gib"
    (executor,) = selections["rollout.executor"]
    if not selections["model.vision"]:
        yield name, "the model reads text alone. Set --model.vision too."
    elif SEVERAL_TURNS not in executor.registered.component.provides:
        yield (
            name,
            f"--executor {executor.name} has one turn, so nothing draws images. Choose --executor multi_turn.",
        )


def _losses_without_effect(run: RunConfig, needed: frozenset[str]) -> Iterator[tuple[str, str]]:
    if run.algo.loss.entropy_target is None:
        yield (
            "algo.loss.entropy_step",
            "the entropy bonus is fixed. Set --algo.loss.entropy_target to adapt it.",
        )
    if not needed & {"teacher_logprobs", "teacher_top_k"}:
        yield "algo.teacher.path", "no loss of this run learns from a teacher."
    if "teacher_top_k" not in needed:
        yield "algo.teacher.top_k", "no loss of this run looks at several tokens of a teacher."
    if "supervised_data" not in needed:
        for name in SupervisedConfig.model_fields:
            yield (
                f"supervised.{name}",
                "no further loss of this run imitates responses. Add one with --algo.terms.use.",
            )
