"""The course of ``rlhf eval``: the folder, the model's files, the jobs that are missing, the summary."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from rlhf_cli.tables import Form, print_table
from rlhf_config import ResolvedOptions
from rlhf_core import ConfigError
from rlhf_core.contracts import RunResult
from rlhf_core.plugins import Plugins
from rlhf_data import TokenizerRenderer
from rlhf_trainer.inference import (
    AppendedFile,
    Environments,
    Interrupts,
    NamedExecutor,
    NamedMetric,
    RewardPanel,
    RunFolder,
    TaskMakers,
    claim,
    environments_of,
    fault_point,
    metrics_of,
    remove,
    run_to_its_end,
    shown_forms,
    write_text_atomically,
)
from rlhf_trainer.rollouts.worker import QueuedRewards

from ..serving.model_folder import found_model
from ..serving.options import ModelToServe
from ..serving.served import renderer_of, serving
from ..serving.sight import Sight, open_sight
from ..worklist.configuration import NAME as CONFIGURATION
from ..worklist.configuration import GoingOn, record_config
from ..worklist.image_files import FOLDER as IMAGES
from ..worklist.in_order import in_order
from ..worklist.kept_results import ended, results_are_kept, set_results_aside
from ..worklist.progress import WorkProgress
from ..worklist.record_lines import cut_lines, read_records
from .jobs import EvalJob, Work, work_of
from .measuring import with_measures
from .options import EPISODES, SECONDS, SUMMARY, EvalOptions
from .playing import EnginePlayer, PlaysJobs
from .records import EpisodeRecord, keep_whole_jobs
from .remote.player import remote_player
from .remote.texts import byte_renderer
from .summary import Evaluation
from .table import block, summary_table, task_table

MODEL_FILES = "model_files.txt"
_READ = ("*.safetensors", "*.json", "*.jinja", "*.model")

GOING_ON = GoingOn(
    free=re.compile(
        r"output|overwrite|engines|(report|log|resume)\..*|eval\.(pass_threshold|metrics|\w+\..*)|rollout\.concurrency|engine\.\w+\..*"
        r"|reward\.\w+\.(timeout_s|on_error|isolate)"
        r"|remote\.(concurrency|timeout_s|retries|retry_wait_s|key_variable|environment_timeout_s)"
    ),
    contents="results",
    way_out="choose another --output, or start over with --resume restart, which keeps them, or --overwrite",
)
"""Rules by which the same command continues: no episode that is there depends on the free options."""

Resolved = ResolvedOptions[EvalOptions]


def run(resolved: Resolved, plugins: Plugins) -> RunResult:
    """Play what is missing, write and print the summary, and return how that ended.

    Raises:
        RLHFError: the model or the tasks cannot be used, or the engine, an environment or a reward failed; the tasks
            that were finished are in the folder, and the same command continues.
    """
    begin = time.monotonic()
    options = resolved.run
    folder = Path(options.output)
    metrics = metrics_of(resolved.selections["eval.metrics"])
    with claim(run_folder := RunFolder(folder), resume=True), Interrupts() as interrupts:
        path = folder / EPISODES
        results = (EPISODES, SECONDS, SUMMARY, CONFIGURATION, MODEL_FILES)
        if options.overwrite:
            for name in results:
                remove(folder / name)
        if options.resume.checkpoint == "restart":
            set_results_aside(run_folder, results, "results")
        is_begun = path.exists()
        record_config(resolved, folder, GOING_ON, is_begun=is_begun)
        if options.remote.url is None:
            check_same_files(found_model(options.model), folder, is_begun=is_begun)
        with results_are_kept(path, "tasks", options.going_on()):
            progress = run_to_its_end(_evaluate(resolved, plugins, folder, interrupts))
        if progress.done < progress.total:
            message = (
                f"by {interrupts.requested}: {progress.done} of {progress.total} tasks are in {path}; "
                f"{options.going_on()}."
            )
            return ended("interrupted", progress.done, begin, message)
        _report(options, folder, metrics)
    # A table for other tools is alone on stdout.
    out = sys.stdout if options.report.table == "text" else sys.stderr
    print(f"\nseconds of a task: {_seconds(folder / SECONDS)}", file=out)
    print(f"episodes: {path}\nsummary: {folder / SUMMARY}", file=out)
    print(f"{time.monotonic() - begin:,.1f} s, {progress.rate()}", file=out)
    return ended("finished", progress.done, begin)


async def _evaluate(
    resolved: Resolved, plugins: Plugins, folder: Path, interrupts: Interrupts
) -> WorkProgress:
    """Play what is missing, and return how far the work is."""
    options, chosen = resolved.run, resolved.selections["env.use"]
    async with AsyncExitStack() as stack:
        environments = environments_of(chosen)
        if environments is not None:
            stack.push_async_callback(environments.close)
            await environments.start()
        makers = TaskMakers(environments)
        stack.push_async_callback(makers.close)
        sight = open_sight(
            resolved.optional("model.vision"),
            found_model(options.model),
            folder / IMAGES,
            plugins,
            options.data,
            draws=bool(chosen),
            no_videos=resolved.no_videos,
        )
        renderer = _renderer(options, sight)
        images = None if sight is None else sight.images
        with shown_forms():
            work = work_of(options, chosen, makers, renderer, images)
        done = keep_whole_jobs(folder / EPISODES, work.jobs())
        cut_lines(folder / SECONDS, done)
        progress = WorkProgress(options.log.progress, total=len(work), done=done, unit="episodes")
        if done < len(work):
            player = await stack.enter_async_context(
                _player(resolved, renderer, environments, sight)
            )
            await _write(options, work, player, folder, progress, interrupts)
    return progress


def _renderer(options: EvalOptions, sight: Sight | None = None) -> TokenizerRenderer:
    if options.remote.url is not None:
        return byte_renderer()
    data = options.data
    return renderer_of(
        found_model(options.model), data.control_words, data.chat_template_kwargs, sight
    )


def _report(options: EvalOptions, folder: Path, metrics: Sequence[NamedMetric]) -> None:
    """Write the summary, and print it."""
    evaluation = Evaluation(
        read_records(folder / EPISODES, EpisodeRecord), threshold=options.eval.pass_threshold
    )
    summaries = evaluation.summaries(options.report.level)
    if metrics:
        summaries = with_measures(
            summaries,
            read_records(folder / EPISODES, EpisodeRecord),
            metrics,
            _renderer(options).decode,
            threshold=options.eval.pass_threshold,
        )
    text = json.dumps(
        {
            "model": options.remote.model or options.model.path,
            "seed": options.seed,
            "pass_threshold": options.eval.pass_threshold,
            "level": options.report.level,
            "sets": [asdict(summary) for summary in summaries],
        },
        indent=1,
    )
    fault_point("export", 0)
    write_text_atomically(folder / SUMMARY, f"{text}\n")
    form = Form(options.report.table)
    by_task = task_table(evaluation.tasks()) if options.report.by_task else None
    if form is not Form.TEXT:
        print_table(summary_table(summaries) if by_task is None else by_task, form)
        return
    print("\n\n".join(map(block, summaries)))
    if by_task is not None:
        print()
        print_table(by_task, form)


def _seconds(path: Path) -> str:
    """Return mean, median and maximum of the seconds that tasks took, waiting for others included."""
    lines = path.read_text(encoding="utf-8").splitlines()
    taken = sorted(float(json.loads(line)["seconds"]) for line in lines)
    if not taken:
        return "none"
    mean, middle = sum(taken) / len(taken), taken[len(taken) // 2]
    return f"{mean:.3g} on average, {middle:.3g} in the middle, {taken[-1]:.3g} at most"


async def _write(
    options: EvalOptions,
    work: Work,
    player: PlaysJobs,
    folder: Path,
    progress: WorkProgress,
    interrupts: Interrupts,
) -> None:
    """Append the episodes of the jobs that are missing to the files."""

    async def timed(job: EvalJob) -> tuple[EvalJob, list[EpisodeRecord], float]:
        begin = time.monotonic()
        return job, await player.play(job), time.monotonic() - begin

    with ExitStack() as stack:
        episodes, seconds = AppendedFile(folder / EPISODES), AppendedFile(folder / SECONDS)
        stack.callback(episodes.close)
        stack.callback(seconds.close)
        stack.enter_context(progress)
        async for job, records, duration in in_order(
            islice(work.jobs(), progress.done, None),
            timed,
            at_once=options.tasks_in_flight(),
            stopped=lambda: interrupts.requested is not None,
        ):
            fault_point("save", job.number)
            seconds.write_line(json.dumps({"job": job.number, "seconds": round(duration, 4)}))
            for record in records:
                episodes.write_line(record.to_line())
            progress.add(len(records), sum(record.tokens_out for record in records))
        episodes.sync()


@asynccontextmanager
async def _player(
    resolved: Resolved,
    renderer: TokenizerRenderer,
    environment: Environments | None,
    sight: Sight | None,
) -> AsyncIterator[PlaysJobs]:
    """Return a context with what plays jobs: an engine with the model, or a client of the server."""
    options = resolved.run
    async with AsyncExitStack() as stack:
        scores = None
        if rewards := resolved.selections["reward.use"]:
            scores = QueuedRewards(RewardPanel(rewards))
            stack.push_async_callback(scores.close)
            await scores.start()
        player: PlaysJobs
        if options.remote.url is not None:
            player = await stack.enter_async_context(remote_player(options, environment, scores))
        else:
            executor = resolved.one("rollout.executor")
            engine = await stack.enter_async_context(
                serving(
                    found_model(options.model),
                    resolved.one("engine.name"),
                    renderer,
                    max_length=options.max_length(),
                    max_concurrency=options.tasks_in_flight() * options.eval.n_samples,
                    sample_padding=options.rollout.sample_padding,
                    num_engines=options.engines,
                    sight=sight,
                )
            )
            player = EnginePlayer(
                options,
                engine=engine,
                renderer=renderer,
                executor=NamedExecutor(executor.build(), executor.label),
                environment=environment,
                scores=scores,
                images=None if sight is None else sight.images,
            )
        stack.push_async_callback(player.close)
        yield player


def check_same_files(model: ModelToServe, folder: Path, *, is_begun: bool) -> None:
    """Write the digest of the model's files into a folder, or compare it with the one that is there.

    So results of two models are never in one folder: a run that is trained again exports to the same folder, and its
    path says nothing. Names, sizes and times of change are compared, not contents. A hub name has no files to compare.

    Args:
        is_begun: whether the folder has results.

    Raises:
        ConfigError: the files have changed since.
    """
    digest = hashlib.sha256("\n".join(_lines(model)).encode()).hexdigest()
    record = folder / MODEL_FILES
    if not is_begun or not record.exists():
        write_text_atomically(record, f"{digest}\n")
    elif record.read_text(encoding="utf-8").strip() != digest:
        raise ConfigError(
            f"model {model.adapter or model.path}: its files have changed since the results in {folder} were made. "
            "Choose another --output, or start over with --resume restart, which keeps them, or --overwrite.",
            code="model/files-changed",
        )


def _lines(model: ModelToServe) -> Iterator[str]:
    for path in (model.path, model.adapter, model.tokenizer):
        if path is None or not Path(path).is_dir():
            continue
        for file in sorted({file for pattern in _READ for file in Path(path).glob(pattern)}):
            state = file.stat()
            yield f"{file.name} {state.st_size} {state.st_mtime_ns}"
