"""Chats, and servers of models: those that are evaluated, and those that score for a run."""

import contextlib
import socket
import sys
from importlib.metadata import requires
from types import SimpleNamespace

from tests.plugins.agents.conftest import Stage
from tests.plugins.agents.test_images import Pads
from tests.plugins.endpoint.test_images import ONE
from tests.plugins.inference.evaluate.remote.conftest import FakeServer
from tests.plugins.inference.evaluate.remote.test_client import answers

from rlhf_core.media import ImageReader, MediaLoader, MediaOptions
from rlhf_plugin_inference.chat.conversation import ChatHistory
from rlhf_plugin_inference.chat.slash_commands import apply
from rlhf_plugin_inference.chat.speaker import Speaker
from rlhf_plugin_reward_model.config import ServeConfig
from rlhf_plugin_reward_model.ends import SequenceEnd
from rlhf_plugin_reward_model.serving.command import serve_rm, tokenize_function
from rlhf_plugin_reward_model.serving.protocol import ScoreRequest
from rlhf_testing.fakes import FakeEngine
from rlhf_testing.tiny import tiny_tokenizer

from .advised_case import Advised
from .advised_requests import changed_environment


def speaker(sees, max_length=256):
    from rlhf_core.contracts import SamplingParams

    return Speaker(
        FakeEngine(),
        Stage().renderer,
        sampling=SamplingParams(max_new_tokens=4),
        seed=0,
        piece=0,
        max_length=max_length,
        images=ImageReader(MediaLoader(MediaOptions(folder="media")), Pads()) if sees else None,
    )


def attached(sees):
    ONE.save("picture.png")
    apply("/image picture.png", ChatHistory(None), speaker(sees))


async def talk(max_length, reset):
    history = ChatHistory(None)
    history.ask("one? " * 9)
    history.answer("1")
    if reset:
        apply("/reset", history, speaker(False))
    history.ask("?")
    async for _ in speaker(False, max_length).answer(history.messages, turn=1, attempt=0):
        pass


def remote(url=None, model="m", key=None, retries=2, faults=0, installed=True):
    """Ask a server of ours, which wants a key if ``key`` is not None."""
    extra = [one for one in requires("rlhf-plugin-inference") if one.startswith("httpx2")]
    assert extra
    assert all("remote" in one for one in extra), extra

    class Keyed(FakeServer):
        def _handler(self):
            handler = super()._handler()
            status = 200 if key is None else 401
            right = "Bearer right"
            handler.do_GET = lambda self: self._send(
                200 if self.headers.get("authorization") == right else status,
                {},
                b'{"data": [{"id": "m"}]}',
            )
            return handler

    found = sys.modules.get("httpx2")
    with contextlib.ExitStack() as stack:
        server = Keyed()
        stack.callback(server.close)
        stack.enter_context(changed_environment(OPENAI_API_KEY=key or None))
        server.faults = [500] * faults
        if not installed:
            sys.modules["httpx2"] = None
            stack.callback(sys.modules.__setitem__, "httpx2", found)
        answers(server, retries=retries, model=model, **({} if url is None else {"url": url}))


def scored(input, sends):
    options = ServeConfig(path="model", input=input)
    end = SequenceEnd(scored=(), at_end=False, others=frozenset(), words=(), text_end=None)
    stand_in = SimpleNamespace(tokenizer=tiny_tokenizer(), end=end)
    request = ScoreRequest(
        queries=["12"],
        prompts=["1"] if sends else None,
        token_ids=[tiny_tokenizer().encode("12")] if sends else None,
    )
    tokenize_function(options, stand_in)(request)


def listening(host, port, taken):
    """Serve a model that is not there, which is found once the port is open."""
    with contextlib.ExitStack() as stack:
        if taken:
            other = stack.enter_context(socket.socket())
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1] if port is None else port
        try:
            serve_rm(["nowhere", "--host", host, "--port", str(port), "--auth", "true"])
        except Exception as error:
            if "nowhere" not in str(error):
                raise


SERVERS_ASKED = {
    "rlhf_plugin_inference/chat/slash_commands.py:_attach": [
        Advised(
            call=attached,
            wrong={"sees": False},
            told={"start rlhf chat with --model.vision, such as vlm": {"sees": True}},
        )
    ],
    "rlhf_plugin_inference/chat/speaker.py:answer": [
        Advised(
            call=talk,
            wrong={"max_length": 40, "reset": False},
            told={
                "Forget it with /reset": {"reset": True},
                "start with a larger --chat.max_length": {"max_length": 400},
            },
        )
    ],
    "rlhf_plugin_inference/evaluate/remote/client.py:open": [
        Advised(
            call=remote,
            wrong={"installed": False},
            told={"pip install 'rlhf-plugin-inference[remote]'": {"installed": True}},
            given=("--remote.url",),
        ),
        Advised(
            call=remote,
            wrong={"url": "http://127.0.0.1:1/v1"},
            told={"Start it, or correct the address": {"url": None}},
            given=("--remote.url",),
        ),
    ],
    "rlhf_plugin_inference/evaluate/remote/client.py:_refuse_key": [
        Advised(
            call=remote,
            wrong={"key": ""},
            told={"Put it into the environment variable OPENAI_API_KEY": {"key": "right"}},
            given=("--remote.url", "--remote.key_variable"),
        )
    ],
    "rlhf_plugin_inference/evaluate/remote/client.py:_check_model": [
        Advised(
            call=remote,
            wrong={"model": "other"},
            told={"which has m": {"model": "m"}},
            given=("--remote.model",),
        )
    ],
    "rlhf_plugin_inference/evaluate/remote/client.py:answer": [
        Advised(
            call=remote,
            wrong={"faults": 3, "retries": 2},
            told={"For more attempts raise --remote.retries": {"retries": 3}},
        )
    ],
    "rlhf_plugin_reward_model/serving/command.py:tokenize": [
        Advised(
            call=scored,
            wrong={"input": "ids", "sends": False},
            told={
                "Set send_token_ids = true in the http reward": {"sends": True},
                "start the server with --input text": {"input": "text"},
            },
        )
    ],
    "rlhf_plugin_reward_model/serving/command.py:_listening": [
        Advised(
            call=listening,
            wrong={"host": "127.0.0.1", "port": None, "taken": True},
            told={"Choose another, or 0 for any free one": {"port": 0}},
            given=("--port",),
        ),
        Advised(
            call=listening,
            wrong={"host": "192.0.2.1", "port": 0, "taken": False},
            told={
                "Give an address of this machine, such as --host 127.0.0.1, and a port that you may open; --port 0 "
                "takes any free one": {"host": "127.0.0.1"}
            },
        ),
    ],
}
"""Place -> calls, one for each message."""
