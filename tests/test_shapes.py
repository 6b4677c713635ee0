"""Array annotations are checked at each call of a test run, by beartype: a wrong shape or dtype is an error."""

import ast
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from rlhf_core.math import masked_sum, token_log_ratios
from rlhf_core.objective import ActionScores
from rlhf_plugin_algorithms.advantages.dr_grpo import group_centered_advantages
from rlhf_torch.heads.action_head import expected
from rlhf_torch.rows.microbatch import micro_batches

ROOT = Path(__file__).parent.parent
ARRAYS = {"Bool", "Float", "Float32", "Float64", "Int", "Int32", "Int64", "Num", "Shaped"}


def checked_modules():
    """The modules and packages that the test run surrounds with checks, as pyproject.toml lists them."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    flag = "--jaxtyping-packages="
    (value,) = [word.removeprefix(flag) for word in options["addopts"] if word.startswith(flag)]
    *modules, checker = value.split(",")
    assert checker == "beartype.beartype"
    return modules


def annotated_modules():
    """Every module of the source with an array type in an annotation."""
    for source in sorted(ROOT.glob("*/src")) + sorted(ROOT.glob("*/*/src")):
        for file in source.rglob("*.py"):
            tree = ast.parse(file.read_text())
            names = {
                node.value.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
            }
            if names & ARRAYS:
                parts = file.relative_to(source).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_module_with_array_annotations_is_checked():
    checked = checked_modules()
    annotated = list(annotated_modules())

    assert len(annotated) > 70
    assert [
        name
        for name in annotated
        if not any(name == one or name.startswith(one + ".") for one in checked)
    ] == []


def test_every_checked_module_is_there():
    there = {file for base in ("*/src", "*/*/src") for file in ROOT.glob(base)}

    for name in checked_modules():
        path = Path(*name.split("."))
        assert any(
            (source / path).is_dir() or (source / path).with_suffix(".py").is_file()
            for source in there
        ), name


def test_a_wrong_shape_is_refused_in_the_core():
    with pytest.raises(TypeCheckError, match="token_log_ratios"):
        token_log_ratios(torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2, 3, dtype=torch.bool))


def test_a_wrong_dtype_is_refused_in_the_core():
    with pytest.raises(TypeCheckError, match="masked_sum"):
        masked_sum(torch.zeros(2, 3), torch.ones(2, 3))


def test_fields_that_do_not_fit_together_are_refused():
    with pytest.raises(TypeCheckError, match="ActionScores"):
        ActionScores(logprobs=torch.zeros(3), entropies=torch.zeros(4))


def test_a_wrong_shape_is_refused_in_a_plugin():
    with pytest.raises(TypeCheckError, match="group_centered_advantages"):
        group_centered_advantages(torch.zeros(4, 1), torch.zeros(3).long(), torch.zeros(4).long())


def test_a_wrong_shape_is_refused_in_the_library_of_torch_backends():
    with pytest.raises(TypeCheckError, match="expected"):
        expected(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(TypeCheckError, match="micro_batches"):
        micro_batches(np.zeros(3), 10)
