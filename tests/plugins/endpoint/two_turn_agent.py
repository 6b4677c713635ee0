"""The two turns of the environment ``echo_after_hint``, played by an agent of plain HTTP."""

import asyncio
import json
from urllib.parse import urlsplit

import numpy as np


async def agent(context):
    """Show the hint after the first turn, and reward the digit of the second."""
    hint = int(np.random.Generator(np.random.Philox(context.seed)).integers(4))
    parts = urlsplit(context.base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    text = context.prompt
    for _ in range(2):
        body = json.dumps({"model": context.model, "prompt": text}).encode()
        head = (
            f"POST {parts.path}/completions HTTP/1.1\r\nhost: localhost\r\n"
            f"authorization: Bearer {context.api_key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        reply = await reader.readuntil(b"\r\n\r\n")
        length = int(reply.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))["choices"][0]["text"]
        text += f"{answer}hint:{hint}="
    writer.close()
    written = answer.strip()[:1]
    if written == str(hint):
        return 1.0
    return 0.1 * (written.isascii() and written.isdigit())
