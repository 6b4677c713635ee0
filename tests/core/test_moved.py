"""Names of modules that have left the core: what they give, what they say, and what happens without the package."""

import importlib
import subprocess
import sys
import warnings

import pytest

import rlhf_core.contracts
from rlhf_core.moved import MOVED, MovedModules, new_name


@pytest.fixture
def forgotten(monkeypatch):
    """Old names that this process has not imported yet."""
    for name in list(sys.modules):
        if new_name(name) is not None or name in {old.rpartition(".")[0] for old in MOVED} - {
            "rlhf_core"
        }:
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("old", MOVED)
@pytest.mark.usefixtures("forgotten")
def test_an_old_name_gives_the_same_module_and_says_the_new_name(old):
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now") as seen:
        found = importlib.import_module(old)

    assert found is importlib.import_module(MOVED[old])
    assert found.__spec__.name == found.__name__ == MOVED[old]
    assert {each.filename for each in seen} == {importlib.__file__}


@pytest.mark.usefixtures("forgotten")
def test_a_module_below_an_old_name_is_not_loaded_a_second_time():
    with pytest.warns(DeprecationWarning, match="is rlhf_testing"):
        from rlhf_core.testing.fakes import EOS_ID, FakeEngine  # noqa: F401
    import rlhf_testing.fakes

    assert FakeEngine is rlhf_testing.fakes.FakeEngine


@pytest.mark.usefixtures("forgotten")
def test_the_warning_names_the_line_that_imports():
    with pytest.warns(DeprecationWarning, match="is rlhf_weights now") as seen:
        from rlhf_core.weights import Place  # noqa: F401

    assert [each.filename for each in seen] == [__file__]


@pytest.mark.usefixtures("forgotten")
def test_what_was_not_public_is_gone():
    with pytest.raises(ModuleNotFoundError, match=r"rlhf_core\.loop"):
        importlib.import_module("rlhf_core.loop")
    with pytest.raises(ModuleNotFoundError, match=r"rlhf_core\.processes\.guarded"):
        importlib.import_module("rlhf_core.processes.guarded")


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ModuleNotFoundError, match=r"\n  pip install rlhf-data$"):
        MovedModules().find_spec("rlhf_core.data")


def test_an_import_of_the_core_alone_neither_warns_nor_imports_a_library():
    code = (
        "import rlhf_core, sys; print([name for name in sys.modules if name.startswith('rlhf_')])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )

    assert "rlhf_core.errors" in done.stdout
    assert "rlhf_data" not in done.stdout


def test_names_that_never_moved_are_left_to_python():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert MovedModules().find_spec("rlhf_core.contracts") is None
        assert MovedModules().find_spec("json") is None


def test_a_name_that_left_a_module_is_found_there_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"is rlhf_weights\.LinkedEngine now") as seen:
        from rlhf_core.contracts import LinkedEngine
    import rlhf_weights

    assert LinkedEngine is rlhf_weights.LinkedEngine
    assert {each.filename for each in seen} == {__file__}
    with pytest.raises(AttributeError, match="has no attribute 'NeverThere'"):
        rlhf_core.contracts.NeverThere  # noqa: B018


@pytest.mark.parametrize("name", ["ImportanceWeights", "importance_metrics", "importance_weights"])
def test_formulas_of_corrections_are_found_in_the_core_s_math_with_a_warning(name):
    with pytest.warns(
        DeprecationWarning, match=rf"is rlhf_plugin_algorithms\.\w+\.\w+\.{name} now"
    ):
        assert callable(getattr(importlib.import_module("rlhf_core.math"), name))


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A package of two folders, and one that has become a part of it."""
    files = {
        "whole/__init__.py": "",
        "whole/left/__init__.py": "",
        "whole/left/one.py": "",
        "whole/right/__init__.py": "",
        "whole/right/two.py": "class Two: ...",
        "whole/kept/__init__.py": "",
        "whole/kept/three.py": "",
        "part/__init__.py": "from rlhf_core.moved import moved_package\n"
        "moved_package(__name__, 'whole.left', 'whole.right', below='whole.kept')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("rlhf_core.moved.MOVED", dict(MOVED))
    monkeypatch.setattr("rlhf_core.moved._PACKAGES", {})
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("whole", "part")]:
        del sys.modules[name]


@pytest.mark.usefixtures("parts")
def test_the_modules_of_a_package_that_became_a_part_are_found_with_one_warning():
    with pytest.warns(
        DeprecationWarning, match=r"part had is in whole\.left, whole\.right"
    ) as seen:
        import part.one
    import whole.kept.three
    import whole.left.one
    import whole.right.two
    from part.below import three
    from part.two import Two

    assert part.one is whole.left.one
    assert Two is whole.right.two.Two
    assert three is whole.kept.three
    assert {each.filename for each in seen} == {__file__}
    with pytest.raises(ModuleNotFoundError, match=r"part\.four"):
        importlib.import_module("part.four")
