"""Capabilities: the words with which components say what they need, exclude and provide, and options what they bring.

The core knows words instead of components' names. The loop supplies some words when asked (a need for ``values`` builds
a critic), options bring others (``group>=2``), components provide the rest (``several_turns``). Every word is in one of
the tables below; a plugin's own words have its name in front (``acme:sorted_groups``). A component with another word is
refused when it registers. A run whose words do not fit together is refused before a model is loaded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .component import Component, Config, Registered
from .errors import CapabilityError, PluginError

SEVERAL_TURNS = "several_turns"
"""Word of an executor that plays several turns."""
REWARDS_EPISODES = "rewards_episodes"
"""Word of an executor whose episodes come with rewards, so that a run needs neither a reward nor an environment."""
OFF_POLICY = "off_policy"
"""Word of a policy loss that is right for samples of an older policy: its gradient has the ratio to
``LossInputs.old_logprobs``, or does not depend on who wrote the sample."""
APPLIES_IS_WEIGHTS = "applies_is_weights"
"""Word of a policy loss that multiplies itself by ``LossInputs.is_weights``; the core then does not."""
PREPARES_STEP = "prepares_step"
"""Word of a policy loss that looks at the whole optimizer step first (``PreparingLoss``)."""
NO_ADVANTAGES = "no_advantages"
"""Word of a policy loss without advantages, such as one that imitates: it teaches the same whatever the rewards are."""
JUDGES_REWARDS = "judges_rewards"
"""Word of a sample filter whose answer depends on rewards. The groups that it drops have samples as good as any: they
still train the terms of the loss that need no advantages. A run whose loss learns from no rewards refuses it."""
CREDITS_TOKENS = "credits_tokens"
"""Word of an advantage estimator that credits a reward at a token (``RewardBatch.token_rewards``) to that token and
those before it. Rewards with ``RewardResult.step_rewards`` need it."""
UNPAIRED_ANSWERS = "unpaired_answers"
"""Word of a preference loss that takes chosen and rejected answers which need not be of the same prompts."""
OWN_ORDER = "own_order"
"""Word of a prompt sampler that draws whatever the order of an epoch is, so that ``data.shuffle`` changes nothing."""
UNBIASED_KL = "unbiased_kl"
"""Word of a KL estimator whose mean over the policy's samples is KL(policy || reference)."""
NO_PULL = "no_pull"
"""Word of a KL estimator whose gradient as a term of the loss is zero on average, so that it holds the policy back in
rewards alone. Runs with it in the loss are refused, but for ``algo.kl.unbiased_gradient``."""
ENDS_AT_FLOOR = "ends_at_floor"
"""Word of a learning-rate schedule that ends at ``SchedulePoint.min_lr_ratio``."""
ONE_PROCESS = "one_process"
"""Word of a reward that holds something of which there should be only one, such as a model."""
SEVERAL_RANKS = "several_ranks"
"""Word of a training backend that works with several ranks."""
SERVES_ADAPTERS = "serves_adapters"
"""Word of an engine that serves a low-rank adapter beside the base's weights (``EngineSpec.adapter_rank``)."""
SERVES_FOUR_BITS = "serves_four_bits"
"""Word of an engine that can serve a base that the trainer quantizes to 4 bits (``EngineSpec.quantization``)."""
FOUR_BIT_BASE = "four_bit_base"
"""Word of an adapter on a base in 4 bits. A training backend that would cut or cast packed integers excludes it."""
SHARES_WEIGHTS = "shares_weights"
"""Word of an engine that can compute with the trainer's own model, in the trainer's process."""
ENGINE_SEES = "engine_reads_images"
"""Word of an engine that reads images."""
BACKEND_SEES = "backend_reads_images"
"""Word of a training backend that reads images."""
ENGINE_READS_FRAMES = "engine_reads_frames"
"""Word of an engine that reads frames of videos, where the model does."""
EXECUTOR_SEES = "executor_passes_images"
"""Word of an executor that passes images to the engine, and on to the trainer."""
EXECUTOR_READS_FRAMES = "executor_passes_frames"
"""Word of an executor that passes frames of videos on, with their times."""
RUNTIME_SEES = "runtime_passes_images"
"""Word of a runtime that gives its processes what they need to read images."""
READS_TEXT = "reads_text_alone"
"""Word of a reward that judges answers by the text of what was asked: it sees no image. A run on images with it is
warned. One that would read the tokens of images as text excludes ``images``; one that sees them with some of its
options needs ``images`` by those."""
SEEING = frozenset({ENGINE_SEES, BACKEND_SEES, EXECUTOR_SEES, RUNTIME_SEES})
"""Words of those that work with images. A vision model needs all of them; the core adds them to its own needs."""
WRAPS_CODE = "wraps_code"
"""Word of a component that wraps a function in a user's file, given as its option ``path``. Its factory takes the
function itself as the keyword ``code``, where a Python program gave one instead of a file."""
PLANS_MEMORY = "plans_memory"
"""Word of a command that predicts whether a run fits into its accelerators (``contracts.MemoryPlanner``)."""
HEARS_TOKENS = "hears_tokens"
"""Word of an observer that hears tokens of samples with their columns (``RolloutSample.tokens``), else not kept."""
UNSHARED_STATE = "unshared_state"
"""Word of an optimizer whose state of a parameter has neither its shape nor one number: ranks cannot share it."""
WHOLE_PARAMETERS = "whole_parameters"
"""Word of an optimizer that has to see whole parameters."""
RETURNING_PROMPTS = "returning_prompts"
"""Word of a run whose prompts come again in each epoch. Samplers that remember or order prompts need it."""
ENDLESS_TASKS = "endless_tasks"
"""Word of an environment whose training tasks have no end, unless ``data.max_samples`` takes the first ones."""
SLEEP = "sleep"
"""Word of a run whose engine may sleep while roles compute. Options of engines about their sleep need it."""
STALE_ROLLOUTS = "stale_rollouts"
"""Word of a run that generates ahead of training. Options of engines about what they do meanwhile need it; a filter of
old samples needs ``staleness>=N`` of ``rollout.max_staleness``."""
BFLOAT16_WEIGHTS = "bfloat16_weights"
"""Word of a run whose parameters are in bfloat16. A training backend excludes it by options that compute in float32."""
IN_PROCESS = "in_process"
"""Word of a runtime that builds every component in the process that started the run. Objects that a Python program gave
need it, and rewards that compute with weights of a role."""
LENDS_BASES = "lends_bases"
"""Word of a training backend that lends a role's frozen weights, such as the base of an adapter, to rewards in its
process."""
EXPERT_ROUTES = "expert_routes"
"""Word of an engine that tells to which experts of a mixture each token went (``EngineSpec.returns_routes``)."""
REPLAYS_ROUTES = "replays_routes"
"""Word of a training backend whose roles can send tokens to the experts that the engine chose
(``RoleSpec.replays_routes``)."""
KEEPS_REFERENCE = "keeps_reference"
"""Word of a training backend whose roles can keep a reference of their own (``RoleSpec.reference_sync``)."""
UNDOES_UPDATES = "undoes_updates"
"""Word of a training backend that can go back to the state before a step's updates (``Undoes``), and of a runtime whose
handles pass that on. ``checkpoint.undo_gib`` counts where both have it."""

SUPPLIED_BY_THE_LOOP: Mapping[str, str] = {
    "values": "a critic is built and trained",
    "ref_logprobs": "a reference model is built and gives its log-probs for each batch",
    "old_logprobs": "the policy gives its log-probs for each batch before its updates",
    "rollout_logprobs": "the engine returns the log-probs of its samples",
    "entropy": "the trainer computes the entropy at each action",
    "mean_logprobs": "the trainer computes the mean log-prob over the vocabulary at each action",
    "final_values": "the critic values the state after a truncated response",
    "sum_pi_squared": "the policy gives the sum of its squared probabilities at each action, before its updates",
    "greedy_rewards": "one more episode per prompt is sampled greedily and scored",
    "observations": "what the policy read before its turns, texts and images, is indexed",
    "mismatched_kl": "policy and reference give their log-probs of answers beside the prompts of others",
    "matched_pairs": "policy and reference give their log-probs of all pairs of an update, which are matched by rank",
    "teacher_logprobs": "the teacher gives its log-probs for each batch",
    "teacher_top_k": "the teacher gives its most probable tokens at each action",
}
"""Capabilities that the loop supplies as soon as a component needs them -> the way in which it does."""

FIX: Mapping[str, str] = {
    "environment": "choose one with --env",
    "reward": "add one with --reward; what an environment gives by turn has no name",
    "supervised_data": "give the responses to imitate with --supervised.data",
    SEVERAL_TURNS: "choose an executor that plays several turns",
    CREDITS_TOKENS: "choose an estimator that credits rewards to tokens with --estimator (rlhf plugins show NAME lists "
    "what one provides), or let the reward give one number a sample; other estimators read the sum alone",
    SERVES_ADAPTERS: "choose an engine that serves adapters, or have the adapter merged into the weights that "
    "the engine gets (its option serve, if it has one)",
    SERVES_FOUR_BITS: "choose --engine embedded, which shares the trainer's model, or --engine vllm, which unpacks the "
    "base as it loads it",
    IN_PROCESS: "it uses objects of this Python program, and nothing is pickled. Choose runtime local; or write an "
    "object that you gave into a file, and name it FILE.py:NAME",
    LENDS_BASES: "a reward is to compute with the base of a role, which this training backend keeps to itself. Choose "
    "--backend torch, or let the reward have a base of its own",
    STALE_ROLLOUTS: "generation does not run ahead of training in this run. Set --rollout.max_staleness 1, or leave "
    "the option out",
    RETURNING_PROMPTS: "in this run there is no end to the prompts. Give rows with --data.train; of an environment's "
    "tasks, --data.max_samples 1000 uses the first ones",
    SLEEP: "nothing sleeps in this run. Set --runtime.sleep always, or leave the engine's option about sleep out",
    SHARES_WEIGHTS: "choose --engine embedded; others read the model again, without what was done to it",
    ENGINE_SEES: "this engine reads text alone; choose --engine embedded or vllm",
    BACKEND_SEES: "this training backend reads text alone; choose --backend torch, deepspeed or fsdp",
    EXECUTOR_SEES: "this executor passes text alone on; choose --executor single_turn or multi_turn",
    ENGINE_READS_FRAMES: "this engine reads single images alone; choose --engine embedded, or give frames as images",
    EXECUTOR_READS_FRAMES: "this executor passes single images alone on; choose --executor single_turn or multi_turn",
    RUNTIME_SEES: "this runtime passes text alone on; choose --runtime local or ray",
    EXPERT_ROUTES: "this engine does not tell to which experts its tokens went; choose --engine embedded or vllm, or "
    "leave algo.correction.replay_routes out",
    REPLAYS_ROUTES: "this training backend chooses experts by itself; choose --backend torch, deepspeed or fsdp, or "
    "leave algo.correction.replay_routes out",
    HEARS_TOKENS: "tokens of samples are kept where an observer hears them; add --observers.use token_files",
    "images": "the policy reads text alone, so there are none; choose what reads images with --model.vision",
    "is_correction": "set --algo.correction.kind",
    "kl_in_loss": "set --algo.kl.mode loss and --algo.kl.coef",
    "kl_in_reward": "set --algo.kl.mode reward and --algo.kl.coef",
}
"""Capability that a component needs and the run lacks -> the user's way to get it."""

AVOIDED: Mapping[str, str] = {
    "images": "--model.vision. The former reads text alone, and would take the tokens of images for text. Choose "
    "another one, or an option of it with which images are left out of what it reads",
    BFLOAT16_WEIGHTS: "--model.dtype bfloat16. The former is to compute in float32, and float32 matmuls bring back "
    "none of the digits that bfloat16 parameters lack. Set --model.dtype float32",
    "renormalized_sampling": "--rollout.top_p, top_k, min_p or min_new_tokens: with them the sampler's log-probs are "
    "of another distribution than the trainer's. Sample without them",
}
"""Capability that a component may exclude -> what brings it, and the way out, where the words alone say too little."""

BROUGHT_BY_OPTIONS: Mapping[str, str] = {
    "environment": "an environment is chosen",
    "reward": "a reward is chosen",
    "data": "there are data files",
    "is_correction": "an importance-sampling correction is chosen",
    "reward_shaper": "rewards are changed after they are given",
    "model_adapter": "an adapter is chosen",
    "kl_in_reward": "the KL penalty is in the reward",
    "kl_in_loss": "the KL penalty is a term of the loss",
    "adaptive_kl": "the coefficient of the KL penalty follows a target",
    "renormalized_sampling": "top-p, top-k, min-p or min_new_tokens makes the sampler's log-probs differ",
    "several_updates": "a rollout batch gives more than one optimizer update",
    "entropy_bonus": "the loss has an entropy term",
    "rollout_as_old": "the sampler's log-probs stand in for the old ones",
    STALE_ROLLOUTS: "generation runs ahead of training",
    "supervised_data": "there are responses to imitate",
    "teacher": "there is a model to distill from",
    "images": "the policy reads images",
    RETURNING_PROMPTS: "prompts come again in each epoch",
    SLEEP: "the engine may sleep while roles compute",
    BFLOAT16_WEIGHTS: "parameters are in bfloat16",
}
"""Capabilities that options bring to a run; ``config.checks.features`` works out which of them a run has."""

PROVIDED_BY_COMPONENTS: Mapping[str, str] = {
    SEVERAL_TURNS: "the executor plays several turns",
    REWARDS_EPISODES: "the executor's episodes come with rewards",
    OFF_POLICY: "the policy loss allows for samples of an older policy",
    CREDITS_TOKENS: "the estimator credits a reward at a token to that token and those before it",
    APPLIES_IS_WEIGHTS: "the policy loss multiplies itself by the correction's weights",
    PREPARES_STEP: "the policy loss looks at the whole optimizer step first (PreparingLoss)",
    NO_ADVANTAGES: "the policy loss is not weighted with advantages",
    JUDGES_REWARDS: "the filter's answer depends on rewards",
    UNPAIRED_ANSWERS: "the preference loss takes answers without a partner",
    ENDLESS_TASKS: "the environment's training tasks have no end",
    FOUR_BIT_BASE: "the adapter's base is held in 4 bits",
    UNSHARED_STATE: "the optimizer keeps state that ranks cannot share",
    WHOLE_PARAMETERS: "the optimizer has to see whole parameters",
    OWN_ORDER: "the prompt sampler draws in an order of its own",
    UNBIASED_KL: "the KL estimator's mean over samples is the KL",
    NO_PULL: "the KL estimator's gradient as a loss is zero on average",
    ENDS_AT_FLOOR: "the learning-rate schedule ends at the role's min_lr_ratio",
    ONE_PROCESS: "the reward holds something of which there should be only one, such as a model",
    SEVERAL_RANKS: "the training backend works with several ranks",
    SHARES_WEIGHTS: "the engine can compute with the trainer's own model",
    SERVES_ADAPTERS: "the engine serves a low-rank adapter beside the base's weights",
    SERVES_FOUR_BITS: "the engine serves what a base in 4 bits computes with",
    ENGINE_SEES: "the engine reads images",
    BACKEND_SEES: "the training backend reads images",
    EXECUTOR_SEES: "the executor passes images to the engine, and on to the trainer",
    ENGINE_READS_FRAMES: "the engine reads frames of videos",
    EXECUTOR_READS_FRAMES: "the executor passes frames of videos on, with their times",
    RUNTIME_SEES: "the runtime gives its processes what they need to read images",
    READS_TEXT: "the reward judges answers by the text of what was asked, and sees no image",
    IN_PROCESS: "the runtime builds every component in the process that started the run",
    LENDS_BASES: "the training backend lends weights that no role trains to rewards in its process",
    EXPERT_ROUTES: "the engine tells to which experts of a mixture each token went",
    REPLAYS_ROUTES: "the training backend can send tokens to the experts that the engine chose",
    KEEPS_REFERENCE: "the training backend's roles can keep a reference that follows their weights",
    UNDOES_UPDATES: "backend and runtime can go back to the state before the updates of a step that failed",
    PLANS_MEMORY: "the command predicts whether a run fits into its accelerators (MemoryPlanner)",
    HEARS_TOKENS: "the observer hears the tokens of samples (RolloutSample.tokens)",
    WRAPS_CODE: "the component wraps a function in a file that the user names",
}
"""Capabilities that a component may provide, beside ``aggregation:MODE`` for the aggregation of its publication."""

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""Modes of ``algo.loss.aggregation``, as ``contracts.Aggregation`` has them."""

_AT_LEAST = re.compile(r"(group|staleness)>=(\d+)")
_OWN = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")
_WORDS = frozenset(
    {
        *SUPPLIED_BY_THE_LOOP,
        *BROUGHT_BY_OPTIONS,
        *PROVIDED_BY_COMPONENTS,
        *(f"aggregation:{mode}" for mode in AGGREGATIONS),
    }
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selected component and the flag that selected it."""

    flag: str
    registered: Registered[object]
    options: Config | None = None
    unasked: frozenset[str] = frozenset()
    """Needs that do not count where it was selected."""
    added: frozenset[str] = frozenset()
    """Needs of everything that is selected there."""

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities that the component or its options need."""
        by_options = self.options.needed_by_options() if self.options else frozenset()
        return (self.registered.component.needs | by_options | self.added) - self.unasked

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities that the component provides with these options."""
        by_options = self.options.excluded_by_options() if self.options else frozenset()
        return self.registered.component.provides - by_options

    @property
    def conflicts(self) -> frozenset[str]:
        """Capabilities that the component or its options exclude."""
        by_options = self.options.excluded_by_options() if self.options else frozenset()
        return self.registered.component.conflicts | by_options


def check_words(component: Component[Any]) -> None:
    """Refuse a component with a word that the core does not define and that is not written PLUGIN:WORD.

    Raises:
        PluginError: the message has the word, the list that it is in, and the nearest known word.
    """
    for label in ("needs", "conflicts", "provides"):
        for word in sorted(getattr(component, label)):
            own = _OWN.fullmatch(word) and not word.startswith("aggregation:")
            if own or word in _WORDS or _AT_LEAST.fullmatch(word):
                continue
            near = difflib.get_close_matches(word, _WORDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PluginError(
                f"component {component.name!r}: {label} {word!r}; expected a capability of "
                f"rlhf_core.capabilities, or one of the plugin's own, written PLUGIN:WORD.{hint}",
                code="plugin/unknown-capability",
            )


def needs_of(chosen: Iterable[Chosen]) -> frozenset[str]:
    """Return the capabilities that any component needs."""
    return frozenset().union(*(choice.needs for choice in chosen))


def check(
    chosen: Sequence[Chosen],
    features: frozenset[str],
    samples_per_prompt: int,
    staleness: int = 0,
) -> None:
    """Refuse a run whose components cannot work together.

    Args:
        features: capabilities that the options bring, such as ``kl_in_reward`` or ``renormalized_sampling``.
        samples_per_prompt: the size of a group.
        staleness: the run's ``rollout.max_staleness``.

    Raises:
        CapabilityError: a component lacks a capability that it needs, or meets one that it excludes; the message names
            the component, the capability, and the option to change.
    """
    provided = features.union(*(choice.provides for choice in chosen))
    present = provided | needs_of(chosen) & SUPPLIED_BY_THE_LOOP.keys()
    for choice in chosen:
        for need in sorted(choice.needs):
            _check_bound(choice, need, samples_per_prompt, staleness)
            if need not in present and not _AT_LEAST.fullmatch(need):
                raise _missing(choice, need, chosen)
    check_excluded(chosen, present)


def check_excluded(chosen: Sequence[Chosen], present: frozenset[str]) -> None:
    """Refuse components that exclude what a run has.

    Args:
        present: capabilities of the run.

    Raises:
        CapabilityError: the message names the component, the capability, and what brings it.
    """
    for choice in chosen:
        component = choice.registered.component
        for conflict in sorted(choice.conflicts & present):
            by = next((one for one in chosen if conflict in one.provides | one.needs), None)
            told = BROUGHT_BY_OPTIONS.get(conflict, conflict)
            cause = AVOIDED.get(conflict) or f"an option: {told}"
            if by is not None:
                own = "" if conflict in component.conflicts else f"other options of {choice.flag}, "
                cause = f"{by.flag} {by.registered.name}. Choose {own}another {choice.flag}, or another {by.flag}"
            meaning = PROVIDED_BY_COMPONENTS.get(conflict)
            raise CapabilityError(
                f"{choice.flag} {component.name} cannot be combined with {conflict!r}"
                f"{f' ({meaning})' if meaning else ''}, which comes from {cause}.",
                code="config/conflicting-component",
            )


def _check_bound(choice: Chosen, need: str, samples: int, staleness: int) -> None:
    name = choice.registered.name
    if bound := _AT_LEAST.fullmatch(need):
        least = int(bound[2])
        if bound[1] == "group" and samples < least:
            raise CapabilityError(
                f"rollout.n_samples_per_prompt is {samples}; {choice.flag} {name} needs at least {least} "
                f"(it compares a prompt's samples). Set --rollout.n_samples_per_prompt {max(4, least)}.",
                code="config/too-few-samples-per-prompt",
            )
        if bound[1] == "staleness" and staleness < least:
            raise CapabilityError(
                f"rollout.max_staleness is {staleness}; {choice.flag} {name} needs at least {least} with its options "
                f"(it is about samples that old). Set --rollout.max_staleness {least}, or other options of {name}.",
                code="config/no-samples-so-old",
            )


def _missing(choice: Chosen, need: str, chosen: Iterable[Chosen]) -> CapabilityError:
    fix = FIX.get(need, "no chosen component provides it")
    without = [one for one in chosen if need in one.registered.component.provides]
    taken = [f" {one.flag} {one.registered.name} has it with other options." for one in without]
    what = f"{choice.flag} {choice.registered.name} needs {need!r}: {fix}"
    return CapabilityError(f"{what}.{''.join(taken)}")
