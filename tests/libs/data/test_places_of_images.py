"""Words for places of images that other trainers read: they stay words, and each is named once."""

from tests.images import noisy, saved

from rlhf_core.media.loader import MediaLoader, MediaOptions
from rlhf_data.row_images import RowImages


def test_a_place_of_another_trainer_stays_a_word_and_is_named_once(tmp_path, caplog):
    (tmp_path / "a.png").write_bytes(saved(noisy(6, 4)))
    loader = MediaLoader(MediaOptions(folder=str(tmp_path / "media")))
    images = RowImages(loader=loader, folder=tmp_path)

    def texts(text):
        prompt = ({"role": "user", "content": text},)
        ((message),) = images.measuring().chat({"images": ["a.png"]}, prompt)
        return [part.get("text", "an image") for part in message["content"]]

    for _ in range(3):
        assert texts("<image 1>?") == ["an image", "<image 1>?"]
    assert texts("<img> or <image>?") == ["<img> or ", "an image", "?"]

    assert [one.partition(" in a text")[0] for one in caplog.messages] == ["<image 1>"]
