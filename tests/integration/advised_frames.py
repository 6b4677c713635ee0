"""Advice on frames of a video, for models and commands that read single images alone."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from rlhf_core.media import Frame, MediaRef, PixelLimits, check_frames
from rlhf_plugin_lab.audit.sequences import _files

from .advised_case import Advised

IMAGE = MediaRef(
    sha256="0" * 64, num_bytes=1, format="png", width=8, height=8, limits=PixelLimits()
)
FRAME = replace(IMAGE, frame=Frame(index=0, count=2, time_s=0.0, rate=2.0))
VIDEO = [{"file": "media/a.png", "frame": 0, "time_s": 0.0}]


def frames(model, image):
    """Give an image to a model that reads videos, or to one that does not."""
    tokens = SimpleNamespace(tokens_of_frames=None) if model == "videos" else SimpleNamespace()
    check_frames([image], tokens)


def audited(images):
    """Find the files of the images of a step."""
    _files(Path(), images)


FRAMES = {
    "rlhf_core/media/spans.py:check_frames": [
        Advised(
            call=frames,
            wrong={"model": "images", "image": FRAME},
            told={
                "choose a model that reads videos (--model)": {"model": "videos"},
                "or give the frames as images": {"image": IMAGE},
            },
        )
    ],
    "rlhf_plugin_lab/audit/sequences.py:_files": [
        Advised(
            call=audited,
            wrong={"images": VIDEO},
            told={"Name a step without them with --step": {"images": []}},
        )
    ],
}
