"""torch that is imported when it is first used."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import jaxtyping
import pytest
import torch as real
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation

from rlhf_core import lazy
from rlhf_core.lazy import Bool, Float, torch


def clipped(
    values: Float[torch.Tensor, "b a"], mask: Bool[torch.Tensor, "b a"]
) -> Float[torch.Tensor, "b a"]:
    """What algorithm files do with torch: functions, a dtype, a submodule."""
    inside = torch.where(mask, values, 0.0).clamp(-1.0, 1.0)
    shifted = torch.nn.functional.pad(inside[:, 1:], (0, 1))
    return inside + shifted + torch.zeros((), dtype=torch.float32)


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["rlhf_core.lazy", "rlhf_core.math", "rlhf_core.contracts"])
def test_importing_it_imports_no_library_of_arrays(module):
    heavy = {"torch", "jaxtyping", "numpy"}
    code = f"import sys, {module}; print(sorted({heavy} & sys.modules.keys()))"

    assert in_a_fresh_process(code) == "[]"


def test_the_first_use_imports_torch_and_later_ones_find_it_at_once():
    code = (
        "import sys\nfrom rlhf_core.lazy import torch\nassert 'torch' not in sys.modules\n"
        "where = torch.where\nimport torch as real\n"
        "print(where is real.where, torch.__dict__['where'] is where, torch.__version__ == real.__version__)"
    )

    assert in_a_fresh_process(code) == "True True True"


def test_numpy_is_imported_at_its_first_use_and_its_arrays_are_typed():
    code = (
        "import sys\nfrom rlhf_core.lazy import NDArray, np\nassert 'numpy' not in sys.modules\n"
        "typed = NDArray[np.float32]\nimport numpy, numpy.typing\n"
        "print(typed == numpy.typing.NDArray[numpy.float32], np.zeros is numpy.zeros)"
    )

    assert in_a_fresh_process(code) == "True True"


def test_a_name_of_a_package_is_imported_when_it_is_asked_for(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text(
        "from rlhf_core.lazy import names_from\n__getattr__ = names_from(__name__, {'Part': 'part'})\n"
    )
    (tmp_path / "parts" / "part.py").write_text("class Part: ...\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import parts\nassert 'parts.part' not in sys.modules and 'Part' not in vars(parts)\n"
        "from parts import Part\nassert Part is sys.modules['parts.part'].Part is vars(parts)['Part']\n"
        "try: parts.Parts\nexcept AttributeError as error: print(error)"
    )

    assert in_a_fresh_process(code) == "module 'parts' has no attribute 'Parts'"


def test_threads_may_use_it_first_at_the_same_time():
    found: list[object] = []
    fresh = lazy.LazyModule("torch")
    barrier = threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        found.append(fresh.where)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [real.where] * 8


def test_what_torch_does_not_have_is_reported_as_torch_does():
    with pytest.raises(AttributeError, match="module 'torch' has no attribute 'wher'"):
        _ = torch.wher  # type: ignore[attr-defined]


def test_inspection_imports_nothing():
    """`hasattr(module, "__path__")` and the like are asked of every global by tools."""
    code = (
        "import sys\nfrom rlhf_core.lazy import torch, Float\n"
        "hasattr(torch, '__path__'), hasattr(torch, '__wrapped__'), repr(torch), repr(Float)\n"
        "print('torch' in sys.modules)"
    )

    assert in_a_fresh_process(code) == "False"


CLIPPED = """
from rlhf_core.lazy import torch
def clipped(values, mask):
    inside = torch.where(mask, values, 0.0).clamp(-1.0, 1.0)
    return torch.nn.functional.pad(inside[:, 1:], (0, 1)) + torch.zeros((), dtype=torch.float32)
import torch as real
mask = real.tensor([[True, True, False], [True, True, True]])
values, old = real.randn(2, 3), real.randn(2, 3)
def compiled(function):
    return real.compile(function, fullgraph=True, backend="aot_eager")
"""
"""A function that takes torch from ``rlhf_core.lazy``, with what it is given, for processes in which nobody has used
it: there no check of shapes surrounds formulas either."""


def test_a_function_that_uses_it_compiles_into_one_graph_when_nobody_used_it():
    """Dynamo itself is what asks for `torch.where` first."""
    code = """
assert "where" not in vars(torch)
actual = compiled(clipped)(values, mask)
real.testing.assert_close(actual, clipped(values, mask))
print("equal")
"""

    assert in_a_fresh_process(CLIPPED + code) == "equal"


def test_a_function_that_was_used_and_formulas_of_the_core_compile_into_one_graph():
    code = """
expected = clipped(values, mask)
real.testing.assert_close(compiled(clipped)(values, mask), expected)

from rlhf_core.math import kl_estimate, token_log_ratios
from rlhf_plugin_algorithms.kl.k3 import k3

def loss(policy, old, mask):
    ratio = token_log_ratios(policy, old, mask).exp()
    return ratio + kl_estimate(policy, old, k3, action_mask=mask)

real.testing.assert_close(compiled(loss)(values, old, mask), loss(values, old, mask))
print("equal")
"""

    assert in_a_fresh_process(CLIPPED + code) == "equal"


def test_annotations_are_those_of_the_real_libraries():
    annotation = Float[torch.Tensor, "2 a"]

    assert issubclass(annotation, jaxtyping.AbstractArray)
    assert annotation.array_type is real.Tensor
    assert isinstance(real.zeros(2, 3), annotation)
    assert not isinstance(real.zeros(3, 3), annotation)


def test_shapes_are_checked_at_run_time():
    checked = jaxtyping.jaxtyped(typechecker=beartype)(clipped)

    checked(real.zeros(2, 3), real.ones(2, 3, dtype=real.bool))
    with pytest.raises((jaxtyping.TypeCheckError, BeartypeCallHintViolation)):
        checked(real.zeros(2, 3), real.ones(2, 4, dtype=real.bool))


def test_by_value_it_travels_as_the_library():
    """A function of a user's script goes to a worker together with its globals."""
    make, arguments = torch.__reduce__()  # type: ignore[misc]

    assert make(*arguments) is importlib.import_module("torch")
