"""The command ``rlhf data``, which shows data files and finds every row that a run could not use, without a model."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlhf_core.errors import ConfigError, DataError

from .data_report import as_typed_here, print_next, print_report, print_summary, print_text
from .groups import CommandGroup

if TYPE_CHECKING:
    from rlhf_data.chat.renderer import TokenizerRenderer
    from rlhf_data.checked.structure import AnyColumns
    from rlhf_data.checking import Expectations, SourceReport
    from rlhf_data.rows import Prompt, PromptFormat

app = typer.Typer(cls=CommandGroup, help="Check and show data sets.", no_args_is_help=True)

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="JSONL, JSON, CSV, Parquet or text files, compressed files, patterns, save_to_disk folders, or hub names "
        "(NAME or NAME:CONFIG)",
    ),
]
Form = Annotated[
    str | None,
    typer.Option(help="form of the rows, as --data.form; unset: recognized by the first rows"),
]
PromptKey = Annotated[str, typer.Option(help="column with the prompt, as --data.prompt_key")]
Template = Annotated[
    str | None, typer.Option(help="format string over the row's columns, as --data.template")
]
SystemPrompt = Annotated[str | None, typer.Option(help="as --data.system_prompt")]
MessagesKey = Annotated[
    str | None,
    typer.Option(
        help="column with whole conversations to learn from, as --data.messages_key of rlhf sft"
    ),
]
ResponseKey = Annotated[
    str | None,
    typer.Option(help="column with the answer to learn, as --data.response_key of rlhf sft"),
]
ChosenKey = Annotated[
    str | None, typer.Option(help="column with the preferred answer, as --data.chosen_key")
]
RejectedKey = Annotated[
    str | None, typer.Option(help="column with the other answer, as --data.rejected_key")
]
Chat = Annotated[bool, typer.Option("--chat", help="as --data.chat")]
ImageKey = Annotated[str | None, typer.Option(help="column with images, as --data.image_key")]
Model = Annotated[
    str | None,
    typer.Option(
        help="model or tokenizer whose chat template is tried and whose tokens are counted"
    ),
]
Split = Annotated[
    str, typer.Option(help="split to read from folders and hub sets that have several")
]


@app.command()
def check(
    files: Files,
    form: Form = None,
    prompt_key: PromptKey = "prompt",
    template: Template = None,
    system_prompt: SystemPrompt = None,
    chat: Chat = False,
    messages_key: MessagesKey = None,
    response_key: ResponseKey = None,
    chosen_key: ChosenKey = None,
    rejected_key: RejectedKey = None,
    model: Model = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="largest number of tokens of a prompt; needs --model")
    ] = None,
    max_prompt_characters: Annotated[
        int | None, typer.Option(min=1, help="largest number of characters of a prompt")
    ] = None,
    label_key: Annotated[
        str | None, typer.Option(help="column or COLUMN.ENTRY that every row must have")
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
    all_rows: Annotated[
        bool, typer.Option("--all", help="list all bad rows; otherwise five of each kind")
    ] = False,
) -> None:
    """Report the form of the rows, list rows that a run cannot use, and print the command to run next; exit code 1 if
    there is a bad row."""
    from rlhf_core.media.inspecting import MediaLimits
    from rlhf_core.media.loader import MediaLoader, MediaOptions
    from rlhf_data.checking import Expectations

    limits = MediaLimits(
        max_images=max_images, max_pixels=max_image_pixels, max_bytes=max_image_bytes
    )
    if max_prompt_tokens is not None and model is None:
        raise ConfigError(
            "--max-prompt-tokens needs --model to count tokens. Add --model, or use --max-prompt-characters.",
            code="usage/tokens-without-model",
        )
    if messages_key is not None and template is not None:
        raise ConfigError(
            "--messages-key names whole conversations, and --template makes prompts of columns. Leave one out.",
            code="usage/messages-and-template",
        )
    answers = (response_key, chosen_key, rejected_key)
    columns = _columns(form, prompt_key, template, system_prompt, messages_key, *answers)
    expected = Expectations(
        columns=columns,
        format=_format(prompt_key, template, system_prompt, chat),
        image_key=image_key,
        loader=MediaLoader(MediaOptions(limits=limits, allow_urls=allow_image_urls)),
        label_key=label_key,
        id_key=id_key,
        renderer=_renderer(model, control_words),
        max_tokens=max_prompt_tokens,
        max_characters=max_prompt_characters,
    )
    reports = {spec: _report(spec, split, expected, all_rows) for spec in dict.fromkeys(files)}
    print_summary(reports, "characters" if model is None else "tokens")
    further = {"split": None if split == "train" else split, "image_key": image_key}
    words = _option_words(**columns.model_dump(exclude_defaults=True), **further)
    print_next(reports, model, [*words, "--data.chat"] if chat else words)
    if any(report is None or report.bad for report in reports.values()):
        raise typer.Exit(1)


@app.command()
def show(
    files: Files,
    n: Annotated[
        int, typer.Option("--n", "-n", min=1, help="number of rows to show of each file")
    ] = 3,
    form: Form = None,
    prompt_key: PromptKey = "prompt",
    template: Template = None,
    system_prompt: SystemPrompt = None,
    chat: Chat = False,
    messages_key: MessagesKey = None,
    response_key: ResponseKey = None,
    chosen_key: ChosenKey = None,
    rejected_key: RejectedKey = None,
    model: Model = None,
    split: Split = "train",
    image_key: ImageKey = None,
) -> None:
    """Print the first rows, and the prompts or conversations made of them, as the model would read them."""
    from rlhf_core.media.loader import MediaLoader, MediaOptions
    from rlhf_data.chat.template_kwargs import renderer_of
    from rlhf_data.checking import Expectations, SetReader
    from rlhf_data.forms.form import RowKind
    from rlhf_data.forms.recognizing import formed
    from rlhf_data.row_images import RowImages, start_of_paths
    from rlhf_data.rows import RowProblem
    from rlhf_data.source import Unreadable
    from rlhf_data.sources import open_source

    answers = (response_key, chosen_key, rejected_key)
    columns = _columns(form, prompt_key, template, system_prompt, messages_key, *answers)
    expected = Expectations(
        columns=columns,
        format=_format(prompt_key, template, system_prompt, chat),
    )
    renderer = _renderer(model)
    loader = MediaLoader(MediaOptions())
    for spec in files:
        source = open_source(spec, split=split)
        images = RowImages(loader=loader, key=image_key, folder=start_of_paths(spec))
        found = formed(source, expected.columns, tuple(RowKind), spec=spec, says=False)
        reader = SetReader(found, expected)
        for index, row, own in zip(range(n), source.scan(), found.source.scan(), strict=False):
            print_text(f"--- {source.where(index)}")
            prompt = reader.read(own, images)
            if isinstance(prompt, RowProblem):
                print_text(f"cannot be used: {prompt.reason}")
            else:
                given = renderer and renderer_of(
                    {} if isinstance(row, Unreadable) else row, renderer
                )
                print_text(_rendered(prompt, given))
            if not isinstance(row, Unreadable):
                for name, value in row.items():
                    print_text(f"  {name}: {_shortened(value)}")
        print_text(f"{spec}: {len(source)} rows")


def _option_words(**values: str | None) -> list[str]:
    """Return options of ``data`` as a training command has them; None and empty text: it is as it is."""
    return [word for key, value in values.items() if value for word in (f"--data.{key}", value)]


def _format(
    prompt_key: str,
    template: str | None,
    system_prompt: str | None,
    chat: bool,
) -> PromptFormat:
    from rlhf_data.rows import PromptFormat

    if template is not None and system_prompt is not None and not chat:
        raise ConfigError(
            "--system-prompt: a template makes plain text, which has no place for it. Add --chat, or put it into the "
            "template.",
            code="config/system-prompt-of-plain-text",
        )
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
    from rlhf_data.chat.renderer import TokenizerRenderer
    from rlhf_data.tokenizer import load_tokenizer

    return TokenizerRenderer(load_tokenizer(model, has_option=False), control_words=control_words)


def _columns(
    form: str | None,
    prompt_key: str,
    template: str | None,
    system_prompt: str | None,
    messages_key: str | None,
    response_key: str | None,
    chosen_key: str | None,
    rejected_key: str | None,
) -> AnyColumns:
    from rlhf_data.checked.structure import AnyColumns
    from rlhf_data.forms.recognizing import check_name

    answers = {"response_key": response_key, "chosen_key": chosen_key, "rejected_key": rejected_key}
    return AnyColumns(
        form=check_name(form),
        prompt_key=prompt_key,
        template=template,
        system_prompt=system_prompt,
        messages_key=messages_key,
        **{key: name for key, name in answers.items() if name is not None},
    )


def _report(spec: str, split: str, expected: Expectations, all_rows: bool) -> SourceReport | None:
    """Print what is to say about a data set and return the report; None if it cannot be read at all."""
    options = inspect.signature(check).parameters
    from rlhf_data.checking import check_source
    from rlhf_data.row_images import start_of_paths
    from rlhf_data.sources import open_source

    try:
        source = open_source(spec, split=split)
        report = check_source(source, expected, start_of_paths(spec))
    except DataError as error:
        print_text(as_typed_here(str(error), options))
        return None
    print_report(spec, report, all_rows=all_rows, options=options)
    return report


def _rendered(prompt: Prompt, renderer: TokenizerRenderer | None) -> str:
    if isinstance(prompt, str):
        return prompt
    if renderer is not None:
        return renderer.render_text(prompt)
    return "\n".join(f"[{message['role']}] {message.get('content', '')}" for message in prompt)


def _shortened(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 100 else text[:97] + "..."
