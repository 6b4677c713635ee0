"""The command ``rlhf template``, which says what the chat template of a model does to a conversation that goes on, and
gives a tokenizer another template."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf_core.errors import ConfigError, DataError
from rlhf_core.outside.json_reader import parse_json

from .groups import CommandGroup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf_data.chat.facts import TemplateFacts
    from rlhf_data.chat.probing import ExamplePart

app = typer.Typer(
    cls=CommandGroup, help="Report how a chat template works, or change it.", no_args_is_help=True
)

_SIGNS = {"fine": "ok   ", "note": "note ", "drift": "DRIFT"}


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="folder or hub name of a model or tokenizer")],
    tools: Annotated[
        Path | None,
        typer.Option(help="JSON file with a list of schemas of tools, to try the template with"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the facts as JSON, for programs")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option(help="run Python code that comes with the tokenizer")
    ] = False,
) -> None:
    """Report whether a continued conversation keeps its tokens, and show one; exit code 1 if it would drift."""
    from rlhf_data import TokenizerRenderer, load_tokenizer
    from rlhf_data.chat.probing import TOOLS, example_parts, facts_of

    given = None if tools is None else _read_tools(tools)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code, has_option=False)
    renderer = TokenizerRenderer(tokenizer)
    facts = facts_of(renderer, _stops(tokenizer, model, trust_remote_code), given or TOOLS)
    try:
        parts = example_parts(renderer, given or ())
    except DataError as error:
        typer.echo(f"no example: {error}", err=True)
        parts = []
    if as_json:
        typer.echo(json.dumps(_as_json(facts, parts), ensure_ascii=False, indent=2))
    else:
        _print(model, facts, parts)
    if facts.drifts:
        raise typer.Exit(1)


@app.command()
def write(
    model: Annotated[str, typer.Argument(help="folder or hub name of a model or tokenizer")],
    file: Annotated[Path, typer.Argument(help="file with the chat template, in Jinja")],
    out: Annotated[Path, typer.Argument(help="folder to write; it may not have files yet")],
    trust_remote_code: Annotated[
        bool, typer.Option(help="run Python code that comes with the tokenizer")
    ] = False,
) -> None:
    """Write a model's tokenizer with another chat template into a folder, for --model.tokenizer."""
    from rlhf_data import TokenizerRenderer, load_tokenizer, read_template, save_tokenizer
    from rlhf_data.chat.probing import TOOLS, USER, facts_of

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: expected a folder without files, or none; this one would be overwritten. Name another folder.",
            code="output/not-empty",
        )
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code, has_option=False)
    tokenizer.chat_template = read_template(str(file), "FILE")
    renderer = TokenizerRenderer(tokenizer)
    renderer.render([USER])  # raises what is wrong with the template before anything is written
    facts = facts_of(renderer, _stops(tokenizer, model, trust_remote_code), TOOLS)
    save_tokenizer(tokenizer, out)
    _print(str(out), facts, [])
    typer.echo(f"\nTo train with it: --model.tokenizer {out}")


def _read_tools(path: Path) -> list[dict[str, Any]]:
    try:
        tools = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tools {path}: expected a JSON file; {error}", code="tool/malformed"
        ) from error
    if not isinstance(tools, list) or not tools or not all(isinstance(one, dict) for one in tools):
        raise ConfigError(
            f"--tools {path}: expected a list of JSON schemas of tools", code="tool/malformed"
        )
    return tools


def _stops(
    tokenizer: PreTrainedTokenizerBase, model: str, trust_remote_code: bool
) -> tuple[int, ...]:
    """Return the tokens that end a generation; of a folder without a model, the tokenizer's alone, and say so."""
    from rlhf_data import eos_token_ids

    try:
        return eos_token_ids(tokenizer, model, trust_remote_code=trust_remote_code)
    except ConfigError:
        if tokenizer.eos_token_id is None:
            raise
        typer.echo(
            "no generation_config.json or config.json: stop tokens are the tokenizer's", err=True
        )
        return (tokenizer.eos_token_id,)


def _print(model: str, facts: TemplateFacts, parts: list[ExamplePart]) -> None:
    typer.echo(f"{model}: the chat template")
    for finding in facts.findings():
        typer.echo(f"  {_SIGNS[finding.weight]}  {finding.text}")
    typer.echo(f"  {len(facts.control_words)} control words, which are ordinary text in contents")
    if parts:
        typer.echo("\nAn example, token by token:")
    for part in parts:
        shown = "".join(f"[{repr(token)[1:-1]}]" for token in part.tokens)
        typer.echo(f"  {part.name}, {len(part.token_ids)} tokens\n    {shown}")
    typer.echo(
        "\nA server that renders this conversation again would drift. Runs keep sampled tokens, and append."
        if facts.drifts
        else "\nA conversation that goes on keeps its tokens."
    )


def _as_json(facts: TemplateFacts, parts: list[ExamplePart]) -> dict[str, Any]:
    return {
        "drifts": facts.drifts,
        "facts": asdict(facts),
        "findings": [asdict(finding) for finding in facts.findings()],
        "example": [asdict(part) for part in parts],
    }
