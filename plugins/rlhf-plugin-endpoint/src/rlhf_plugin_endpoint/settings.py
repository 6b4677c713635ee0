"""Settings of the endpoint's parts, from the executor's options."""

from __future__ import annotations

from .config import EndpointConfig
from .episode.session import SessionLimits
from .routes import RouteOptions
from .web.exchange import HttpLimits

RECEIVE_TIMEOUT_S = 60.0
"""Seconds for a client to send a whole request."""
IDLE_TIMEOUT_S = 300.0
"""Seconds for which a client may keep an unused connection."""
SEND_TIMEOUT_S = 60.0
"""Seconds for which a client may leave a reply unread."""


def session_limits(config: EndpointConfig) -> SessionLimits:
    """Return the limits of an episode."""
    return SessionLimits(
        max_requests=config.max_requests,
        max_concurrency=config.max_concurrency,
        max_tokens=config.max_tokens,
        request_timeout_s=config.request_timeout_s,
        keeps_thoughts=config.thoughts == "keep",
        measures_all=config.trace_folder is not None,
        leaves_forms=config.overrides == "ignore",
    )


def http_limits(config: EndpointConfig) -> HttpLimits:
    """Return the limits of the server."""
    return HttpLimits(
        max_body_bytes=int(config.max_body_mib * 2**20),
        max_connections=config.max_connections,
        receive_timeout_s=RECEIVE_TIMEOUT_S,
        idle_timeout_s=IDLE_TIMEOUT_S,
        send_timeout_s=SEND_TIMEOUT_S,
    )


def route_options(config: EndpointConfig) -> RouteOptions:
    """Return what all routes share."""
    return RouteOptions(
        models=config.models,
        max_n=config.max_n,
        ignores_overrides=config.overrides == "ignore",
    )
