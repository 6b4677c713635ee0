"""Episodes of bridges without a run."""

import asyncio
import socket
import threading

import pytest
import uvicorn
from tests.deadlines import HANG_S

from rlhf_core.contracts import Action, Stop, Task, Uid


@pytest.fixture
def played():
    """``played(environment, words, seed=0, **row)``: what is seen at first, and the result of each word."""

    async def episode(environment, words, seed, row):
        try:
            seen = await environment.reset(Task(uid=Uid(0, 0), row=row), seed)
            results = []
            for turn, word in enumerate(words):
                text = (
                    word(seen if not results else results[-1].observation)
                    if callable(word)
                    else word
                )
                action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn)
                results.append(await environment.step(action))
                if results[-1].done:
                    break
        finally:
            await environment.close()
        return seen, results

    def play(environment, words, seed=0, **row):
        return asyncio.run(episode(environment, words, seed, row))

    return play


@pytest.fixture(scope="module")
def served():
    """``served(app)``: address of an ASGI application, which is served on a thread."""
    running = []

    def serve(app):
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        running.append((server, listening, thread))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for server, listening, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(HANG_S)
        listening.close()


@pytest.fixture
def nonsense():
    """``nonsense(raw)``: the address of a server that answers each connection with these bytes."""
    open_sockets = []

    def serve(raw, close=True):
        listening = socket.create_server(("127.0.0.1", 0))
        open_sockets.append(listening)

        def answer():
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                open_sockets.append(line)
                line.recv(65536)
                try:
                    line.sendall(raw)
                    if close:
                        line.close()
                except OSError:
                    pass

        threading.Thread(target=answer, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for one in open_sockets:
        one.close()
