"""The page on 127.0.0.1, at an address that holds a token. It is read anew where a run has gone on."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlhf_core import ConfigError, RLHFError

from .paper.contents import Contents, require_run
from .paper.html import page

HOST = "127.0.0.1"
_SECONDS = 30.0
"""Seconds that a connection may say nothing."""
_FILES = (
    "metrics.jsonl",
    "samples.jsonl",
    "eval_samples.jsonl",
    "config.toml",
    "ledger.jsonl",
    "tokens",
)

Read = Callable[[], Contents]


def serve(runs: Sequence[Path], read: Read, port: int) -> None:
    """Serve the page until Ctrl-C, and print its address.

    Raises:
        ConfigError: a folder is no run folder, or the port is taken.
    """
    for run in runs:
        require_run(run)
    server, address = server_of(runs, read, port)
    with server:
        print(f"{address}\nOpen this address on this machine; Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


def server_of(runs: Sequence[Path], read: Read, port: int) -> tuple[ThreadingHTTPServer, str]:
    """Return a server that listens on 127.0.0.1, and the address of its page.

    Raises:
        ConfigError: the port is taken.
    """
    token = secrets.token_urlsafe(24)
    pages = _Pages(runs, read)
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(f"/{token}/", pages))
    except OSError as error:
        raise ConfigError(
            f"--port {port}: cannot listen there ({error.strerror}); choose another, or leave it out for a free one",
            code="usage/port-taken",
        ) from error
    server.daemon_threads = True
    return server, f"http://{HOST}:{server.server_port}/{token}/"


class _Pages:
    """The page of now: read again once a file of a run has changed."""

    def __init__(self, runs: Sequence[Path], read: Read) -> None:
        self._runs, self._read = runs, read
        self._lock = threading.Lock()
        self._state: object = None
        self._page = b""

    def current(self) -> bytes:
        with self._lock:  # a second request waits for the page of the first
            state = [_state(run / name) for run in self._runs for name in _FILES]
            if state != self._state:
                self._page = b"".join(page(self._read()))
                self._state = state
            return self._page


def _state(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _handler(place: str, pages: _Pages) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests: the page at one place, nothing anywhere else."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_GET(self) -> None:
            # Another name in Host is a site whose name was made to lead here; its scripts may not read the page.
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in (HOST, "localhost") or not secrets.compare_digest(
                self.path.partition("?")[0].encode(), place.encode()
            ):
                self.send_error(404)
                return
            try:
                status, kind, body = 200, "text/html", pages.current()
            except RLHFError as error:  # such as a run folder that was moved away
                status, kind, body = 503, "text/plain", f"{error}\n".encode()
            self.send_response(status)
            for name, value in {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
                "Cross-Origin-Resource-Policy": "same-origin",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: the path holds the token."""

    return Handler
