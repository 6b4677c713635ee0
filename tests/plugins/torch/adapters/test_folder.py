"""The base that an adapter names."""

from __future__ import annotations

import pytest

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_torch.adapters.folder import AdapterFolder


@pytest.mark.parametrize(
    ("named", "base", "is_same"),
    [
        (None, "any", True),
        ("", "any", True),
        ("org/Model-1B", "org/Model-1B", True),
        ("org/Model-1B", "/downloads/model-1b", True),
        ("/gone/model", "elsewhere/model", True),
        ("org/Model-1B", "org/Model-3B", False),
        ("there", "here", False),
        ("here", "here/../here", True),
    ],
)
def test_folders_are_compared_as_such_and_names_by_their_ends(
    tmp_path, monkeypatch, named, base, is_same
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = AdapterFolder(path=tmp_path, config={"base_model_name_or_path": named}, shapes={})

    if is_same:
        folder.require_base(base, "do this")
    else:
        with pytest.raises(
            ConfigError,
            match=f"was trained on {named}, and not on {base}.*do this",
            check=has_code("adapter/other-base"),
        ):
            folder.require_base(base, "do this")
