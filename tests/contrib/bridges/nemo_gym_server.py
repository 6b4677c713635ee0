"""Servers that speak NeMo Gym's protocols as its source of August 2026 does, and break them.

``tools`` counts by a tool and verifies the count, ``steps`` replays follow-ups, ``agent`` plays ``/run``: it asks a
model server. The row's ``fault`` says what breaks, and where.
"""

import secrets

import httpx2
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from tests.deadlines import HANG_S

FAULTS = {
    "text": b"<html>",
    "list": b"[]",
    "deep": b"[" * 100_000,
    "huge": b" " * 2**21,
    "nan": b'{"reward": NaN}',
    "none": b"{}",
    "words": b'{"reward": "high"}',
    "vast": b'{"reward": 1' + b"0" * 400 + b"}",
    "observation": b'{"reward": 0.0, "observation": 5}',
    "info": b'{"reward": 0.0, "info": []}',
    "outputs": b'{"reward": 0.0, "info": {"tool_outputs": [{}]}}',
}
counts = {}
closed = []
seen = {}


def session_of(request):
    name = request.cookies.get("session") or secrets.token_hex(8)
    return name, {"set-cookie": f"session={name}; path=/; httponly"}


def fault_in(row, path):
    fault = row.get("fault", {}).get(path)
    if fault == "error":
        return Response("no such session", status_code=500)
    return Response(FAULTS[fault]) if fault else None


async def seed_session(request):
    row = await request.json()
    name, headers = session_of(request)
    counts[name] = row.get("initial_count", 0)
    return fault_in(row, "/seed_session") or JSONResponse({}, headers=headers)


async def increment(request):
    name, _ = session_of(request)
    body = await request.json()
    if not isinstance(body.get("count"), int):
        return JSONResponse({"detail": "count: not an integer"}, status_code=422)
    counts[name] += body["count"]
    return JSONResponse({"count": counts[name]})


async def verify(request):
    row = await request.json()
    seen["response"] = row["response"]
    name, _ = session_of(request)
    answer = {
        **row,
        "reward": float(counts.get(name) == row.get("expected_count")),
        "extracted": True,
        "reward_components": {"format": 1.0},
    }
    return fault_in(row, "/verify") or JSONResponse(answer)


async def reset(request):
    row = await request.json()
    name, headers = session_of(request)
    counts[name] = 0
    answer = {"observation": row.get("greeting"), "info": {"supports_explicit_close": True}}
    return fault_in(row, "/reset") or JSONResponse(answer, headers=headers)


async def step(request):
    row = await request.json()
    name, _ = session_of(request)
    counts[name] += 1
    items = row["response"]["output"]
    outputs = [
        {"call_id": item["call_id"], "output": item["arguments"]}
        for item in items
        if item["type"] == "function_call"
    ]
    follow_ups = row.get("follow_ups", [])
    done = counts[name] > len(follow_ups)
    answer = {
        "observation": None if done else follow_ups[counts[name] - 1],
        "reward": 0.5,
        "terminated": done,
        "truncated": False,
        "info": {"tool_outputs": outputs, "turn": counts[name], "note": "x"},
    }
    return fault_in(row, "/step") or JSONResponse(answer)


async def close(request):
    closed.append(session_of(request)[0])
    return JSONResponse({})


async def run(request):
    """Ask the model once as NeMo Gym's agents do, by a path with the rollout's name or by the parameters alone."""
    row = await request.json()
    if broken := fault_in(row, "/run"):
        return broken
    prefix = f"/ng-rollout/{row['_ng_rollout_id']}" if row.get("by_path") else ""
    params = dict(row["responses_create_params"])
    if row.get("by_path"):
        params.pop("metadata")
    async with httpx2.AsyncClient(timeout=HANG_S) as client:
        reply = await client.post(f"{row['model_url']}{prefix}/v1/responses", json=params)
    seen["model"] = reply.json()
    answer = {**row, "response": reply.json(), "reward": 0.25, "truncated": False}
    return JSONResponse(answer)


def described(*handlers):
    """Routes by the names of their handlers, and their description."""
    routes = [Route(f"/{handler.__name__}", handler, methods=["POST"]) for handler in handlers]

    async def openapi(request):
        return JSONResponse({"paths": {route.path: {} for route in routes}})

    return [*routes, Route("/openapi.json", openapi)]


app = Starlette(
    routes=[
        Mount("/tools", routes=described(seed_session, verify, increment)),
        Mount("/steps", routes=described(reset, step, close)),
        Mount("/agent", routes=described(run)),
    ]
)
