"""The command ``rlhf serve-rm``: checks options, opens the port, loads the model, and serves until a signal ends it."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core import ConfigError, RewardError
from rlhf_trainer.inference import LEAVE_S, Interrupts, leave_within

from ..config import ServeConfig, StepModelOptions
from . import protocol
from .flags import parse_flags
from .protocol import BadRequest, ScoreRequest

if TYPE_CHECKING:
    from ..scoring import Scorer
    from ..steps import Reduction, SteppedText
    from .app import TokenizeFunction
    from .batcher import ScoreFunction

_ABOUT = (
    "Serve a reward model over HTTP in OpenRLHF's protocol: POST /get_reward, GET /health. "
    "Listens on this machine alone and asks for a token, unless told otherwise."
)


def serve_rm(words: Sequence[str]) -> int:
    """Serve until SIGTERM, Ctrl-C or SIGHUP, finish the requests in work, and return the exit code.

    Raises:
        ConfigError: an option is wrong, the port is taken, or the model cannot be loaded.
    """
    options = parse_flags(
        ServeConfig, words, command="rlhf serve-rm", positional="path", about=_ABOUT
    )
    _check_reach(options)
    token, said = _token(options)
    with _listening(options.host, options.port) as listener:
        # Imported after the port is open: a taken port is an error at once, while imports and the model take minutes.
        model = _load(options)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {model.describe()}", flush=True)
        print(f"url:   http://{shown}:{port}{protocol.PATH}", flush=True)
        print(f"token: {said}", flush=True)
        _serve(options, model, token, listener)
    return 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model as the server needs it."""

    describe: Callable[[], str]
    tokenize: TokenizeFunction
    score: ScoreFunction
    """Returns the scores of what ``tokenize`` returns."""


def _load(options: ServeConfig) -> ServedModel:
    from ..scoring import Scorer

    if options.steps != "none":
        return step_model(options, options.steps)
    scorer = Scorer(options)
    return ServedModel(scorer.describe, tokenize_function(options, scorer), scorer.scores)


def step_model(options: ServeConfig, reduction: Reduction) -> ServedModel:
    """Load a process reward model; a response gets one number of the probabilities that its steps are good.

    Raises:
        ConfigError: the model cannot be loaded, or nothing says what stands behind its steps.
    """
    from ..steps import StepScorer, reduced

    chosen = {name: getattr(options, name) for name in StepModelOptions.model_fields}
    scorer = StepScorer(StepModelOptions(**chosen))

    def tokenize(request: ScoreRequest) -> list[SteppedText]:
        if request.prompts is None:
            raise BadRequest("this server scores the steps behind prompts; expected 'prompts'")
        return [
            scorer.text(*_divided(query, prompt))
            for query, prompt in zip(request.queries, request.prompts, strict=True)
        ]

    def score(texts: Sequence[SteppedText]) -> list[float | RewardError]:
        return [
            found if isinstance(found, RewardError) else reduced(found, reduction)
            for found in scorer.probabilities(texts)
        ]

    return ServedModel(scorer.describe, tokenize, score)


def _divided(query: str, prompt: str) -> tuple[str, str]:
    """Return the prompt and the response of a query."""
    if not query.startswith(prompt):
        raise BadRequest("a query does not begin with its prompt, behind which the steps are")
    return prompt, query[len(prompt) :]


def tokenize_function(
    options: ServeConfig, scorer: Scorer
) -> Callable[[ScoreRequest], list[Sequence[int]]]:
    """Return the function that makes token ids of a request, as the option ``input`` says."""
    from ..inputs import ScoredInputs

    inputs = ScoredInputs(scorer.tokenizer, scorer.end)

    def tokenize(request: ScoreRequest) -> list[Sequence[int]]:
        if options.input == "text":
            return [inputs.text(query) for query in request.queries]
        if request.token_ids is None or request.prompts is None:
            raise BadRequest(
                "this server scores token ids, and the request has no token_ids and prompts. Set send_token_ids = "
                "true in the http reward, or start the server with --input text"
            )
        pairs = zip(request.token_ids, request.prompts, strict=True)
        return [inputs.sampled(ids, prompt) for ids, prompt in pairs]

    return tokenize


def _serve(
    options: ServeConfig, model: ServedModel, token: str | None, listener: socket.socket
) -> None:
    import uvicorn

    from .app import make_app
    from .batcher import Batcher
    from .stopping import ServerEnd, StoppableServer

    batcher = Batcher(
        model.score, batch_tokens=options.batch_tokens, max_waiting=options.max_waiting
    )
    # Requests of clients that are gone, and those that were not sent whole, hold up no end.
    stop = ServerEnd(options.stop_timeout_s)
    app = make_app(
        batcher,
        model.tokenize,
        token=token,
        max_body_bytes=options.max_body_mib * 2**20,
        request_timeout_s=options.request_timeout_s,
        stop=stop,
    )
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    with Interrupts() as interrupts:
        StoppableServer(config, stop, interrupts).run(sockets=[listener])
    # A forward pass that nobody waits for may still be in work, and no thread can be stopped.
    leave_within(LEAVE_S, 0)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Listen at once: on Linux two sockets may both bind a port, but only one of them can listen.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--port {port}: in use at {host}. Choose another, or 0 for any free one.",
                code="usage/port-taken",
            ) from error
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror or error}. Give an address of this "
            "machine, such as --host 127.0.0.1, and a port that you may open; --port 0 takes any free one.",
            code="usage/port-taken",
        ) from error
    return listener


def _check_reach(options: ServeConfig) -> None:
    if not options.auth and not _is_loopback(options.host):
        raise ConfigError(
            f"--auth false with --host {options.host}: anybody who reaches this machine could ask. Leave --auth on, "
            "or listen at 127.0.0.1 and forward the port.",
            code="usage/open-server",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(options: ServeConfig) -> tuple[str | None, str]:
    """Return the token and the text to print about it, which never contains a token that the user has chosen."""
    if not options.auth:
        return None, "none is asked for; whoever is on this machine can ask"
    if chosen := os.environ.get(options.token_env, "").strip():
        return chosen, f"the one in {options.token_env}"
    made = secrets.token_urlsafe(24)
    return made, f"{made} (made up for this run; set {options.token_env} to it where you train)"
