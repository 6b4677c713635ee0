"""An OpenAI-compatible server of the test, with answers and faults as the test wants them."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class FakeServer:
    """Answers ``/models`` and ``/chat/completions``; records all requests.

    Each fault is taken by one request, in order: a status, ``slow``, ``garbage``, ``drop`` or a body.
    """

    def __init__(self):
        self.requests = []
        self.headers = []
        self.faults = []
        self.model_status = 200
        self.answer = lambda body: {"content": "11"}
        self.in_flight = self.most_in_flight = 0
        self.pause_s = 0.0
        self.usage = {"prompt_tokens": 5, "completion_tokens": 2}
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self):
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def respond(self, body):
        """Return status, headers and body of an answer; None: the connection is dropped."""
        with self._lock:
            self.requests.append(body)
            fault = self.faults.pop(0) if self.faults else None
        if fault == "drop":
            return None
        if fault == "slow":
            self.released.wait(30)
            fault = None
        if isinstance(fault, int):
            return fault, {"retry-after": "0"}, b'{"error": "no"}'
        if fault == "garbage":
            return 200, {}, b"<html>proxy</html>"
        if isinstance(fault, dict):
            return 200, {}, json.dumps(fault).encode()
        message = {"role": "assistant", **self.answer(body)}
        reason = message.pop("finish_reason", "stop")
        values = {"choices": [{"message": message, "finish_reason": reason}]}
        if self.usage is not None:
            values["usage"] = self.usage
        return 200, {}, json.dumps(values).encode()

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._send(server.model_status, {}, b'{"data": [{"id": "m"}]}')

            def do_POST(self):
                length = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(length))
                server.headers.append(dict(self.headers))
                with server._lock:
                    server.in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, server.in_flight)
                time.sleep(server.pause_s)
                response = server.respond(body)
                with server._lock:
                    server.in_flight -= 1
                if response is None:
                    self.close_connection = True
                else:
                    self._send(*response)

            def _send(self, status, headers, body):
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # the client gave up, as some tests want

            def log_message(self, *arguments):
                pass

        return Handler


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.close()
