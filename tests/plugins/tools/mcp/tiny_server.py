"""A tiny MCP server, by the SDK's own means: over stdio, or with a port over HTTP on loopback."""

import asyncio
import base64
import os
import sys

from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("tiny", log_level="CRITICAL")
CALLS = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def calls() -> int:
    """Count the calls of this server's life."""
    CALLS.append(1)
    return len(CALLS)


@server.tool()
def process() -> int:
    """Return the server's process number."""
    return os.getpid()


@server.tool()
def variables() -> list[str]:
    """Return the names of the environment's variables."""
    return sorted(os.environ)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no such thing")


@server.tool()
async def wait() -> str:
    """Wait for very long."""
    await asyncio.sleep(10**6)
    return "over"


@server.tool()
def picture() -> Image:
    """Draw."""
    return Image(data=base64.b64decode("R0lGODlhAQABAAAAACw="), format="gif")


@server.tool()
def die() -> str:
    """End the server."""
    print("the server gives up", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
