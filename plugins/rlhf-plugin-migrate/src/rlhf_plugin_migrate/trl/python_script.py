"""A Python script that calls a trainer of TRL, as the keys of TRL's YAML files. It is read, and not run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import yaml

from rlhf_core import ConfigError

from ..table.source import Written

_SCRIPTS = {"GRPO": "grpo", "SFT": "sft", "DPO": "dpo"}
_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")},
}
"""Argument of PEFT's ``LoraConfig`` -> key of TRL's scripts."""
_READY = "trl.rewards"
_CHANGES_NOTHING = frozenset({"args", "processing_class", "task_type", "bias"})


@dataclass(slots=True)
class PythonScript:
    """Values that a script gives TRL, by the keys of TRL's scripts."""

    script: str
    """The script of TRL that trains so: ``grpo``, ``sft`` or ``dpo``."""
    keys: dict[str, object] = field(default_factory=dict)
    left_out: list[Written] = field(default_factory=list)
    """Arguments whose values the text does not show."""

    @property
    def text(self) -> str:
        """The keys as the text of a YAML file."""
        text: str = yaml.safe_dump(self.keys, sort_keys=False)
        return text


def read_script(text: str, name: str) -> PythonScript:
    """Return what a script gives TRL's trainer and its configuration.

    Values are literals, or names that are bound once, to a literal. All others are left out, each with the reason.

    Raises:
        ConfigError: the text is no Python, or makes no such configuration.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(
            f"rlhf migrate: {name}, line {error.lineno}: not valid Python: {error.msg}",
            code="migrate/unreadable-script",
        ) from error
    return _Reader(tree, name).read()


class _Reader:
    def __init__(self, tree: ast.Module, name: str) -> None:
        self._name = name
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._bound: dict[str, list[ast.expr]] = {}
        self._modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._bound.setdefault(node.targets[0].id, []).append(node.value)
            elif isinstance(node, ast.ImportFrom):
                self._modules |= {
                    one.asname or one.name: f"{node.module}.{one.name}" for one in node.names
                }

    def read(self) -> PythonScript:
        configs = [(call, kind) for call in self._calls if (kind := _kind(call, "Config"))]
        if len(configs) != 1:
            raise ConfigError(
                f"rlhf migrate: {self._name}: expected one call of GRPOConfig, SFTConfig or DPOConfig, found "
                f"{len(configs)}. Of a script that reads its options from the command line, migrate the launch: rlhf "
                "migrate --from trl -- accelerate launch SCRIPT.py --FLAGS",
                code="migrate/unreadable-script",
            )
        config, kind = configs[0]
        out = PythonScript(_SCRIPTS[kind])
        arguments = {"output_dir": config.args[0]} if config.args else {}
        arguments |= _keywords(config)
        for key, value in arguments.items():
            self._set(out, key, value)
        for call in self._calls:
            if _kind(call, "Trainer") == kind:
                self._trainer(out, call)
        return out

    def _trainer(self, out: PythonScript, call: ast.Call) -> None:
        arguments = {"model": call.args[0]} if call.args else {}
        for key, value in (arguments | _keywords(call)).items():
            found = self._resolved(value)
            if key == "model":
                self._set(out, "model_name_or_path", self._loaded(found))
            elif key in ("train_dataset", "eval_dataset"):
                self._set_data(out, key, found)
            elif key == "reward_funcs":
                self._set_rewards(out, found)
            elif key == "peft_config" and _called(found) == "LoraConfig":
                out.keys["use_peft"] = True
                for name, given in _keywords(found).items():
                    if name not in _CHANGES_NOTHING:
                        self._set(out, _LORA.get(name, name), given)
            elif key not in _CHANGES_NOTHING:
                self._leave_out(out, key, value)

    def _set(self, out: PythonScript, key: str, value: ast.expr) -> None:
        try:
            out.keys[key] = ast.literal_eval(self._resolved(value))
        except ValueError:
            self._leave_out(out, key, value)

    def _set_data(self, out: PythonScript, key: str, value: ast.expr) -> None:
        if _called(value) != "load_dataset" or not isinstance(value, ast.Call) or not value.args:
            self._leave_out(out, key, value)
            return
        given = _keywords(value)
        is_train = key == "train_dataset"
        if is_train:
            self._set(out, "dataset_name", value.args[0])
            if config := value.args[1:2] or [given[name] for name in ("name",) if name in given]:
                self._set(out, "dataset_config", config[0])
        if "split" in given:
            self._set(out, f"dataset_{'train' if is_train else 'test'}_split", given["split"])

    def _set_rewards(self, out: PythonScript, value: ast.expr) -> None:
        """Set the functions that a module has; one that the script itself defines cannot be imported without it."""
        listed = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        names = []
        for one in listed:
            if isinstance(one, ast.Name) and one.id in self._modules:
                path = self._modules[one.id]
                names.append(one.id if path == f"{_READY}.{one.id}" else path)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                names.append(one.value)
            else:
                shown = ast.unparse(one)
                problem = (
                    f"line {one.lineno}: the script is not imported; write it into a file as a function of response "
                    f"and columns, and add it to reward.use as FILE.py:{shown}"
                )
                out.left_out.append(Written(f"reward_funcs: {shown}", (), problem))
        if names:
            out.keys["reward_funcs"] = names

    def _resolved(self, value: ast.expr) -> ast.expr:
        """Return what a name is bound to, if it is bound once; else the expression itself."""
        bound = self._bound.get(value.id, []) if isinstance(value, ast.Name) else []
        return bound[0] if len(bound) == 1 else value

    def _loaded(self, value: ast.expr) -> ast.expr:
        """Return the name in ``AutoModel.from_pretrained(NAME)``; else the expression itself."""
        is_loading = isinstance(value, ast.Call) and _called(value) == "from_pretrained"
        return value.args[0] if is_loading and isinstance(value, ast.Call) and value.args else value

    def _leave_out(self, out: PythonScript, key: str, value: ast.expr) -> None:
        shown = " ".join(ast.unparse(value).split())
        problem = f"line {value.lineno}: the text does not show its value"
        out.left_out.append(Written(f"{key}: {shown:.60}", (), problem))


def _called(value: ast.expr) -> str:
    """Return the last name of what is called; empty for what is no call."""
    if not isinstance(value, ast.Call):
        return ""
    function = value.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _kind(call: ast.Call, suffix: str) -> str:
    """Return ``GRPO`` of a call of ``GRPOConfig``, with the suffix ``Config``; empty for other calls."""
    name = _called(call)
    kind = name.removesuffix(suffix)
    return kind if kind in _SCRIPTS and name != kind else ""


def _keywords(call: ast.expr) -> dict[str, ast.expr]:
    if not isinstance(call, ast.Call):
        return {}
    return {one.arg: one.value for one in call.keywords if one.arg is not None}
