"""An HTTP/1.1 server on asyncio, for one handler: limits on size, time and connections, and streams of events."""
