"""The conformance kit of endpoints against OpenEnv's token-capturing server, as released.

    python -m pip install --no-deps --target .peers openenv==0.10.0
    python benchmarks/endpoint_openenv.py [--peers .peers]

The server stands in front of the kit's policy in vLLM's form, which renders each request anew. What counts as trained
is what its own training contract has: each call of ``/sessions/ID/trace_entries`` with its loss mask; paths are the
sequences of ``/sessions/ID/rollout``. Only the capture server is imported, so OpenEnv's other requirements are not
needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from rlhf_plugin_endpoint.conformance import (
    CapturedRow,
    CapturedTrace,
    ScriptedPolicy,
    report,
    run_scenarios,
)
from rlhf_plugin_endpoint.conformance.upstream import MODEL, vllm_like_server

START_S = 30.0


def capture_app(peers: Path, llm_url: str) -> Any:
    """The released server, without the packages around it, whose modules import more than it needs."""
    for name in ("openenv", "openenv.core", "openenv.core.harness"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [str(peers.joinpath(*name.split(".")))]
            sys.modules[name] = module
    from openenv.core.harness.capture.server import create_app

    return create_app(llm_url=llm_url, model=MODEL, engine="vllm", capture_level="tokens")


class OpenEnvEpisode:
    """A session of the server."""

    model = MODEL

    def __init__(self, root_url: str) -> None:
        self.root_url = root_url
        self.api_key = self._call("POST", "/sessions", {"sampling": {"temperature": 1.0}})[
            "session_id"
        ]

    def finish(self) -> CapturedTrace:
        session = f"/sessions/{self.api_key}"
        document = self._call("GET", f"{session}/rollout")
        entries = self._call("GET", f"{session}/trace_entries")["entries"]
        return CapturedTrace(
            rows=tuple(map(_row, entries)),
            num_paths=sum(row["role"] == "agent" for row in document["sequences"]),
        )

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.root_url + path, data, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=START_S) as reply:
            return json.load(reply)


def _row(entry: dict[str, Any]) -> CapturedRow:
    count = len(entry["prompt_token_ids"])
    mask = tuple(map(bool, entry["loss_mask"]))
    logprobs = [
        logprob
        for logprob, trains in zip(entry["per_token_logps"], mask[count:], strict=True)
        if trains
    ]
    return CapturedRow(
        token_ids=(*entry["prompt_token_ids"], *entry["completion_token_ids"]),
        mask=mask,
        logprobs=tuple(logprobs),
    )


class OpenEnvServer:
    """OpenEnv's capture server, for ``run_scenarios``."""

    name, temperature = "openenv 0.10.0, capture server", 1.0

    def __init__(self, peers: Path) -> None:
        self._peers = peers

    @contextmanager
    def episode(self, policy: ScriptedPolicy) -> Iterator[OpenEnvEpisode]:
        with vllm_like_server(policy) as llm_url:
            app = capture_app(self._peers, llm_url)
            config = uvicorn.Config(
                app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            give_up = time.monotonic() + START_S
            while not server.started:
                if time.monotonic() > give_up:
                    raise SystemExit("the server did not start")
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            try:
                yield OpenEnvEpisode(f"http://127.0.0.1:{port}")
            finally:
                server.should_exit = True
                server.force_exit = True
                thread.join(START_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, default=Path(".peers"))
    endpoint = OpenEnvServer(parser.parse_args().peers)
    print(report(endpoint, run_scenarios(endpoint)))


if __name__ == "__main__":
    main()
