"""The address of a server, and what a request there carries."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_core import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is."""

    secure: bool
    """Whether it is spoken to through TLS."""
    host: str
    port: int
    path: str
    """Beginning of each of the server's own paths: empty, or a path that begins with a slash."""
    token: str = ""
    """Bearer token; empty: none."""

    @property
    def web_socket(self) -> str:
        """The address of sessions."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.secure else 'ws'}://{host}:{self.port}{self.path}/ws"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{self.path}"


def local_address(port: int) -> Address:
    """Return the address of a server on this machine that listens at 127.0.0.1."""
    return Address(secure=False, host="127.0.0.1", port=port, path="")


def address_of(url: str, bearer_file: str) -> Address:
    """Return the address of a running server.

    Raises:
        ConfigError: the URL is none, the token's file has none, or the token would be sent in the clear to another
            machine.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query:
        raise ConfigError(
            f"url = {url!r}: expected http://HOST:PORT, or https://HOST/PATH, without a query",
            code="environment/address",
        )
    secure = parts.scheme == "https"
    token = _token(bearer_file) if bearer_file else ""
    if token and not secure and not _is_loopback(parts.hostname):
        raise ConfigError(
            f"url = {url!r} with bearer_file: the token would be sent unencrypted to another machine; expected "
            "https://, or a tunnel to 127.0.0.1",
            code="environment/token-unencrypted",
        )
    return Address(
        secure=secure,
        host=parts.hostname,
        port=port or (443 if secure else 80),
        path=parts.path.rstrip("/"),
        token=token,
    )


def _token(file: str) -> str:
    try:
        token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"bearer_file {file}: expected a file with a token ({error})",
            code="environment/token-file",
        ) from error
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"bearer_file {file}: expected one token of printable ASCII characters",
            code="environment/token-characters",
        )
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
