"""The command ``rlhf env serve``: an environment behind an address, for runs with ``isolation = "remote"``."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rlhf_core import plugins as plugin_loader
from rlhf_guard.environments.listening import EnvironmentListener, token_of


def serve(
    name: Annotated[str, typer.Argument(help="environment: NAME, PLUGIN:NAME or FILE.py:CLASS")],
    token_file: Annotated[
        Path, typer.Option(help="file with the token that runs need; created if it does not exist")
    ],
    host: Annotated[str, typer.Option(help="address to listen at")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="port to listen at; 0: a free port, which is printed"),
    ] = 0,
) -> None:
    """Serve an environment until Ctrl-C or SIGTERM. Options of the environment come from each run."""
    registered = plugin_loader.load().get("rlhf_environments", name)
    token = token_of(token_file)
    if not _is_loopback(host):
        print(
            f"warning: {host} can be reached from elsewhere, and token and episodes are not encrypted",
            file=sys.stderr,
        )
    listener = EnvironmentListener(registered, token)

    def ready(used: int) -> None:
        print(
            f"serving {registered.name} ({registered.origin}) at {host}:{used}, token in {token_file}",
            flush=True,
        )

    asyncio.run(_until_terminated(listener, host, port, ready))


async def _until_terminated(
    listener: EnvironmentListener, host: str, port: int, ready: Callable[[int], None]
) -> None:
    serving = asyncio.ensure_future(listener.serve(host, port, ready))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    # Ended by a signal, the server has closed its episodes, which is how it is meant to end.
    await asyncio.wait({serving})
    if not serving.cancelled():
        serving.result()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
