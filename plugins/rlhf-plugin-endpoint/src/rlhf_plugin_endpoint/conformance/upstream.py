"""The scripted policy as an HTTP server in vLLM's form, for endpoints that stand in front of another server.

It renders every request anew, as such servers do, and returns ``prompt_token_ids`` and ``token_ids``, as vLLM does for
who asks with ``return_token_ids``. Control words in contents are ordinary text here, so what goes wrong is the
endpoint's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlhf_core.contracts import Stop

from .chat_format import KitRenderer
from .policy import SampledAnswer, ScriptedPolicy

MODEL = "policy"
MAX_NEW_TOKENS = 10_000


@contextmanager
def vllm_like_server(policy: ScriptedPolicy) -> Iterator[str]:
    """Serve a policy, and give the server's address without ``/v1``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                policy.started.set()
                policy.wait()
                self._reply(200, chat_completion(policy, body))
            except RuntimeError as error:
                self._reply(500, {"error": {"message": str(error), "type": "server_error"}})

        def _reply(self, status: int, value: Mapping[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chat_completion(policy: ScriptedPolicy, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a body of ``/v1/chat/completions``.

    Raises:
        RuntimeError: the policy fails.
    """
    renderer = KitRenderer()
    messages = [{**each, "content": _text(each.get("content"))} for each in body["messages"]]
    stop = body.get("stop") or ()
    answer = policy.sample(
        renderer.render(messages, body.get("tools") or ()),
        max_new_tokens=body.get("max_tokens")
        or body.get("max_completion_tokens")
        or MAX_NEW_TOKENS,
        stop=[stop] if isinstance(stop, str) else stop,
        temperature=1.0 if body.get("temperature") is None else body["temperature"],
    )
    read = renderer.parse(answer.token_ids)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": _cut(read.text if read.content is None else read.content, stop),
        "reasoning": read.reasoning or None,
        "tool_calls": [
            {
                "id": f"call-{len(policy.record)}-{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(read.tool_calls)
        ],
    }
    return {
        "id": f"chatcmpl-{len(policy.record)}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "prompt_token_ids": list(answer.prompt_ids),
        "choices": [_choice(answer, message, renderer)],
        "usage": {
            "prompt_tokens": len(answer.prompt_ids),
            "completion_tokens": len(answer.token_ids),
            "total_tokens": len(answer.prompt_ids) + len(answer.token_ids),
        },
    }


def _choice(
    answer: SampledAnswer, message: Mapping[str, Any], renderer: KitRenderer
) -> dict[str, Any]:
    reason = "tool_calls" if message["tool_calls"] else "stop"
    entries = [
        {
            "token": f"token_id:{token}",
            "logprob": logprob,
            "bytes": list(renderer.decode([token]).encode("utf-8", "surrogatepass")),
            "top_logprobs": [],
        }
        for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    return {
        "index": 0,
        "message": message,
        "token_ids": list(answer.token_ids),
        "logprobs": {"content": entries},
        "finish_reason": "length" if answer.stop is Stop.LENGTH else reason,
    }


def _text(content: object) -> str:
    """Return a content as text; parts are joined."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content or "")


def _cut(text: str, stop: str | list[str] | tuple[str, ...]) -> str:
    for mark in [stop] if isinstance(stop, str) else stop:
        text = text.partition(mark)[0]
    return text
