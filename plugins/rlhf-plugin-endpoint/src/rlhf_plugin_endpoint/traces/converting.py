"""From episodes to traces and back.

What a trace has no field for stands in ``metadata``: the agent, the turn's stop and reward, the version of the weights
where all tokens have one, and the images of the input, as references with their first token and length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core import DataError
from rlhf_core.contracts import Completion, Stop, Uid
from rlhf_core.media import MediaProblem, MediaRef, MediaSpan
from rlhf_episodes import EpisodeGraph
from rlhf_episodes.traces import TrainingTrace, TrainingTurn


def trace_from_graph(graph: EpisodeGraph) -> TrainingTrace:
    """Return the requests of an episode, in the order of the graph; discarded ones are left out.

    Raises:
        DataError: a log-prob was not measured (``Completion.logprobs`` are NaN).
    """
    return TrainingTrace(
        turns=tuple(
            _turn(
                f"{graph.uid}/{node.index}",
                node.input_ids.tolist(),
                node.completion,
                {"agent": node.agent, "stop": str(node.stop), "reward": node.reward},
                node.media,
            )
            for node in graph.nodes
        )
    )


def graph_from_trace(trace: TrainingTrace, uid: Uid) -> EpisodeGraph:
    """Return the graph of a trace's turns.

    Raises:
        DataError: a completion is empty, only some of its tokens train, which no graph can say, or an image is no
            reference.
    """
    graph = EpisodeGraph(uid)
    for turn in trace.turns:
        count = len(turn.completion_token_ids)
        marks = set(turn.loss_mask[-count:]) if count else set()
        if not count or len(marks) > 1:
            raise DataError(
                f"training trace, turn {turn.node_id!r}: "
                + ("only some of its tokens train" if count else "its completion is empty")
                + "; expected answers that train as a whole, or not at all",
                code="trace/malformed",
            )
        metadata = turn.metadata
        completion = Completion(
            token_ids=np.array(turn.completion_token_ids, dtype=np.int32),
            logprobs=np.array(turn.per_token_logps, dtype=np.float32),
            weight_version=np.full(count, int(metadata.get("weight_version", 0)), dtype=np.int32),
            stop=Stop(metadata.get("stop", Stop.EOS)),
        )
        agent, media = str(metadata.get("agent") or ""), _media(turn)
        node = graph.add(turn.prompt_token_ids, completion, agent, media)
        graph.reward(node, float(metadata.get("reward", 0.0)))
        if marks == {0}:
            graph.discard(node)
    return graph


def _media(turn: TrainingTurn) -> tuple[MediaSpan, ...]:
    try:
        return tuple(
            MediaSpan(
                start=int(each["start"]),
                length=int(each["length"]),
                image=MediaRef.of(each["image"]),
            )
            for each in turn.metadata.get("images") or ()
        )
    except (MediaProblem, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"training trace, turn {turn.node_id!r}: metadata.images: expected start, length and image of each, as "
            f"this package writes them ({type(error).__name__}: {error})",
            code="trace/malformed",
        ) from error


def _turn(
    name: str,
    read: Sequence[int],
    completion: Completion,
    metadata: dict[str, object],
    media: Sequence[MediaSpan],
) -> TrainingTurn:
    count = len(completion.token_ids)
    if media:
        images = [
            {"start": span.start, "length": span.length, "image": span.image.fields()}
            for span in media
        ]
        metadata = {**metadata, "images": images}
    versions = set(completion.weight_version.tolist())
    if len(versions) == 1:
        metadata = {**metadata, "weight_version": versions.pop()}
    return TrainingTurn(
        node_id=name,
        prompt_token_ids=tuple(read),
        completion_token_ids=tuple(completion.token_ids.tolist()),
        per_token_logps=tuple(completion.logprobs.tolist()),
        loss_mask=(0,) * len(read) + (1,) * count,
        metadata=metadata,
    )
