"""Rules that hold for the whole source: size, isolation of the core, safety, docstrings, public API only in plugins."""

import ast
import inspect
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from rlhf_config.resolved import EnvironmentOptions, RewardOptions, TermOptions
from rlhf_config.run import RunConfig
from rlhf_core import errors
from rlhf_core import plugins as plugin_loader

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "core/src").rglob("*.py"))
NAMELESS = ("config", "data", "episodes", "guard", "testing", "trainer", "weights")
"""Libraries that know no component by name, as the core knows none."""
FRAMEWORK = [
    *CORE,
    *(path for name in NAMELESS for path in sorted((ROOT / f"libs/rlhf-{name}/src").rglob("*.py"))),
]
CLI = sorted((ROOT / "cli/src").rglob("*.py"))
ON_FRAMEWORK = [
    path for path in sorted(ROOT.glob("libs/*/src/**/*.py")) if path not in set(FRAMEWORK)
]
PLUGINS = [*sorted((ROOT / "plugins").glob("*/src/**/*.py")), *ON_FRAMEWORK]
CONTRIB = sorted((ROOT / "contrib").glob("*/src/**/*.py"))
SOURCE = [*FRAMEWORK, *CLI, *PLUGINS]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_CORE_LINES = 12_000
"""Lines of what a plugin is written against, which fit in an afternoon's reading."""
MAX_TRAINER_LINES = 7_500
"""Lines of the loop, rollouts, learning and the files of a run together."""
MAX_SLEEPS_IN_TESTS = 47
"""Places in tests that sleep by the clock: slow code that a test stands in for, and waits for what nobody can ask. It
may only fall."""
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.RLHFError)
}

PUBLIC = {
    "rlhf_core",
    "rlhf_cli.runs",  # the run that a command line asks for, for commands of plugins
    "rlhf_cli.tables",  # tables as text, Markdown, CSV and JSON, for what commands print
    "rlhf_cli.training",  # commands of plugins that train
    "rlhf_core.capabilities",  # the words by which runtimes and commands tell what a component provides
    "rlhf_core.code_reference",  # FILE.py:NAME in a component's own options
    "rlhf_config",  # options of commands of plugins that train
    "rlhf_config.common",  # the sections that these commands share
    "rlhf_core.contracts",
    "rlhf_core.media",  # images: references, store, places among tokens
    "rlhf_episodes",  # the graph in which executors record requests
    "rlhf_episodes.traces",  # files of episodes in OpenEnv's form
    "rlhf_data",  # rows of data that are imitated
    "rlhf_core.contracts.external",  # an environment that only another interpreter has
    "rlhf_core.fingerprint",  # by which the processes of a runtime tell that they are alike
    "rlhf_trainer.inference",  # what a command generates with: prompts, rewards, files that survive a kill
    "rlhf_core.lazy",  # torch, numpy and the array types, for modules that help imports
    "rlhf_core.math",
    "rlhf_core.moved",  # old names of a plugin's modules
    "rlhf_core.objective",  # the loss that a training backend descends
    "rlhf_core.plugins",  # Plugins, which a runtime is given
    "rlhf_core.typed_table",  # options that are tables with any names
    "rlhf_core.signals",  # schedulers' warnings, and processes that they do not reach
    "rlhf_core.storage",  # files that are written whole or not at all
    "rlhf_core.long_work",  # what keeps a terminal silent for minutes says so
    "rlhf_core.outside.json_reader",  # JSON of files, rows and answers, with limits
    "rlhf_guard.processes.kept",  # commands that agents are, which end with the run
    "rlhf_guard.processes.variables",  # what of the environment passes to code of others
    "rlhf_guard.processes.program",  # servers that a bridge starts, which end with the run
    "rlhf_trainer.runs",  # the loop around the steps of a command that trains
    "rlhf_weights",  # both ends of the way that weights take between processes
    "rlhf_trainer.learning.process",  # what a runtime's own learning process builds
    "rlhf_trainer.rollouts.worker",  # what a runtime's own rollout processes build
}
"""What plugins may import of the core and, where they require them, of libraries; docs/plugins.md lists the same."""

PUBLIC_AS_A_WHOLE = {"rlhf_testing", "rlhf_tools", "rlhf_torch"}
"""Libraries of which every module is public that has no leading underscore."""

NO_SUBJECT = re.compile(r"(Of|What|That|Those|How|Which)\b")
"""Words with which no docstring begins, because a noun or a verb has to."""

UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "yaml.load", "numpy.load", "np.load", "os.system"}
REVIEWED: set[tuple[str, str]] = set()
"""(path, what) of uses that somebody looked at and found safe; each with its reason beside it."""

WORDS_OF_THE_LANGUAGE = {
    (path, library)  # the libraries, whose versions are recorded and which are heavy
    for path in (
        "core/src/rlhf_core/fingerprint.py",
        "libs/rlhf-testing/src/rlhf_testing/checks.py",
    )
    for library in ("torch", "ray", "vllm", "deepspeed")
} | {
    ("core/src/rlhf_core/lazy.py", "torch"),  # the library
    ("libs/rlhf-config/src/rlhf_config/automatic/accelerators.py", "torch"),  # the library
    *(
        ("core/src/rlhf_core/math/ratios.py", name)  # estimates between sampler and trainer
        for name in ("k1", "k2", "k3")
    ),
    *(
        (f"core/src/rlhf_core/{path}.py", "linear")  # a form of the KL's tail
        for path in (
            "math/kl",
            "contracts/objective",
        )
    ),
    ("libs/rlhf-config/src/rlhf_config/run.py", "linear"),
    ("libs/rlhf-testing/src/rlhf_testing/conformance/kinds/backends.py", "linear"),
    ("libs/rlhf-trainer/src/rlhf_trainer/loop/describe.py", "constant"),  # no schedule
    ("libs/rlhf-data/src/rlhf_data/learned/shown_answers.py", "function"),  # a key of tool calls
    *(
        (f"libs/rlhf-data/src/rlhf_data/chat/template/{module}.py", "function")
        for module in ("calls", "contents", "pieces", "presence")
    ),
    ("libs/rlhf-testing/src/rlhf_testing/fake_renderer.py", "function"),
    ("core/src/rlhf_core/contracts/executor.py", "function"),
    ("libs/rlhf-data/src/rlhf_data/chat/parsing/blocks.py", "function"),
    ("libs/rlhf-data/src/rlhf_data/chat/probing.py", "function"),
    ("libs/rlhf-data/src/rlhf_data/chat/short_histories.py", "function"),
    ("libs/rlhf-data/src/rlhf_data/chat/turns.py", "function"),
    ("libs/rlhf-data/src/rlhf_data/chat/template_kwargs.py", "tools"),  # a variable of templates
    ("core/src/rlhf_core/contracts/environment.py", "single_turn"),  # kinds of episodes
    ("core/src/rlhf_core/contracts/environment.py", "multi_turn"),
    ("core/src/rlhf_core/contracts/environment.py", "tools"),
    ("libs/rlhf-guard/src/rlhf_guard/environments/messages.py", "tools"),  # a field of observations
    ("libs/rlhf-data/src/rlhf_data/forms/chats.py", "function"),  # type of a tool call
    ("libs/rlhf-data/src/rlhf_data/forms/recognizing.py", "tools"),  # a column
    ("libs/rlhf-data/src/rlhf_data/forms/beside.py", "tools"),
}
"""(path, constant) where core code means something else than the component of that name."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@lru_cache(maxsize=128)
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@lru_cache(maxsize=2)
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a file, which are found once for the rules that look at each of them."""
    return list(ast.walk(tree))


@cache
def found_in(path: Path) -> Mapping[Callable[[ast.Module], object], list[typing.Any]]:
    """Return what each rule finds in a file, which is parsed once for all of them."""
    rules = TEST_RULES if "tests" in path.relative_to(ROOT).parts else SOURCE_RULES
    return {rule: list(rule(parsed(path))) for rule in rules}


def found_by(
    rule: Callable[[ast.Module], Iterable[tuple[int, str]]], paths: Iterable[Path]
) -> list[str]:
    """Return file, line and words of whatever a rule finds."""
    return [
        f"{name_of(path)}:{line} {words}" for path in paths for line, words in found_in(path)[rule]
    ]


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or attribute, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def short_strings(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and text of the strings that could be a name: those that are documentation, bare as statements, are none."""
    prose = {
        id(node.value)
        for node in nodes_of(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in nodes_of(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " not in node.value
        and id(node) not in prose
    ]


def test_no_file_is_longer_than_400_lines():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in SOURCE}

    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def num_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_the_core_stays_thin():
    assert num_lines(CORE) <= MAX_CORE_LINES


def test_the_trainer_stays_thin():
    assert num_lines((ROOT / "libs/rlhf-trainer/src").rglob("*.py")) <= MAX_TRAINER_LINES


def long_functions(tree: ast.Module) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.name)
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


def test_no_function_is_longer_than_80_lines():
    assert found_by(long_functions, SOURCE) == []


def first_party_components() -> list:
    loaded = plugin_loader.load("")
    ours = {f"rlhf-plugin-{name.replace('_', '-')}" for name in loaded.loaded}
    ours &= {path.name for path in (ROOT / "plugins").iterdir()}
    return [
        entry
        for registry in loaded.registries.values()
        for entry in registry
        if entry.distribution is not None and entry.distribution.metadata["Name"] in ours
    ]


def test_every_first_party_plugin_loads():
    loaded = plugin_loader.load("")
    expected = {
        path.name.removeprefix("rlhf-plugin-").replace("-", "_")
        for path in (ROOT / "plugins").glob("rlhf-*")
        if is_plugin(path)
    }

    assert [str(failure) for failure in loaded.failed if failure.name in expected] == []
    assert expected <= set(loaded.loaded)


def test_the_core_never_compares_a_components_name():
    """The core's code has no string that equals the name or an alias of a component. Commands are typed, not chosen."""
    commands = [entry.qualified for entry in plugin_loader.load("").registries["rlhf_commands"]]
    names = {
        name
        for entry in first_party_components()
        if entry.qualified not in commands
        for name in (entry.name, *entry.component.aliases, entry.qualified)
    }
    assert len(names) > 10, "the first-party plugins are installed"
    found = [
        f"{name_of(path)}:{line} {word!r}"
        for path in FRAMEWORK
        for line, word in found_in(path)[short_strings]
        if word in names and (name_of(path), word) not in WORDS_OF_THE_LANGUAGE
    ]

    assert found == []


def unsafe_uses(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and name of each import and call that could run code from data."""
    found = [
        (line, module)
        for line, module in imported_modules(tree)
        if module.partition(".")[0] in UNSAFE_MODULES
    ]
    return found + [
        (node.lineno, dotted(node.func))
        for node in nodes_of(tree)
        if isinstance(node, ast.Call) and dotted(node.func) in UNSAFE_CALLS
    ]


def swallowed_exceptions(tree: ast.Module) -> list[int]:
    """Lines of handlers that catch everything and do nothing."""
    return [
        node.lineno
        for node in nodes_of(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or dotted(node.type) in ("Exception", "BaseException"))
        and all(isinstance(line, ast.Pass | ast.Continue | ast.Expr) for line in node.body)
        and not any(isinstance(inner, ast.Call) for line in node.body for inner in ast.walk(line))
    ]


def test_nothing_that_runs_code_from_data_is_used():
    """No pickle in any guise, no eval or exec, no loaders that unpickle."""
    found = {
        (name_of(path), what): line for path in SOURCE for line, what in found_in(path)[unsafe_uses]
    }

    assert {use: line for use, line in found.items() if use not in REVIEWED} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle as cp",
        "eval(text)",
        "exec(text, {})",
        "torch.load(path, weights_only=True)",
        "yaml.load(file)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_check_for_unsafe_code_finds_it(code):
    assert len(unsafe_uses(ast.parse(code))) == 1


def test_the_check_for_unsafe_code_knows_what_is_harmless():
    code = "model.eval()\nspec.loader.exec_module(module)\nnp.loadtxt(path)\nyaml.safe_load(file)"

    assert unsafe_uses(ast.parse(code)) == []


def test_no_exception_is_swallowed():
    swallowed = [
        f"{name_of(path)}:{line}"
        for path in SOURCE
        for line in found_in(path)[swallowed_exceptions]
    ]

    assert swallowed == []


@pytest.mark.parametrize(
    ("handler", "swallows"),
    [
        ("except Exception: pass", True),
        ("except: pass", True),
        ("except BaseException: ...", True),
        ("except Exception: 'for now'", True),
        ("except Exception: log.exception('x')", False),
        ("except Exception: raise", False),
        ("except Exception as error: return error", False),
        ("except KeyError: pass", False),
    ],
)
def test_the_check_for_swallowed_exceptions_finds_them(handler, swallows):
    tree = ast.parse(f"def f():\n    try:\n        g()\n    {handler}")

    assert bool(swallowed_exceptions(tree)) == swallows


def errors_by_text(tree: ast.Module) -> list[int]:
    """Lines in which a test expects an error of ours with ``match`` and without the check of its code."""
    return [
        node.lineno
        for node in nodes_of(tree)
        if isinstance(node, ast.Call)
        and dotted(node.func) == "pytest.raises"
        and any(dotted(kind).rpartition(".")[2] in ERRORS for kind in node.args)
        and [word.arg for word in node.keywords if word.arg in ("match", "check")] == ["match"]
    ]


def test_no_error_of_ours_is_told_by_its_text_alone():
    """Texts change, codes do not. A test says ``check=has_code("area/mistake")``, with a ``match`` of a value beside it
    where one is told."""
    tests = [*(ROOT / "tests").rglob("*.py"), *ROOT.glob("examples/*/tests/**/*.py")]

    found = [f"{name_of(path)}:{line}" for path in tests for line in found_in(path)[errors_by_text]]

    assert found == []


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("pytest.raises(ConfigError, match='no such option')", True),
        ("pytest.raises(errors.DataError, match=said)", True),
        (
            "pytest.raises(ConfigError, match='--step', check=has_code('usage/about-samples'))",
            False,
        ),
        ("pytest.raises(ConfigError, check=has_code('usage/about-samples'))", False),
        ("pytest.raises(ConfigError)", False),
        ("pytest.raises(KeyError, match='a')", False),
    ],
)
def test_the_check_for_errors_by_text_finds_them(call, is_found):
    assert bool(errors_by_text(ast.parse(call))) == is_found


def sleeps_by_the_clock(tree: ast.Module) -> list[int]:
    """Lines that sleep for seconds outside of a loop, which asks for a condition again, and for less than a minute:
    longer ones stand for code that hangs, and are ended."""
    found = []

    def visit(node: ast.AST, in_loop: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and dotted(child.func) in (
                "time.sleep",
                "asyncio.sleep",
            ):
                seconds = child.args[0].value if isinstance(child.args[0], ast.Constant) else 1
                if not in_loop and 0 < seconds < 60:
                    found.append(child.lineno)
            is_loop = isinstance(child, ast.While | ast.For | ast.AsyncFor)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            visit(child, is_loop or (in_loop and not is_function))

    visit(tree, False)
    return found


def test_no_more_tests_sleep_by_the_clock():
    """A test that waits asks for its condition again and again: seconds are too few on a slow machine, and lost on a
    fast one."""
    tests = [*(ROOT / "tests").rglob("*.py"), *ROOT.glob("examples/*/tests/**/*.py")]

    assert sum(len(found_in(path)[sleeps_by_the_clock]) for path in tests) <= MAX_SLEEPS_IN_TESTS


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("time.sleep(0.2)", True),
        ("async def f():\n    await asyncio.sleep(seconds)", True),
        ("while not told:\n    def f():\n        time.sleep(1)", True),
        ("while not told:\n    time.sleep(0.05)", False),
        ("await asyncio.sleep(0)", False),
        ("time.sleep(3600)", False),
    ],
)
def test_the_check_for_sleeps_finds_them(code, is_found):
    assert bool(sleeps_by_the_clock(ast.parse(code))) == is_found


def docstrings_without_a_subject(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and first words of documentation that begins with a relative word instead of a noun or a verb."""
    texts = [
        (node.lineno, node.value.value.strip())
        for node in nodes_of(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return [(line, text[:40]) for line, text in sorted(texts) if NO_SUBJECT.match(text)]


def test_a_docstring_begins_with_its_subject():
    """Documentation of modules, classes, functions and of what is assigned: "Mean of ...", never "What is meant"."""
    assert found_by(docstrings_without_a_subject, [*SOURCE, *CONTRIB]) == []


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ('"""What is here."""', True),
        ('class C:\n    """Of a batch: its rows."""', True),
        ('class C:\n    x: int\n    """Which row."""', True),
        ('def f():\n    """\n    How it is done."""', True),
        ('async def f():\n    """Those that end."""', True),
        ('LIMIT = 2\n"""That of a row."""', True),
        ('LIMIT = 2\n"""Limit of what a row holds."""', False),
        ('def f():\n    """Offsets of rows."""', False),
        ('text = """What is here."""', False),
    ],
)
def test_the_check_for_subjects_finds_what_has_none(code, is_found):
    assert bool(docstrings_without_a_subject(ast.parse(code))) == is_found


SOURCE_RULES = (
    imported_modules,
    long_functions,
    short_strings,
    unsafe_uses,
    swallowed_exceptions,
    docstrings_without_a_subject,
)
TEST_RULES = (errors_by_text, sleeps_by_the_clock)


def project_of(package: Path) -> dict[str, typing.Any]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def is_plugin(package: Path) -> bool:
    """False for a library, on which plugins may build."""
    return "entry-points" in project_of(package)


@cache
def own_packages(package: Path) -> set[str]:
    return {folder.name for folder in (package / "src").iterdir()}


@cache
def required_libraries(package: Path) -> set[str]:
    """Modules of the libraries of this repository that a package requires."""
    project = project_of(package)
    extras = [text for texts in project.get("optional-dependencies", {}).values() for text in texts]
    names = [re.match(r"[\w-]+", text)[0] for text in [*project["dependencies"], *extras]]
    return {name.replace("-", "_") for name in names if (ROOT / "libs" / name).is_dir()}


def may_import(module: str, own: set[str], required: set[str]) -> bool:
    """Return whether a package may import a module of this repository.

    Args:
        own: packages of its distribution.
        required: modules of the libraries that it requires.
    """
    top = module.partition(".")[0]
    return (
        top in own
        or (module in PUBLIC and top in {"rlhf_core", "rlhf_cli", *required})
        or (top in PUBLIC_AS_A_WHOLE and top in required)
    )


def test_plugins_use_public_api_only():
    """A plugin can do whatever a first-party package does, because those are held to the same imports.

    A package may build on a library that its pyproject.toml requires, as a stranger's may, and on no other plugin.
    """
    found = []
    for path in PLUGINS:
        distribution = ROOT.joinpath(*path.relative_to(ROOT).parts[:2])
        own, required = own_packages(distribution), required_libraries(distribution)
        found += [
            f"{name_of(path)}:{line} {module}"
            for line, module in found_in(path)[imported_modules]
            if module.startswith("rlhf_") and not may_import(module, own, required)
        ]

    assert found == []


def test_the_documentation_lists_the_public_modules():
    text = (ROOT / "docs/plugins.md").read_text()
    section = text.partition("## What a plugin may import")[2].partition("\n##")[0]

    listed = {word for word in section.split("`") if word.startswith("rlhf_") and " " not in word}

    assert listed == PUBLIC | PUBLIC_AS_A_WHOLE


def models_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """``model`` and the models of its fields, at any depth."""
    yield model
    for field in model.model_fields.values():
        for part in (field.annotation, *typing.get_args(field.annotation)):
            if inspect.isclass(part) and issubclass(part, BaseModel):
                yield from models_of(part)


def test_every_option_has_a_description():
    """Sections have none: what they hold is described field by field."""
    roots = [RunConfig, RewardOptions, *(e.component.config for e in first_party_components())]
    missing = [
        f"{model.__name__}.{name}"
        for root in roots
        for model in models_of(root)
        for name, field in model.model_fields.items()
        if not field.description
        and not (inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel))
    ]

    assert missing == []


def test_no_component_has_an_option_that_the_core_gives_its_kind():
    """A run that chose it would be refused. Whatever is installed is asked, environments of examples included."""
    given = {
        "rlhf_rewards": RewardOptions,
        "rlhf_environments": EnvironmentOptions,
        "rlhf_policy_losses": TermOptions,
    }
    loaded = plugin_loader.load("")
    clashes = {
        entry.qualified: clash
        for hook, shared in given.items()
        for entry in loaded.registries[hook]
        if (clash := shared.model_fields.keys() & entry.component.config.model_fields.keys())
    }

    assert clashes == {}


def test_every_component_has_a_summary():
    assert [
        entry.qualified for entry in first_party_components() if not entry.component.summary
    ] == []


ROOMS = (
    "rlhf_advantage_estimators",
    "rlhf_policy_losses",
    "rlhf_is_corrections",
    "rlhf_kl_estimators",
    "rlhf_reward_shapers",
    "rlhf_sample_filters",
    "rlhf_prompt_samplers",
    "rlhf_lr_schedules",
    "rlhf_optimizers",
    "rlhf_preference_losses",
)
"""Kinds of algorithms."""

MATH = ROOT / "core/src/rlhf_core/math"

GENERAL = 3
"""Algorithms that read a file which is no part of each of them: a helper needs three uses."""

BUILT_ON = {
    "adam8bit": "adam",  # the same update with another state
    "muon": "muon_adamw",  # a class of torch's, so its module imports torch, and the options' must not
}
"""Algorithm -> the one file that is read beside its own, each with the reason."""


def algorithms() -> dict[str, Path]:
    """Return the file of each algorithm, by the component's name."""
    plugins = plugin_loader.load("").registries
    entries = [entry for hook in ROOMS for entry in plugins[hook] if entry.plugin == "algorithms"]
    return {entry.name: Path((entry.source() or "").rpartition(":")[0]) for entry in entries}


def module_of_math(name: str) -> Path:
    """Return the file in which ``rlhf_core.math`` has a name."""
    for node in parsed(MATH / "__init__.py").body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return MATH / f"{node.module}.py"
    raise AssertionError(f"rlhf_core.math has no {name}")


def files_read_with(path: Path) -> set[str]:
    """Return the first-party files that a reader of an algorithm opens: its own, and whatever that imports.

    The core's math counts. Its data types and registration do not.
    """
    unread, opened = [path], set[str]()
    while unread:
        path = unread.pop()
        opened.add(name_of(path))
        found: list[Path] = []
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parent.joinpath(
                    *[".."] * (node.level - 1), *(node.module or "").split(".")
                )
                names = [folder / f"{alias.name}.py" for alias in node.names]
                found += [file for file in (folder.with_suffix(".py"), *names) if file.is_file()]
            elif isinstance(node, ast.ImportFrom) and node.module == "rlhf_core.math":
                found += [module_of_math(alias.name) for alias in node.names]
        found = [file.resolve() for file in found]
        if MATH in path.parents:
            found = [file for file in found if MATH in file.parents]
        unread += [file for file in found if name_of(file) not in opened]
        opened.update(
            module
            for _, module in found_in(path)[imported_modules]
            if module.startswith("rlhf_") and module not in PUBLIC
        )
    return opened


def parts_of(file: Path, readers: Mapping[str, int]) -> set[str]:
    """Return the files that hold the algorithm of a file: without those that several algorithms read."""
    found = files_read_with(file)
    return {name for name in found if name == name_of(file) or readers[name] < GENERAL}


def readers_of_files() -> Counter[str]:
    """Return how many algorithms read each file; the core's own use of its math counts as enough."""
    counted = Counter(name for file in set(algorithms().values()) for name in files_read_with(file))
    for path in FRAMEWORK:
        if MATH in path.parents:
            continue
        for node in ast.walk(parsed(path)):
            from_math = isinstance(node, ast.ImportFrom) and (
                node.module == "rlhf_core.math" or (node.level > 0 and node.module == "math")
            )
            if from_math:
                names = [alias.name for alias in node.names]
                counted.update({name_of(module_of_math(name)): GENERAL for name in names})
    return counted


def test_an_algorithm_is_checked_against_its_paper_in_one_file():
    """Every algorithm: a formula of one or two of them stands in their files, not in the core's math or beside them."""
    readers, files = readers_of_files(), algorithms()
    found = {name: parts_of(file, readers) - {name_of(file)} for name, file in files.items()}

    assert len(files) > 60
    assert {
        name: [Path(part).stem for part in parts] for name, parts in found.items() if parts
    } == {name: [part] for name, part in BUILT_ON.items()}


def test_an_algorithms_file_is_in_the_order_of_reading():
    """Why, options if it has any, formula, class, registration; the class is the formula where there is nothing beside
    it."""
    order = ["options", "formula", "class", "registration"]
    wrong = {}
    for name, file in algorithms().items():
        tree = parsed(file)
        kinds = []
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = {dotted(base) for base in node.bases}
                config = any(base.endswith("Config") for base in bases)
                kinds.append(
                    "options" if config else "result" if "NamedTuple" in bases else "class"
                )
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                kinds.append("formula")
            elif isinstance(node, ast.Assign) and dotted(node.targets[0]).endswith("COMPONENT"):
                kinds.append("registration")
        read = [order.index(kind) for kind in kinds if kind != "result"]
        if not ast.get_docstring(tree) or read != sorted(read) or not {2, 3} <= set(read):
            wrong[name] = kinds

    assert wrong == {}


def test_the_count_of_files_sees_a_formula_that_stands_elsewhere():
    """Else the two tests above would pass whatever is imported."""
    file = algorithms()["overlong"]
    counted = parts_of(file, Counter())

    assert {Path(name).stem for name in counted} >= {"overlong", "episodes", "stateless", "groups"}
