"""The loader among plugins that are broken in every way we could think of: the others still work."""

import logging
import sys
import types

import pytest

from rlhf_core import AmbiguousComponent, Component, PluginError, UnknownComponent, plugins
from rlhf_core.component import Registered
from rlhf_core.contracts import ComponentRef
from rlhf_core.plugins import FORMER, GROUP, empty, load, unregistered
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.listeners import observe

LOSSES = "rlhf_policy_losses"

GOOD = """
from rlhf_core import Component, hookimpl

@hookimpl
def rlhf_policy_losses():
    return [Component(name="{name}_loss", factory=dict, summary="good")]
"""

HOSTILE = {
    "import_error": ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
    "raises": ("raise RuntimeError('at import')", "at import"),
    "exits": ("import sys\nsys.exit(3)", "is not usable: it raised SystemExit: 3"),
    "exits_with_text": ("raise SystemExit('no GPU')", "it raised SystemExit: no GPU"),
    "hook_exits": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_policy_losses(): raise SystemExit",
        "it raised SystemExit",
    ),
    "syntax": ("def broken(:", "invalid syntax"),
    "wrong_argument": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_step_end(step, nonsense): pass",
        "nonsense",
    ),
    "unknown_hook": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_policy_loses(): return []",
        "unknown hook 'rlhf_policy_loses'",
    ),
    "hook_raises": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_policy_losses(): raise OSError('disk')",
        "disk",
    ),
    "returns_none": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_policy_losses(): pass",
        "returned NoneType; expected a list of Component",
    ),
    "returns_text": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_policy_losses(): return ['ppo']",
        "returned a str in its list",
    ),
    "returns_generator": (
        "from rlhf_core import hookimpl\n@hookimpl\ndef rlhf_policy_losses(): yield",
        "returned generator",
    ),
    "no_decorator": (
        GOOD.format(name="unmarked").replace("@hookimpl", ""),
        "its function rlhf_policy_losses has the name of a hook but no @hookimpl; write @hookimpl above it",
    ),
    "bad_config": (
        "from rlhf_core import hookimpl, Component\n@hookimpl\ndef rlhf_policy_losses(): "
        "return [Component(name='x', factory=dict, config=dict)]",
        "expected a subclass of rlhf_core.Config",
    ),
    "bad_name": (
        "from rlhf_core import hookimpl, Component\n@hookimpl\ndef rlhf_policy_losses(): "
        "return [Component(name='My Loss', factory=dict)]",
        "component name 'My Loss'",
    ),
    "twice": (
        "from rlhf_core import hookimpl, Component\n@hookimpl\ndef rlhf_policy_losses(): "
        "return [Component(name='x', factory=dict), Component(name='y', factory=dict, aliases=('x',))]",
        "returns two components called 'x'",
    ),
    "half_good": (
        GOOD.format(name="half")
        + "\n@hookimpl\ndef rlhf_rewards(): raise ValueError('second hook')",
        "second hook",
    ),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution: a module, and the metadata by which it is found."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("RLHF_PLUGINS", raising=False)

    def run(distribution, source, *, group=GROUP, entry_point=None, version="1.2", former=()):
        module = distribution.replace("-", "_").replace(".", "_")
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        name = entry_point or distribution.removeprefix("rlhf-plugin-").removeprefix(
            "rlhf-"
        ).replace("-", "_")
        parts = "".join(f"{each} = rlhf_plugin_{each}\n" for each in former)
        (info / "entry_points.txt").write_text(
            f"[{group}]\n{name} = {module}\n" + (f"[{FORMER}]\n{parts}" if parts else "")
        )

    return run


def failure_of(loaded, name):
    (failure,) = [failure for failure in loaded.failed if failure.name == name]
    return failure


def test_a_good_plugin_is_found_by_its_metadata(install):
    install("rlhf-plugin-acme", GOOD.format(name="acme"))

    loaded = load()

    entry = loaded.get(LOSSES, "acme_loss")
    assert entry.qualified == "acme:acme_loss"
    assert entry.origin == "rlhf-plugin-acme 1.2"
    assert loaded.loaded["acme"] == "rlhf-plugin-acme 1.2"


def test_a_component_of_a_plugin_that_became_a_part_is_found_by_its_old_name(install):
    install("rlhf-plugin-whole", GOOD.format(name="whole"), former=("acme", "other"))

    for loaded in (load(), load(component="acme:whole_loss")):
        with pytest.warns(DeprecationWarning, match="acme:whole_loss is whole:whole_loss now"):
            assert loaded.get(LOSSES, "acme:whole_loss").qualified == "whole:whole_loss"


def test_a_plugin_that_is_still_installed_beside_its_successor_is_refused(install):
    install("rlhf-plugin-acme", GOOD.format(name="whole"))
    install("rlhf-plugin-whole", GOOD.format(name="whole"), former=("acme",))

    loaded = load()

    assert loaded.get(LOSSES, "whole_loss").plugin == "whole"
    told = str(failure_of(loaded, "acme"))
    assert "has become a part of rlhf-plugin-whole 1.2" in told
    assert "pip uninstall rlhf-plugin-acme" in told


def test_another_plugin_may_have_a_name_that_one_had_before_it_became_a_part(install):
    install("rlhf-acme", GOOD.format(name="acme"))
    install("rlhf-plugin-whole", GOOD.format(name="whole"), former=("acme",))

    assert load().get(LOSSES, "acme:acme_loss").origin == "rlhf-acme 1.2"


def test_libraries_are_found_by_their_requirements_not_by_their_description(tmp_path, monkeypatch):
    """No wheel is parsed in full for it: an environment has hundreds, and each run asks."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, end in (
        ("acme-base", "Requires-Dist: rlhf_core<0.2,>=0.1\n\nA library.\n"),
        ("acme-notes", "\nNotes.\n\nRequires-Dist: rlhf-core\n"),
        ("acme-other", "Requires-Dist: rlhf-core2\n\nRequires-Dist: rlhf-core\n"),
    ):
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (info / "METADATA").write_text(header + end)
    parsed = []
    monkeypatch.setattr(
        "importlib.metadata.Distribution.requires", property(lambda self: parsed.append(self))
    )

    found = [logger.name for logger in empty().loggers()]

    assert [name for name in found if name.startswith("acme")] == ["acme_base"]
    assert parsed == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_broken_plugin_is_attributed_and_the_others_work(install, kind):
    source, part = HOSTILE[kind]
    install("rlhf-plugin-acme", GOOD.format(name="acme"))
    install("rlhf-plugin-bad", source)
    install("rlhf-plugin-zeta", GOOD.format(name="zeta"))

    loaded = load()

    failure = failure_of(loaded, "bad")
    assert part in str(failure)
    assert "rlhf-plugin-bad 1.2" in str(failure)
    assert {"acme", "zeta"} <= loaded.loaded.keys()
    assert "bad" not in loaded.loaded
    assert not [
        entry
        for registry in loaded.registries.values()
        for entry in registry
        if entry.plugin == "bad"
    ]
    assert not loaded.manager.has_plugin("bad")


@pytest.mark.parametrize("kind", ["exits", "exits_with_text", "hook_exits"])
def test_a_plugin_that_exits_is_told_with_its_cause(install, kind):
    install("rlhf-plugin-bad", HOSTILE[kind][0])

    (error,) = [failed.error for failed in load().failed if failed.name == "bad"]

    assert has_code("plugin/exited")(error)
    assert isinstance(error.__cause__, SystemExit)


def test_a_function_with_the_name_of_a_hook_needs_its_mark(install):
    install("rlhf-plugin-bad", HOSTILE["no_decorator"][0])

    (error,) = [failed.error for failed in load().failed if failed.name == "bad"]

    assert has_code("plugin/unmarked-hook")(error)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rlhf_reward", "rlhf_rewards"),
        ("rlhf_policy_loss", "rlhf_policy_losses"),
        ("rlhf_on_step_end", "rlhf_step_end"),
    ],
)
def test_for_a_misspelled_hook_the_nearest_one_is_named(install, written, meant):
    imports = "from rlhf_core import hookimpl\n"
    install("rlhf-plugin-bad", f"{imports}@hookimpl\ndef {written}(): return []")
    optional = "@hookimpl(optionalhook=True)\ndef rlhf_of_a_later_core(): return []\n"
    renamed = "@hookimpl(specname='rlhf_rewards')\ndef rewards(): return []\n"
    install("rlhf-plugin-acme", imports + optional + renamed)

    loaded = load()

    (error,) = [failed.error for failed in loaded.failed if failed.name == "bad"]
    assert has_code("plugin/unknown-hook")(error)
    assert f"Did you mean {meant}?" in str(error)
    assert "acme" in loaded.loaded


def test_the_declaration_of_a_hook_may_be_imported_by_its_name(install):
    imports = "from rlhf_core.hookspecs import rlhf_step_end\n"
    install("rlhf-plugin-acme", imports + GOOD.format(name="acme"))

    assert "acme" in load().loaded


def test_all_of_them_together_leave_the_good_one(install):
    for kind, (source, _) in HOSTILE.items():
        install(f"rlhf-plugin-{kind.replace('_', '-')}", source)
    install("rlhf-plugin-acme", GOOD.format(name="acme"))

    loaded = load()

    assert loaded.get(LOSSES, "acme_loss").plugin == "acme"
    assert {failure.name for failure in loaded.failed} >= HOSTILE.keys()


def test_a_plugin_for_another_hook_api_is_not_even_imported(install):
    install("rlhf-plugin-old", "raise SystemError('imported')", group="rlhf.plugins.v0")

    failure = failure_of(load(), "old")

    assert "it is written for hook API 0, this core has 1" in str(failure)


def test_an_entry_point_that_does_not_fit_the_distribution_is_refused(install):
    install("rlhf-plugin-acme", GOOD.format(name="acme"), entry_point="ppo")

    assert "the name that fits the distribution is 'acme'" in str(failure_of(load(), "acme"))


def test_of_two_plugins_with_one_name_neither_is_loaded(install):
    install("rlhf-plugin-acme", GOOD.format(name="acme"))
    install("rlhf-acme", GOOD.format(name="other"))

    loaded = load()

    clashing = [failure for failure in loaded.failed if failure.name == "acme"]
    assert len(clashing) == 2
    assert all("both use this name; uninstall one of them" in str(failure) for failure in clashing)
    assert "acme" not in loaded.loaded


def test_one_component_name_in_two_plugins_needs_the_qualified_name(install):
    install("rlhf-plugin-acme", GOOD.format(name="same"))
    install("rlhf-plugin-zeta", GOOD.format(name="same"))
    loaded = load()

    with pytest.raises(AmbiguousComponent) as caught:
        loaded.get(LOSSES, "same_loss")

    assert "acme:same_loss (rlhf-plugin-acme 1.2)" in str(caught.value)
    assert "zeta:same_loss (rlhf-plugin-zeta 1.2)" in str(caught.value)
    assert loaded.get(LOSSES, "zeta:same_loss").plugin == "zeta"


def test_an_observer_that_raises_is_switched_off_and_the_others_go_on(install, caplog):
    install(
        "rlhf-plugin-raises",
        "from rlhf_core import hookimpl\nseen = []\n@hookimpl\ndef rlhf_step_end(step):\n"
        "    seen.append(step)\n    raise ValueError('cannot log')",
    )
    install(
        "rlhf-plugin-watches",
        "from rlhf_core import hookimpl\nseen = []\n@hookimpl\ndef rlhf_step_end(step, metrics):\n"
        "    seen.append(step)",
    )
    loaded = load("no:loggers")
    modules = {name: loaded.manager.get_plugin(name) for name in ("raises", "watches")}

    with caplog.at_level(logging.ERROR):
        for step in (1, 2, 3):
            observe(loaded, "rlhf_step_end", step=step, metrics={})

    assert modules["raises"].seen == [1]
    assert modules["watches"].seen == [1, 2, 3]
    assert len(caplog.records) == 1
    assert "plugin raises failed in rlhf_step_end" in caplog.text
    assert "cannot log" in caplog.text


def test_an_unknown_name_mentions_the_plugins_that_failed(install):
    install("rlhf-plugin-bad", "import no_such_module_anywhere")
    loaded = load()

    with pytest.raises(
        UnknownComponent,
        match=r"'bad'.*no_such_module_anywhere",
        check=has_code("plugin/unknown-component"),
    ):
        loaded.get(LOSSES, "bad_loss")


def test_a_plugin_that_forgot_its_entry_point_is_told_with_the_lines_to_add(tmp_path, monkeypatch):
    """Nothing finds it, so it was as if it were not installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("rlhf-plugin-acme", "rlhf-acme-library"):
        info = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nRequires-Dist: rlhf-core\n"
        (info / "METADATA").write_text(header)
    # A group that is almost the right one is none.
    (tmp_path / "rlhf_plugin_acme-1.2.dist-info/entry_points.txt").write_text(
        "[rlhf.plugins]\nacme = rlhf_plugin_acme\n"
    )

    says, code = r"rlhf-plugin-acme 1\.2.*acme = 'rlhf_plugin_acme'", "plugin/unknown-component"
    with pytest.raises(UnknownComponent, match=says, check=has_code(code)):
        load("").get("rlhf_policy_losses", "acme")
    own = [failure for failure in unregistered() if "acme" in failure.name]
    assert [failure.origin for failure in own] == ["rlhf-plugin-acme 1.2"]
    assert own[0].error.code == "plugin/no-entry-point"


def test_many_failures_do_not_flood_the_message(install):
    for index in range(5):
        install(f"rlhf-plugin-bad{index}", "raise ValueError('line one\\nline two')")

    with pytest.raises(UnknownComponent) as caught:
        load().get(LOSSES, "bad_loss")

    assert len(str(caught.value).splitlines()) <= 4
    assert "and 3 more, see: rlhf plugins" in str(caught.value)


def test_for_one_component_only_its_plugin_is_imported(install):
    install("rlhf-plugin-first", GOOD.format(name="first"))
    install("rlhf-plugin-second", GOOD.format(name="second"))

    of_one = load("", component="first:first_loss")
    of_any = load("", component="first_loss")
    of_a_file = load("", component="my/losses.py:Loss")

    assert of_one.get(LOSSES, "first_loss").plugin == "first"
    assert list(of_one.loaded) == ["first"]
    assert {"first", "second"} <= set(of_any.loaded)
    assert not of_a_file.loaded


def test_a_plugin_can_be_left_out(install):
    install("rlhf-plugin-acme", GOOD.format(name="acme"))

    loaded = load("no:acme")

    assert "acme" not in loaded.loaded
    assert not [failure for failure in loaded.failed if failure.name == "acme"]


def test_a_name_of_no_plugin_that_is_left_out_is_told_with_a_near_one(install):
    install("rlhf-plugin-acme", GOOD.format(name="acme"))

    near, far = load("no:acne"), load("no:something-else")

    assert "acme" in near.loaded
    failed = failure_of(near, "acne")
    assert has_code("plugin/nothing-left-out")(failed.error)
    assert "no:acme" in str(failed)
    assert "Did you mean" not in str(failure_of(far, "something-else"))
    assert not [failure for failure in load("no:acme").failed if failure.name == "acme"]


def test_a_module_that_is_not_installed_can_be_named(install, tmp_path, monkeypatch):
    (tmp_path / "loose_module.py").write_text(GOOD.format(name="loose"))
    monkeypatch.delitem(sys.modules, "loose_module", raising=False)
    monkeypatch.setenv("RLHF_PLUGINS", "loose_module")

    entry = load().get(LOSSES, "loose_loss")

    assert entry.origin == "loose_module"


def test_a_named_module_that_is_missing_is_a_failure():
    assert "no_such_module" in str(failure_of(load("no_such_module"), "no_such_module"))


def test_a_reference_builds_the_component_with_its_options(install):
    install(
        "rlhf-plugin-acme",
        "from rlhf_core import hookimpl, Component, Config\nclass C(Config):\n    x: int = 1\n"
        "@hookimpl\ndef rlhf_policy_losses():\n    return [Component(name='p', factory=lambda c: c.x, config=C)]",
    )

    assert load().build(ComponentRef(kind=LOSSES, name="acme:p", options={"x": 5})) == 5


def test_distribution_names_become_plugin_names():
    assert plugins._plugin_name("rlhf-plugin-My.Tools") == "my_tools"
    assert plugins._plugin_name("rlhf_env_maze") == "env_maze"
    assert plugins._plugin_name("other") == "other"


def test_registering_twice_is_refused(install):
    install("rlhf-plugin-acme", GOOD.format(name="acme"))
    loaded = load()
    (candidate,) = [found for found in plugins.find() if found.name == "acme"]

    with pytest.raises((ValueError, PluginError)):
        plugins.register(loaded, candidate)


@pytest.mark.parametrize(
    ("hook", "has", "lacks"),
    [
        ("rlhf_train_backends", ("setup", "close"), "train_step"),
        ("rlhf_engines", ("start", "close"), "generate"),
        ("rlhf_runtimes", ("close",), "start"),
        ("rlhf_optimizers", ("create",), "parameter_groups"),
        ("rlhf_model_adapters", ("served_rank", "load_options"), "wrap"),
    ],
)
def test_a_part_without_a_method_that_each_run_calls_is_named(hook, has, lacks):
    """It was an AttributeError that named neither the component nor its plugin."""
    part = types.SimpleNamespace(**{name: print for name in has})
    plugins = load("")
    plugins.registries[hook].add(Registered(Component(name="bare", factory=lambda _: part), "mine"))
    ref = ComponentRef(kind=hook, name="mine:bare")

    says = rf"^mine:bare \(mine\): its factory returned .*; expected an object with {lacks}$"
    with pytest.raises(PluginError, match=says, check=has_code("plugin/wrong-answer")):
        plugins.build(ref)

    setattr(part, lacks, print)
    assert plugins.build(ref) is part
