"""A server that speaks OpenEnv's protocol as openenv 0.10.0 does: a number is to be guessed, and faults are planted.

``reset`` takes ``fault``, and a step with a guess takes it as the message that is broken; ``python openenv_server.py
PORT`` serves it. Tests of the protocol run without openenv, tests of its environments with it.
"""

import json
import os
import sys

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

CAPACITY = 4
NUMBERS = {"train": [3, 5, 8], "test": [4]}
ACTION = {
    "properties": {
        "guess": {"type": "integer"},
        "metadata": {"type": "object"},
    },
    "required": ["guess"],
}
open_sessions = []
headers_seen = []


def observation(fields, reward=None, done=False):
    return {"observation": fields, "reward": reward, "done": done}


async def answer_fault(socket, fault):
    """Answer as ``fault`` says; True: it was one."""
    if fault == "silence":
        await socket.receive_text()  # Nothing comes but the end of the line.
    elif fault == "huge":
        await socket.send_text("x" * 2**21)
    elif fault == "text":
        await socket.send_text("<html>")
    elif fault == "deep":
        await socket.send_text("[" * 100_000)
    elif fault == "nan":
        await socket.send_text(
            '{"type": "observation", "data": {"observation": {}, "reward": NaN}}'
        )
    elif fault == "vast":
        data = observation({}, 10**400)
        await socket.send_text(json.dumps({"type": "observation", "data": data}))
    elif fault == "list":
        await socket.send_text("[]")
    elif fault == "type":
        await socket.send_text('{"type": "state", "data": {}}')
    elif fault == "no_observation":
        await socket.send_text('{"type": "observation", "data": {"reward": 1.0}}')
    elif fault == "done":
        data = observation({}) | {"done": "yes"}
        await socket.send_text(json.dumps({"type": "observation", "data": data}))
    elif fault == "hang_up":
        await socket.close(1011)
    elif fault == "raise":
        data = {"message": "no such move", "code": "EXECUTION_ERROR"}
        await socket.send_text(json.dumps({"type": "error", "data": data}))
    elif fault == "die":
        os._exit(3)
    else:
        return False
    return True


async def session(socket):
    await socket.accept()
    headers_seen.append(dict(socket.headers))
    if len(open_sessions) >= CAPACITY:
        data = {"message": "full", "code": "CAPACITY_REACHED"}
        await socket.send_text(json.dumps({"type": "error", "data": data}))
        await socket.close()
        return
    open_sessions.append(socket)
    try:
        await play(socket)
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        open_sessions.remove(socket)


async def play(socket):
    number, fault = 0, None
    while True:
        message = json.loads(await socket.receive_text())
        data = message.get("data", {})
        if message["type"] == "close":
            return
        if message["type"] == "reset":
            fault = data.get("fault")
            row = NUMBERS[data.get("split", "train")]
            number = row[data.get("index", data["seed"] % len(row))]
            if fault and data.get("at") == "reset" and await answer_fault(socket, fault):
                continue
            body = observation({"hint": "guess", "metadata": {"number": number}})
        elif await answer_fault(socket, fault):
            continue
        elif not isinstance(data.get("guess"), int) or data["guess"] > 10:
            problem = {"loc": ["guess"], "msg": "Input should be less than 11"}
            body = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": [problem]}
            await socket.send_text(json.dumps({"type": "error", "data": body}))
            continue
        else:
            right = data["guess"] == number
            hint = "right" if right else "higher" if data["guess"] < number else "lower"
            body = observation({"hint": hint}, float(right), right)
        await socket.send_text(json.dumps({"type": "observation", "data": body}))


async def splits(request):
    return JSONResponse([{"name": "train", "type": "train"}, {"name": "test", "type": "test"}])


async def num_tasks(request):
    return JSONResponse({"num_tasks": len(NUMBERS[(await request.json())["split"]])})


async def task(request):
    asked = await request.json()
    return JSONResponse({"task": {"id": f"{asked['split']}/{asked['index']}"}})


async def health(request):
    return JSONResponse({"status": "healthy"})


async def metadata(request):
    headers_seen.append(dict(request.headers))
    return JSONResponse({"name": "Guess", "description": "", "version": "2.1"})


async def schema(request):
    return JSONResponse({"action": ACTION, "observation": {}, "state": {}})


async def listed(request):
    return JSONResponse(["guess"])


async def text_schema(request):
    return JSONResponse({"action": {"properties": {"note": {"type": "string"}}}})


ROUTES = [
    Route("/health", health),
    Route("/metadata", metadata),
    Route("/schema", schema),
    Route("/list_environments", listed),
    Route("/guess/splits", splits),
    Route("/guess/num_tasks", num_tasks, methods=["POST"]),
    Route("/guess/task", task, methods=["POST"]),
    WebSocketRoute("/ws", session),
]
app = Starlette(routes=[Mount("/text", routes=[Route("/schema", text_schema), *ROUTES]), *ROUTES])
"""The same server under /text takes any text as an action, which is never a guess."""

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
