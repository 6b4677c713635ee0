"""The command ``rlhf chat``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rlhf_cli.training import layers_of, say_choices, split_arguments, warn_of_failed_plugins
from rlhf_config import check_paths, render_help, resolve_options
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader

from .options import CHAT

if TYPE_CHECKING:
    from rlhf_config import ResolvedOptions
    from rlhf_core.plugins import Plugins

    from .options import ChatOptions

_DEFAULTS = Path(__file__).with_name("chat.toml")
_MAX_LENGTH = 4096
"""Tokens of a conversation, unless an option or the model says less."""


def chat(words: Sequence[str]) -> int:
    """Run ``rlhf chat WORDS`` and return the exit code.

    Raises:
        RLHFError: the options are wrong, the model cannot be used, or an answer failed in a pipe.
    """
    is_model = bool(words) and not words[0].startswith("-")
    arguments = split_arguments(["--model", *words] if is_model else words)
    plugins = plugin_loader.load()
    warn_of_failed_plugins(plugins)
    layers = layers_of(arguments, _DEFAULTS)
    if arguments.help:
        width = min(100, shutil.get_terminal_size((100, 24)).columns)
        print(render_help(layers, plugins, width, CHAT))
        return 0
    if arguments.dry_run:
        raise ConfigError(
            "--dry-run: rlhf chat builds nothing that could be described. Use --check in place of --dry-run.",
            code="config/no-effect",
        )
    resolved = resolve_options(layers, plugins, CHAT)
    check_paths(resolved, layers, CHAT)
    say_choices(resolved)
    if arguments.check:
        print("The configuration is valid.")
        return 0
    with TemporaryDirectory(prefix="rlhf-chat-") as media:
        _converse(resolved, plugins, Path(media))
    return 0


def _converse(resolved: ResolvedOptions[ChatOptions], plugins: Plugins, media: Path) -> None:
    """Talk until the input ends.

    Args:
        media: folder for the images that are shown.
    """
    # Imported here: help needs no torch.
    import asyncio
    import sys
    from contextlib import AsyncExitStack

    from ..serving.served import renderer_of, serving
    from ..serving.sight import open_sight
    from .conversation import ChatHistory
    from .speaker import Speaker
    from .talk import talk
    from .terminal import Pipe, TalkEnds, Terminal

    run = resolved.run
    sight = open_sight(resolved.optional("model.vision"), run.model, media, plugins)
    renderer = renderer_of(run.model, template_kwargs=run.chat.template_kwargs, sight=sight)
    if renderer.tokenizer.chat_template is None:
        raise ConfigError(
            f"model {run.model.path}: its tokenizer has no chat template, so a conversation has no form. Give an "
            "instruction-tuned model, or complete plain text with rlhf generate.",
            code="template/missing",
        )
    max_length = run.chat.max_length or _length_of(run)
    user: TalkEnds = Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Pipe()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        context = serving(
            run.model,
            resolved.one("engine.name"),
            renderer,
            max_length=max_length,
            max_concurrency=1,
            sample_padding=run.rollout.sample_padding,
            sight=sight,
        )
        try:
            engine = runner.run(stack.enter_async_context(context))
            if user.is_interactive:
                user.say(
                    f"{run.model.path}, {max_length} tokens. /help lists commands, Ctrl-D ends."
                )
            speaker = Speaker(
                engine,
                renderer,
                sampling=run.rollout.params(),
                seed=run.seed,
                piece=run.chat.stream_tokens,
                max_length=max_length,
                images=None if sight is None else sight.images,
            )
            talk(user, ChatHistory(run.chat.system), speaker, runner)
        finally:
            runner.run(stack.aclose())


def _length_of(run: ChatOptions) -> int:
    """Return the number of tokens that the model has positions for, at most 4096."""
    from ..serving.model_source import config_of

    positions = getattr(config_of(run.model).get_text_config(), "max_position_embeddings", None)
    return min(positions or _MAX_LENGTH, _MAX_LENGTH)
