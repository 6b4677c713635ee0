"""Lines that begin with a slash: what they are called, what they do, and what they answer."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from rlhf_config import SamplingOptions
from rlhf_core import ConfigError
from rlhf_core.media import MediaProblem

from .conversation import ChatHistory
from .speaker import Speaker

HELP = """\
/system [TEXT]         show the system prompt, or set it; none removes it
/image FILE            show an image with the next message (needs --model.vision)
/sampling [NAME=VALUE]...  show the sampling parameters, or change some
/retry                 have the last question answered anew
/reset                 forget the conversation; the system prompt stays
/save FILE             append the conversation to FILE as a row of rlhf sft --data.messages_key messages
/help                  this text
/exit                  end the program, as Ctrl-D does
//TEXT                 a message that begins with a slash"""


class Next(StrEnum):
    """Thing to do after a command."""

    READ = "read the next line"
    ANSWER = "answer the last question"
    END = "end the program"


@dataclass(frozen=True, slots=True)
class Effect:
    """Outcome of a command."""

    text: str = ""
    """Answer for the user; may be empty."""
    next: Next = Next.READ


def is_command(text: str) -> bool:
    """Return whether a message is a command. Two slashes begin a message that has one."""
    return text.startswith("/") and not text.startswith("//")


def apply(line: str, history: ChatHistory, speaker: Speaker) -> Effect:
    """Carry out a command.

    Raises:
        ConfigError: there is no such command, or its arguments are wrong.
    """
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    match name:
        case "help":
            return Effect(HELP)
        case "exit" | "quit":
            return Effect(next=Next.END)
        case "reset":
            history.reset()
            return Effect("The conversation is forgotten.")
        case "retry":
            if not history.take_back_answer():
                raise ConfigError(
                    "/retry: there is no question to answer again", code="chat/no-question"
                )
            return Effect(next=Next.ANSWER)
        case "system":
            if rest:
                history.system = None if rest == "none" else rest
            return Effect(f"system prompt: {history.system or 'none'}")
        case "image":
            return Effect(_attach(rest, history, speaker))
        case "sampling":
            _change_sampling(rest, speaker)
            return Effect(_sampling_text(speaker))
        case "save":
            if not rest:
                raise ConfigError(
                    "/save: expected a file, such as /save chats.jsonl", code="chat/no-file"
                )
            if not history.messages:
                raise ConfigError(
                    "/save: there is no conversation yet", code="chat/no-conversation"
                )
            history.save(Path(rest))
            return Effect(f"saved: {rest}")
    raise ConfigError(
        f"/{name}: there is no such command; /help lists all commands",
        code="chat/unknown-command",
    )


def _attach(text: str, history: ChatHistory, speaker: Speaker) -> str:
    """Have the next message show the image of a file, and return what to say of it."""
    if speaker.images is None:
        raise ConfigError(
            "/image: the model reads text alone; start rlhf chat with --model.vision, such as vlm",
            code="chat/command",
        )
    if not text:
        raise ConfigError(
            "/image: expected a file, such as /image picture.png", code="chat/command"
        )
    try:
        image = speaker.images.loader.take(Path(text), Path())
    except MediaProblem as problem:
        raise ConfigError(f"/image {text}: {problem}", code="chat/command") from problem
    history.attach(image, Path(text))
    return f"{text}: {image.width} x {image.height} pixels, with the next message"


def _change_sampling(text: str, speaker: Speaker) -> None:
    values = {name: getattr(speaker.sampling, name) for name in SamplingOptions.model_fields}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"/sampling {text}: {error}", code="chat/sampling") from error
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in values:
            raise ConfigError(
                f"/sampling {word}: expected NAME=VALUE with a name of {', '.join(values)}",
                code="chat/sampling-form",
            )
        values[name] = (value,) if name == "stop" else value
        if name == "stop" and not value:
            values[name] = ()
    try:
        speaker.sampling = SamplingOptions.model_validate(values).params()
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"/sampling {first['loc'][0]}: {first['msg']}", code="chat/sampling"
        ) from error


def _sampling_text(speaker: Speaker) -> str:
    values = asdict(speaker.sampling)
    names = SamplingOptions.model_fields
    return " ".join(
        f"{name}={' '.join(values[name]) or 'none' if name == 'stop' else values[name]}"
        for name in names
    )
