"""Images in an episode's graph: each path has its own, and equal tokens of other images are other tokens."""

import numpy as np

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Stop
from rlhf_core.contracts import Completion
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_episodes import EpisodeGraph

PAD = 9


def span(start: int, number: int) -> MediaSpan:
    image = MediaRef(sha256=f"{number:064x}", num_bytes=1, format="png", width=2, height=2)
    return MediaSpan(start=start, length=2, image=image)


def answer(*tokens: int) -> Completion:
    return Completion(
        token_ids=np.array(tokens, dtype=np.int32),
        logprobs=np.zeros(len(tokens), dtype=np.float32),
        weight_version=np.zeros(len(tokens), dtype=np.int32),
        stop=Stop.EOS,
    )


def test_a_path_has_the_images_of_all_its_turns():
    graph = EpisodeGraph(Uid(0, 0))
    graph.add([1, PAD, PAD, 2], answer(3), media=[span(1, 1)])
    graph.add([1, PAD, PAD, 2, 3, PAD, PAD], answer(4), media=[span(1, 1), span(5, 2)])

    (trajectory,) = graph.trajectories()

    assert trajectory.media == (span(1, 1), span(5, 2))
    assert trajectory.token_ids.tolist() == [1, PAD, PAD, 2, 3, PAD, PAD, 4]


def test_the_same_tokens_with_another_image_are_another_path():
    graph = EpisodeGraph(Uid(0, 0))
    graph.add([1, PAD, PAD, 2], answer(3), media=[span(1, 1)])
    node = graph.add([1, PAD, PAD, 2, 3, 5], answer(4), media=[span(1, 2)])

    first, second = graph.trajectories()

    assert node.shared == 1
    assert [first.media, second.media] == [(span(1, 1),), (span(1, 2),)]
    assert second.token_ids.tolist() == [1, PAD, PAD, 2, 3, 5, 4]
    assert second.action_mask.tolist() == [False] * 6 + [True]


def test_a_request_goes_on_with_the_path_of_its_own_images():
    """Two paths of equal tokens, answers included, with different images: only those tell which one is gone on with."""
    graph = EpisodeGraph(Uid(0, 0))
    first = graph.add([1, PAD, PAD, 2], answer(3), media=[span(1, 1)])
    graph.add([1, PAD, PAD, 2], answer(3), media=[span(1, 2)])
    node = graph.add([1, PAD, PAD, 2, 3, 5], answer(4), media=[span(1, 1)])

    one, other = graph.trajectories()

    assert (node.parent, node.shared, node.forked_at) == (first, 5, None)
    assert one.token_ids.tolist() == [1, PAD, PAD, 2, 3, 5, 4]
    assert other.token_ids.tolist() == [1, PAD, PAD, 2, 3]
    assert [one.media, other.media] == [(span(1, 1),), (span(1, 2),)]
