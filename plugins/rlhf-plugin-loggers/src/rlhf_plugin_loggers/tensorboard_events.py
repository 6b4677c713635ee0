"""Metrics as TensorBoard event files, without torch and without TensorFlow.

The files are written synchronously, in TensorBoard's own record format. TensorBoard's ``EventFileWriter`` is not used,
because it imports the whole of TensorFlow, through ``tf.io.gfile``, if TensorFlow is installed.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from rlhf_core.storage import writing

from .sample_table import shown_images

if TYPE_CHECKING:
    from rlhf_core.contracts import RolloutSample, RunResult


class TensorBoardEvents:
    """Appends one event per step and evaluation to a new file in ``folder``.

    A resumed run writes a file of its own. The file begins with an event that discards the steps after ``start_step``
    of earlier files, since these steps are done again.

    Args:
        num_images: the most images of samples that an event has; 0: none.
        images_every: steps between events with images; 0: there are none.

    Raises:
        StorageError: the file cannot be written, here as in each method that writes; it ends with the event before, and
            is gone if there is none.
    """

    def __init__(
        self, folder: Path, start_step: int, *, num_images: int = 0, images_every: int = 1
    ) -> None:
        self._num_images = num_images
        self._images_every = images_every
        # TensorBoard reads files in the order of their names, so the time comes first in the name.
        self._path = folder / f"events.out.tfevents.{time.time_ns():019}.{os.getpid()}"
        with writing(str(self._path), self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open(
                "xb", buffering=0
            )  # nothing may be left for close to write
            self._write(Event(file_version="brain.Event:2"))
            if start_step:
                restart = SessionLog(status=SessionLog.START)
                self._write(Event(step=start_step + 1, session_log=restart))

    def rollout_end(self, step: int, samples: Sequence[RolloutSample]) -> None:
        """Write the first image of each of a few samples, as the file has it."""
        if not self._num_images or not self._images_every or step % self._images_every:
            return
        values = [
            Summary.Value(tag=shown.name, image=_image_of(shown.file))
            for shown in shown_images(samples, self._num_images)
        ]
        if values:
            self._write(Event(step=step, summary=Summary(value=values)))

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the step's metrics."""
        self._write_scalars(step, metrics)

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the evaluation's metrics."""
        self._write_scalars(step, metrics)

    def run_end(self, result: RunResult) -> None:
        """Close the file."""
        self._file.close()

    def _write_scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in sorted(metrics.items())
        ]
        self._write(Event(step=step, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        begin, left = self._file.tell(), record.getbuffer()
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            os.ftruncate(self._file.fileno(), begin)
            self._file.close()
            with writing(str(self._path)):  # names it
                raise


def _image_of(file: Path) -> Summary.Image:
    """Return an image's file as TensorBoard keeps images, which a browser decodes."""
    from PIL import Image

    with Image.open(file) as opened:
        width, height = opened.size
    return Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=file.read_bytes()
    )
