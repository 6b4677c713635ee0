"""The course of ``rlhf generate``: the folder, the prompts that are missing, the table, the data set."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from rlhf_config import ResolvedOptions
from rlhf_core.contracts import RunResult, Task
from rlhf_core.plugins import Plugins
from rlhf_core.storage import written_whole
from rlhf_trainer.inference import (
    AppendedFile,
    Interrupts,
    PromptFormat,
    RewardPanel,
    RunFolder,
    claim,
    fault_point,
    load_prompts,
    run_to_its_end,
    shown_forms,
)

from ..serving.served import renderer_of, serving
from ..serving.sight import Sight, open_sight
from ..worklist.configuration import NAME as CONFIGURATION
from ..worklist.configuration import GoingOn, record_config
from ..worklist.image_files import FOLDER as IMAGES
from ..worklist.in_order import in_order
from ..worklist.kept_results import ended, results_are_kept, set_results_aside
from ..worklist.progress import WorkProgress
from ..worklist.record_lines import cut_lines, read_records
from .answering import Answerer, Prompter
from .options import CHOSEN, COMPLETIONS, GenerateOptions
from .records import AnsweredPrompt, check_same_prompts
from .selecting import CHOOSERS, LeftOut, Row
from .summary import GenerationSummary

RESUMING = GoingOn(
    free=re.compile(
        r"output|engines|(select|log|resume)\..*|rollout\.concurrency|engine\.\w+\..*|reward\.\w+\.(timeout_s|on_error|isolate)"
    ),
    contents="completions",
    label="--resume: ",
    way_out="start over with --resume restart, which keeps them, or choose another --output",
)
"""Rules of ``--resume``: no completion that is there depends on the free options."""


def run(resolved: ResolvedOptions[GenerateOptions], plugins: Plugins) -> RunResult:
    """Generate what is missing, print the summary, write the data set, and return how that ended.

    Raises:
        RLHFError: the model or the data cannot be used, or the engine or a reward failed; the prompts that were
            finished are in the folder, and ``--resume`` goes on.
    """
    begin = time.monotonic()
    options = resolved.run
    folder = Path(options.output)
    with claim(run_folder := RunFolder(folder), resume=True), Interrupts() as interrupts:
        path = folder / COMPLETIONS
        if options.resume.checkpoint == "restart":
            results = (COMPLETIONS, CONFIGURATION, *(f"{mode}.jsonl" for mode in CHOSEN))
            set_results_aside(run_folder, results, "completions")
        record_config(resolved, folder, RESUMING, is_begun=path.exists())
        sight = open_sight(
            resolved.optional("model.vision"),
            options.model,
            folder / IMAGES,
            plugins,
            options.data,
            no_videos=resolved.no_videos,
        )
        data = options.data
        renderer = renderer_of(options.model, data.control_words, data.chat_template_kwargs, sight)
        images = None if sight is None else sight.images
        prompter = Prompter(PromptFormat.of(options.data), renderer, images)
        with shown_forms():
            prompts = load_prompts(options.data, renderer, images)
        order = prompts.order(0, 0).tolist()
        cut_lines(path)
        written = check_same_prompts(
            path, (prompter.identity_of(prompts.task(index, 0)) for index in order)
        )
        if written < len(order):
            tasks = (prompts.task(index, 0) for index in order[written:])
            progress = WorkProgress(options.log.progress, total=len(order), done=written)
            with results_are_kept(path, "prompts", "the same command with --resume continues"):
                written = run_to_its_end(
                    _write(resolved, tasks, prompter, sight, path, progress, interrupts)
                )
        if written < len(order):
            message = (
                f"by {interrupts.requested}: {written} of {len(order)} prompts are in {path}. The same command with "
                "--resume continues."
            )
            return ended("interrupted", written, begin, message)
        summary, chosen = summarize(options, path)
    print(summary.lines())
    print(f"completions: {path}")
    if chosen is not None:
        print(f"{options.select.mode}: {chosen}")
    return ended("finished", written, begin)


async def _write(
    resolved: ResolvedOptions[GenerateOptions],
    tasks: Iterable[Task],
    prompter: Prompter,
    sight: Sight | None,
    path: Path,
    progress: WorkProgress,
    interrupts: Interrupts,
) -> int:
    """Append the completions of ``tasks`` to the file, and return the number of prompts that are in it then."""
    options = resolved.run
    rollout = options.rollout
    at_once = rollout.prompts_in_flight(options.engines)
    count = rollout.n_samples_per_prompt
    async with AsyncExitStack() as stack:
        panel = None
        if rewards := resolved.selections["reward.use"]:
            panel = RewardPanel(rewards)
            stack.push_async_callback(panel.close)
            await panel.start()
        engine = await stack.enter_async_context(
            serving(
                options.model,
                resolved.one("engine.name"),
                prompter.renderer,
                max_length=options.data.max_prompt_tokens + rollout.max_new_tokens,
                max_concurrency=at_once * count,
                sample_padding=rollout.sample_padding,
                num_engines=options.engines,
                sight=sight,
            )
        )
        answerer = Answerer(
            engine,
            prompter,
            panel,
            sampling=rollout.params(),
            count=count,
            seed=options.seed,
        )
        stack.push_async_callback(answerer.close)
        file = AppendedFile(path)
        stack.callback(file.close)
        stack.enter_context(progress)
        async for prompt in in_order(
            tasks,
            answerer.answer,
            at_once=at_once,
            stopped=lambda: interrupts.requested is not None,
        ):
            fault_point("save", prompt.index)
            file.write_line(prompt.to_line())
            answers = prompt.completions
            progress.add(len(answers), sum(answer.tokens for answer in answers))
        file.sync()
    return progress.done


def summarize(options: GenerateOptions, completions: Path) -> tuple[GenerationSummary, Path | None]:
    """Return the tally of a file of completions, and the path of the data set.

    The data set, ``MODE.jsonl`` beside the completions, appears in one step; None where ``select.mode`` is ``all``.
    """
    mode = options.select.mode
    target = completions.with_name(f"{mode}.jsonl")
    summary = GenerationSummary()
    if mode == "all":
        for _ in _rows(completions, options, summary):
            pass
        return summary, None
    with written_whole(target) as file:
        for row in _rows(completions, options, summary):
            file.write(json.dumps(row).encode() + b"\n")
        fault_point("export", 0)
    return summary, target


def _rows(completions: Path, options: GenerateOptions, summary: GenerationSummary) -> Iterator[Row]:
    """Yield the rows of the data set, and tally prompt after prompt."""
    for prompt in read_records(completions, AnsweredPrompt):
        summary.add(prompt, is_scored=bool(options.reward.use))
        yield from _chosen(prompt, options, summary)


def _chosen(
    prompt: AnsweredPrompt, options: GenerateOptions, summary: GenerationSummary
) -> list[Row]:
    """Return the rows that a prompt gives, and count them."""
    choose = CHOOSERS.get(options.select.mode)
    if choose is None:
        return []
    rows = choose(prompt, options.select)
    summary.chosen = summary.chosen or 0
    if isinstance(rows, LeftOut):
        summary.left_out[rows.reason] += 1
        return []
    summary.chosen += len(rows)
    return rows
