"""The command ``rlhf data``, which shows data files and finds every row that a run could not use, without a model."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlhf_core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rlhf_core.data.chat.renderer import TokenizerRenderer
    from rlhf_core.data.checking import Expectations, SourceReport
    from rlhf_core.data.rows import Prompt, PromptFormat

app = typer.Typer(help="Check and show data sets.", no_args_is_help=True)

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="JSONL, JSON, CSV or Parquet files, save_to_disk folders, or hub names (NAME or NAME:CONFIG)",
    ),
]
PromptKey = Annotated[str, typer.Option(help="column with the prompt, as --data.prompt_key")]
Template = Annotated[
    str | None, typer.Option(help="format string over the row's columns, as --data.template")
]
SystemPrompt = Annotated[str | None, typer.Option(help="as --data.system_prompt")]
MessagesKey = Annotated[
    str | None,
    typer.Option(
        help="column with whole conversations to learn from, as --data.messages_key of rlhf sft; without a model"
    ),
]
Chat = Annotated[bool, typer.Option("--chat", help="as --data.chat")]
ImageKey = Annotated[str | None, typer.Option(help="column with images, as --data.image_key")]
Model = Annotated[
    str | None,
    typer.Option(
        help="model or tokenizer whose chat template is tried and whose tokens are counted"
    ),
]
Split = Annotated[str, typer.Option(help="split of folders and hub sets that have several")]


@app.command()
def check(
    files: Files,
    prompt_key: PromptKey = "prompt",
    template: Template = None,
    system_prompt: SystemPrompt = None,
    chat: Chat = False,
    messages_key: MessagesKey = None,
    model: Model = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="longer prompts are bad; needs --model")
    ] = None,
    max_prompt_characters: Annotated[
        int | None, typer.Option(min=1, help="longer prompts are bad; needs no model")
    ] = None,
    label_key: Annotated[
        str | None, typer.Option(help="column that every row must have, for its reward")
    ] = None,
    id_key: Annotated[
        str | None, typer.Option(help="column whose values must differ within a file")
    ] = None,
    split: Split = "train",
    image_key: ImageKey = None,
    max_images: Annotated[int, typer.Option(min=1, help="as --data.max_images")] = 16,
    max_image_pixels: Annotated[int, typer.Option(min=1, help="as --data.max_image_pixels")] = 4096
    * 4096,
    max_image_bytes: Annotated[int, typer.Option(min=1, help="as --data.max_image_bytes")] = 20
    * 2**20,
    allow_image_urls: Annotated[
        bool, typer.Option("--allow-image-urls", help="as --data.allow_image_urls")
    ] = False,
    control_words: Annotated[
        Literal["text", "tokens"], typer.Option(help="as --data.control_words; needs --model")
    ] = "text",
) -> None:
    """List every row that a run could not use, by file and line; exit code 1 if there is one."""
    from rlhf_core.data.checking import Expectations
    from rlhf_core.media.desk import MediaDesk, MediaOptions
    from rlhf_core.media.inspecting import MediaLimits

    limits = MediaLimits(
        max_images=max_images, max_pixels=max_image_pixels, max_bytes=max_image_bytes
    )
    if max_prompt_tokens is not None and model is None:
        raise ConfigError(
            "--max-prompt-tokens needs --model to count tokens. Add --model, or use --max-prompt-characters."
        )
    if messages_key is not None and (model is not None or template is not None):
        raise ConfigError(
            "--messages-key checks conversations without a model and without a template. Leave --model and --template "
            "out; rlhf sft counts the tokens of conversations before it trains."
        )
    expected = Expectations(
        messages_key=messages_key,
        format=_format(prompt_key, template, system_prompt, chat),
        image_key=image_key,
        desk=MediaDesk(MediaOptions(limits=limits, allow_urls=allow_image_urls)),
        label_key=label_key,
        id_key=id_key,
        renderer=_renderer(model, control_words),
        max_tokens=max_prompt_tokens,
        max_characters=max_prompt_characters,
    )
    reports = {spec: _report(spec, split, expected) for spec in dict.fromkeys(files)}
    _print_summary(reports, "characters" if model is None else "tokens")
    if any(report is None or report.bad for report in reports.values()):
        raise typer.Exit(1)


@app.command()
def show(
    files: Files,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="rows of each file")] = 3,
    prompt_key: PromptKey = "prompt",
    template: Template = None,
    system_prompt: SystemPrompt = None,
    chat: Chat = False,
    model: Model = None,
    split: Split = "train",
    image_key: ImageKey = None,
) -> None:
    """Print the first rows and the prompts made of them, as the model would read them."""
    from rlhf_core.data.chat.template_kwargs import renderer_of
    from rlhf_core.data.prompts import read_prompt
    from rlhf_core.data.row_images import RowImages, start_of_paths
    from rlhf_core.data.rows import RowProblem
    from rlhf_core.data.source import Unreadable
    from rlhf_core.data.sources import open_source
    from rlhf_core.media.desk import MediaDesk, MediaOptions

    format = _format(prompt_key, template, system_prompt, chat)
    renderer = _renderer(model)
    desk = MediaDesk(MediaOptions())
    for spec in files:
        source = open_source(spec, split=split)
        images = RowImages(desk=desk, key=image_key, folder=start_of_paths(spec))
        for index, row in zip(range(n), source.scan(), strict=False):
            _print(f"--- {source.where(index)}")
            prompt = read_prompt(row, format, images)
            if isinstance(prompt, RowProblem):
                _print(f"cannot be used: {prompt.reason}")
            else:
                given = renderer and renderer_of(
                    {} if isinstance(row, Unreadable) else row, renderer
                )
                _print(_rendered(prompt, given))
            if not isinstance(row, Unreadable):
                for name, value in row.items():
                    _print(f"  {name}: {_shortened(value)}")
        _print(f"{spec}: {len(source)} rows")


def _format(
    prompt_key: str,
    template: str | None,
    system_prompt: str | None,
    chat: bool,
) -> PromptFormat:
    from rlhf_core.data.rows import PromptFormat

    return PromptFormat(
        prompt_key=prompt_key,
        template=template,
        system_prompt=system_prompt,
        chat=chat,
    )


def _renderer(
    model: str | None, control_words: Literal["text", "tokens"] = "text"
) -> TokenizerRenderer | None:
    """Return the renderer of the model's tokenizer; None without a model."""
    if model is None:
        return None
    from rlhf_core.data.chat.renderer import TokenizerRenderer
    from rlhf_core.data.tokenizer import load_tokenizer

    return TokenizerRenderer(load_tokenizer(model), control_words=control_words)


def _report(spec: str, split: str, expected: Expectations) -> SourceReport | None:
    """Print the bad rows of one data set and return the report; None if the data set cannot be read at all."""
    from rlhf_core.data.checking import check_source
    from rlhf_core.data.row_images import start_of_paths
    from rlhf_core.data.sources import open_source

    try:
        source = open_source(spec, split=split)
    except DataError as error:
        _print(str(error))
        return None
    report = check_source(source, expected, start_of_paths(spec))
    for row in report.bad:
        _print(f"{row.where}: {row.reason}")
    if report.inert.rows:
        _print(f"warning: {report.inert.describe(report.total, spec)}")
    if report.duplicates:
        here, first = report.duplicates[0]
        _print(
            f"warning: {len(report.duplicates)} prompts of {spec} occur more than once; "
            f"{here} repeats {first}"
        )
    return report


def _print_summary(reports: dict[str, SourceReport | None], unit: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("data", "rows", "usable", "bad", f"prompt {unit}: min / median / max"):
        table.add_column(column, justify="left" if column == "data" else "right")
    kinds: Counter[str] = Counter()
    for spec, report in reports.items():
        if report is None:
            table.add_row(Text(spec), "-", "-", "all", "cannot be read")
            continue
        kinds.update(row.kind for row in report.bad)
        usable = report.total - report.num_bad
        table.add_row(
            Text(spec), str(report.total), str(usable), str(report.num_bad), _spread(report)
        )
    console = Console(highlight=False)
    console.print(table)
    for kind, count in kinds.most_common():
        console.print(f"{count:>8}  {kind}", markup=False)


def _spread(report: SourceReport) -> str:
    if not len(report.lengths):
        return "-"
    ordered = sorted(report.lengths.tolist())
    return f"{ordered[0]} / {ordered[len(ordered) // 2]} / {ordered[-1]}"


def _rendered(prompt: Prompt, renderer: TokenizerRenderer | None) -> str:
    if isinstance(prompt, str):
        return prompt
    if renderer is not None:
        return renderer.render_text(prompt)
    return "\n".join(f"[{message['role']}] {message.get('content', '')}" for message in prompt)


def _shortened(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 100 else text[:97] + "..."


def _print(text: str) -> None:
    """Print any text, with the characters escaped that a terminal cannot show or would obey."""
    encodable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    typer.echo(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", encodable))
