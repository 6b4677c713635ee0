"""The loop of a conversation: a message, an answer, until there are no more messages."""

from __future__ import annotations

import asyncio

from rlhf_core import RLHFError

from .conversation import ChatHistory
from .slash_commands import Next, apply, is_command
from .speaker import Speaker
from .terminal import TalkEnds


def talk(user: TalkEnds, history: ChatHistory, speaker: Speaker, runner: asyncio.Runner) -> None:
    """Read messages and answer them until the input ends or a command says so.

    Args:
        runner: runs each answer; with somebody there, Ctrl-C ends the answer and not the loop.

    Raises:
        RLHFError: an answer or a command failed and nobody is there to hear it.
    """
    while (message := user.read()) is not None:
        try:
            after = Next.ANSWER
            if is_command(message):
                effect = apply(message, history, speaker)
                if effect.text:
                    user.say(effect.text)
                after = effect.next
            else:
                history.ask(message.removeprefix("/") if message.startswith("//") else message)
            if after is Next.END:
                return
            if after is Next.ANSWER:
                _answer(user, history, speaker, runner)
        except RLHFError as error:
            if not user.is_interactive:
                raise
            user.say(f"error: {error}")


def _answer(user: TalkEnds, history: ChatHistory, speaker: Speaker, runner: asyncio.Runner) -> None:
    """Show the answer to the last question, and add it to the history: also what a stopped one has said so far."""
    pieces: list[str] = []

    async def speak() -> None:
        async for piece in speaker.answer(
            history.messages, turn=history.turn, attempt=history.attempt
        ):
            pieces.append(piece)
            user.show(piece)

    try:
        runner.run(speak())
    except KeyboardInterrupt:
        if not user.is_interactive:
            raise
        user.say(" (stopped)")
    except RLHFError:
        history.take_back_question()
        raise
    else:
        user.end_answer()
    history.answer("".join(pieces))
