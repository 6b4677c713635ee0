"""Handles of models that are given rows with images."""

import asyncio

import numpy as np
import pytest
from tests.images import noisy, saved

from rlhf_core.contracts import RoleHandle, TrainBatch
from rlhf_core.media import ImagesOnUse, MediaLoader, MediaOptions, MediaSpan
from rlhf_core.media.loader import Intake
from rlhf_data.learned.sequences import LearnedSequence, SequenceColumns
from rlhf_plugin_supervised.training.images import WITH_ROWS, with_images

CALLS_WITHOUT_ROWS = {"checksum", "save", "load", "export", "offload", "reload", "weights"}


def calls_of(contract) -> set[str]:
    return {name for name in vars(contract) if not name.startswith("_")}


def test_every_call_of_a_handle_is_known():
    assert calls_of(RoleHandle) == {*WITH_ROWS} | CALLS_WITHOUT_ROWS


class Model:
    changes = 7

    def __init__(self) -> None:
        self.seen = []

    def __getattr__(self, name):
        async def call(batch, *args):
            self.seen.append(batch)
            return name, args

        return call


@pytest.mark.parametrize("name", WITH_ROWS)
def test_images_are_in_the_store_when_a_model_gets_them(tmp_path, name):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    loader = MediaLoader(MediaOptions(folder=str(tmp_path / "media")))
    looked_at = loader.take("a.png", tmp_path, Intake(decodes=False, keeps=False, reads=False))
    images = ImagesOnUse(loader)
    images.note([looked_at], lambda index: str(loader.take("a.png", tmp_path)), 0)
    columns = SequenceColumns()
    columns.add(
        0,
        LearnedSequence(
            token_ids=np.arange(4, dtype=np.int32),
            turns=np.array([[3, 4]]),
            media=(MediaSpan(start=0, length=2, image=looked_at),),
        ),
    )
    rows, model = columns.columns(), Model()
    batch = TrainBatch(trajectories=rows, columns={}) if name == "train_step" else rows

    handle = with_images({"policy": model}, images)["policy"]
    assert asyncio.run(getattr(handle, name)(batch, 3)) == (name, (3,))

    (given,) = model.seen
    (span,) = (given.trajectories if name == "train_step" else given).media_of(0)
    assert loader.store.read(span.image) == (tmp_path / "a.png").read_bytes()
    assert handle.changes == 7


def test_without_images_handles_stay_as_they_are():
    roles = {"policy": Model()}

    assert with_images(roles, None) is roles
