"""The live parts of a run, built from the configuration and closed again at its end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

from rlhf_config.checks.eval_names import eval_name_problems
from rlhf_config.checks.features import environment_shares, spare_prompts
from rlhf_config.checks.learning_rules import resting_policy
from rlhf_config.resolved import Resolved
from rlhf_core.batch.vocabulary import Vocabulary
from rlhf_core.capabilities import JUDGES_REWARDS
from rlhf_core.contracts.data.sampler import PromptSampler
from rlhf_core.contracts.engine import Engine
from rlhf_core.contracts.executor import Renderer, RolloutContext, RolloutExecutor
from rlhf_core.contracts.learner import Learner
from rlhf_core.contracts.reward import RewardShaper, SampleFilter
from rlhf_core.contracts.runtime import Placement, RoleHandle, RuntimeSpec
from rlhf_core.errors import ConfigError
from rlhf_core.media.reader import writing_of
from rlhf_core.plugins import Plugins, require_methods
from rlhf_core.rng import sample_seed
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.drawn_images import DrawnImages
from rlhf_data.forms.opened_sets import OpenedSets
from rlhf_data.made.players import Players
from rlhf_data.made.source_rows import SourceRows
from rlhf_data.made.splits import source_tasks
from rlhf_data.made.tasks import MadeTasks
from rlhf_data.tasks import check_held_out, load_eval_sets, load_task_set
from rlhf_data.tokenizer import describe_ends, eos_token_ids, load_tokenizer
from rlhf_guard.environments.chosen import Environments, TaskMakers, environments_of
from rlhf_guard.parts import NamedExecutor, NamedFilter, NamedShaper
from rlhf_guard.rewards.panel import RewardPanel

from ..learning.demands import Demands, demands_of
from ..learning.roles import notes_on_templates, run_vocabulary, runtime_spec
from ..rollouts.episodes import EpisodeRunner, ScoreRequests
from ..rollouts.images import drawn_images, image_reader
from ..rollouts.prompts import CheckedSampler, PromptsOfTasks, Tasks
from ..rollouts.source import Ahead, RolloutSource
from ..rollouts.worker import RolloutParts
from .evaluation import Evaluator, NamedMetric, metrics_of
from .sleeping import Sleeping, with_sleep

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The live parts of a run."""

    resolved: Resolved
    demands: Demands
    total_steps: int
    tasks: Tasks
    roles: Mapping[str, RoleHandle]
    engine: Engine
    renderer: Renderer
    source: RolloutSource
    evaluator: Evaluator | None
    learner: Learner
    rows: SourceRows | None = None
    """Rows of ``data.source``; None: they are of ``data.train``, or of environments."""
    num_supervised: int = 0
    """Number of rows of ``supervised.data`` that the loss reads."""
    sampler: PromptSampler | None = None
    """None: each prompt is drawn once an epoch."""
    shapers: Sequence[RewardShaper] = field(default=())
    drawn: DrawnImages | None = None
    """Images that episodes draw; None: they draw none."""
    sleeping: Sleeping | None = None
    """Turns of engine and roles on the same accelerators; None: neither ever makes room."""


async def open_session(resolved: Resolved, plugins: Plugins, stack: AsyncExitStack) -> Session:
    """Load the data, build every component and role, and put their closing on ``stack``.

    Cheap things come first: a set that cannot be opened is reported before torch is imported, and a bad row or reward
    file before a model is loaded.

    Raises:
        ConfigError: no evaluation gives the metric of the best checkpoint.
        RLHFError: a row is bad, or a component cannot be built or started.
    """
    run = resolved.run
    demands = demands_of(resolved)
    opened = OpenedSets.of(run)
    tokenizer = load_tokenizer(
        run.model.tokenizer or run.model.path, trust_remote_code=run.model.trust_remote_code
    )
    images = image_reader(resolved)
    renderer = TokenizerRenderer.by(run.data, tokenizer, writing_of(images))
    vocabulary = run_vocabulary(resolved, demands, tokenizer)
    for note in notes_on_templates(resolved, demands, renderer):
        log.warning("%s", note)
    players = Players(environment_shares(resolved.selections["env.use"]))
    environments = await _start_environments(resolved, stack)
    makers = TaskMakers(environments)
    stack.push_async_callback(makers.close)
    source_rows = resolved.optional("data.source")
    rows = None if source_rows is None else SourceRows(source_rows.build(), source_rows.label)
    if rows is not None:
        tasks: Tasks = source_tasks(run, rows, renderer, images)
    else:
        tasks = load_task_set(run, renderer, players, makers, images, opened)
    eval_sets = load_eval_sets(run, renderer, players, makers, images, opened)
    check_held_out(run, tasks, eval_sets)
    eval_metrics = _eval_metrics(resolved, eval_sets)
    total_steps = total_steps_of(resolved, tasks)
    sampler = _sampler(resolved, tasks)
    chosen = resolved.one("runtime.name")
    runtime = require_methods("rlhf_runtimes", chosen.registered, chosen.build())
    score = await _start_rewards(resolved, runtime, stack)
    player = resolved.one("rollout.executor")
    executor = NamedExecutor(player.build(), player.label)
    shaping = resolved.selections.get("reward.shapers", ())
    shapers = [NamedShaper(chosen.build(), chosen.label) for chosen in shaping]
    from ..learning.learner import BatchLearner  # with torch, which takes seconds to import
    from ..learning.parts import learning_parts

    parts = learning_parts(resolved, demands, tokenizer)
    spec = _spec(resolved, demands, tokenizer, vocabulary, total_steps, plugins)
    stack.push_async_callback(runtime.close)
    placement = await runtime.start(spec, plugins)
    engine = placement.engine
    assert engine is not None, "the spec has an engine"
    played_with = RolloutParts(executor, renderer, environments, images)
    context = played_with.context(engine, run.rollout.params(), run.longest_sequence)
    evaluator = None
    if eval_sets:
        in_evaluations = replace(context, max_length=run.longest_held_out)
        evaluator = Evaluator(
            eval_sets, run, executor, placement.groups, in_evaluations, score, eval_metrics
        )
    source = _source(resolved, demands, executor, context, score, placement, shapers)
    stack.push_async_callback(source.close)
    return Session(
        resolved=resolved,
        demands=demands,
        total_steps=total_steps,
        tasks=tasks,
        roles=placement.roles,
        engine=engine,
        renderer=renderer,
        source=source,
        evaluator=evaluator,
        learner=placement.learner or BatchLearner(resolved, demands, placement.roles, parts),
        rows=rows,
        num_supervised=len(parts.supervised or ()),
        sampler=sampler,
        shapers=shapers,
        drawn=drawn_images(run, images),
        sleeping=_sleeping(resolved, spec, placement.roles, engine),
    )


def _sleeping(
    resolved: Resolved, spec: RuntimeSpec, roles: Mapping[str, RoleHandle], engine: Engine
) -> Sleeping | None:
    if not spec.moving_roles:
        return None
    adapted = resolved.optional("actor.adapter") is not None
    return Sleeping(engine, roles, spec.moving_roles, leaving=spec.leaving, adapted=adapted)


def _spec(
    resolved: Resolved,
    demands: Demands,
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: Vocabulary,
    total_steps: int,
    plugins: Plugins,
) -> RuntimeSpec:
    """Return what the runtime has to build; a line of the log names the tokens that end a turn."""
    model = resolved.run.model
    ends = eos_token_ids(tokenizer, model.path, trust_remote_code=model.trust_remote_code)
    log.info("%s", describe_ends(tokenizer, ends))
    spec = runtime_spec(
        resolved, demands, total_steps=total_steps, eos_token_ids=ends, vocabulary=vocabulary
    )
    return with_sleep(resolved, spec, plugins)


def _sampler(resolved: Resolved, tasks: Tasks) -> PromptSampler | None:
    """Return the run's prompt sampler, which knows the prompts; None where none is chosen."""
    selection = resolved.optional("data.sampler")
    if selection is None:
        return None
    sampler = CheckedSampler(selection.build(), selection.label)
    sampler.begin(PromptsOfTasks(tasks, resolved.run.seed))
    return sampler


def _eval_metrics(resolved: Resolved, eval_sets: Collection[str]) -> list[NamedMetric]:
    """Build the metrics of evaluations, and refuse names of metrics, or an interval, that no evaluation gives."""
    run, metrics = resolved.run, metrics_of(resolved.selections["eval.metrics"])
    for problem in eval_name_problems(run, resolved.selections, eval_sets):
        raise problem
    if run.eval.every and not eval_sets:
        raise ConfigError(
            f"eval.every is {run.eval.every}, but there is nothing to evaluate on: {' and '.join(run.env.use)} makes "
            f"no tasks of the split {run.eval.environment_split!r}.\n"
            "  Set --eval.data FILE, --eval.fraction 0.05, or --eval.environment_split to a split that it has; or "
            "--eval.every 0.",
            code="eval/nothing-held-out",
        )
    return metrics


def total_steps_of(resolved: Resolved, tasks: Tasks) -> int:
    """Return the number of steps of the whole run: as configured, or as many as the epochs take.

    Raises:
        ConfigError: neither is known, since an environment's tasks have no end; or a critic warms up in all of them.
    """
    run = resolved.run
    if run.train.steps is not None:
        return run.train.steps
    if isinstance(tasks, MadeTasks) and tasks.endless and run.data.max_samples is None:
        raise ConfigError(
            f"--steps is required: the tasks of {', '.join(tasks.endless)} have no end, so there are no epochs to "
            "count. Set --steps 100, or --data.max_samples to say how many tasks make an epoch.",
            code="config/steps-missing",
        )
    steps = -(-run.train.epochs * len(tasks) // run.rollout.batch_size)
    for problem in resting_policy(run, steps) if demands_of(resolved).critic else ():
        raise problem
    return steps


async def _start_rewards(
    resolved: Resolved, runtime: object, stack: AsyncExitStack
) -> ScoreRequests | None:
    """Start the rewards and return the function that asks them; None when the environment alone gives rewards, or the
    processes of the runtime ask them."""
    # A runtime whose processes play groups scores them there, and reports a bad reward itself.
    if getattr(runtime, "plays_groups", False) or not resolved.selections["reward.use"]:
        return None
    panel = RewardPanel(resolved.selections["reward.use"])
    await panel.start()
    stack.push_async_callback(panel.close)
    return panel.score


async def _start_environments(resolved: Resolved, stack: AsyncExitStack) -> Environments | None:
    """Return the environments, the workers of those that run elsewhere started; None when there are none."""
    environments = environments_of(resolved.selections["env.use"])
    if environments is not None:
        stack.push_async_callback(environments.close)
        await environments.start()
    return environments


def _source(
    resolved: Resolved,
    demands: Demands,
    executor: RolloutExecutor,
    context: RolloutContext,
    score: ScoreRequests | None,
    placement: Placement,
    shapers: Sequence[RewardShaper],
) -> RolloutSource:
    rollout = resolved.run.rollout
    filtering = resolved.selections.get("rollout.filters", ())
    filters = [NamedFilter(chosen.build(), chosen.label) for chosen in filtering]
    judges: list[SampleFilter] = []
    if demands.trains_unjudged or demands.supervised:
        # What these drop trains the terms of the loss that need no advantages.
        judging = [JUDGES_REWARDS in one.registered.component.provides for one in filtering]
        judges = list(compress(filters, judging))
    episodes = EpisodeRunner(
        executor=executor,
        context=context,
        seed_of=partial(sample_seed, resolved.run.seed),
        score=score,
        samples_per_prompt=rollout.n_samples_per_prompt,
        with_greedy=demands.greedy_rewards,
        compared_share=1.0 if demands.rollout_logprobs else rollout.compared_share,
    )
    return RolloutSource(
        episodes,
        groups=placement.groups,
        shapers=shapers,
        filters=filters,
        judges=judges,
        ahead=Ahead(
            max_staleness=rollout.max_staleness,
            in_flight_updates=rollout.in_flight_updates,
            spare_prompts=spare_prompts(rollout),
            concurrency=rollout.concurrency,
        ),
        engine=placement.engine,
    )
