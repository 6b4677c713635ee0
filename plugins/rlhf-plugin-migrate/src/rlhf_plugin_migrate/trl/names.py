"""Names of a Python script, each in the function that binds it: what they are bound to, and what is changed later.

The script is not run. A name shows a value only if it is bound once and nothing in the text changes the value in place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_CHANGING = frozenset(
    {
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
        *("update", "setdefault", "popitem", "add", "discard", "__setitem__", "__delitem__"),
        "set_transform",
    }
)
"""Methods that change a list, a dictionary, a set, or a set of rows."""


@dataclass(frozen=True, slots=True)
class Change:
    """A statement that sets a part of an object."""

    of: ast.expr
    """The object, as ``trainer.args``."""
    name: str
    """Attribute that is set; empty if the text does not show it."""
    statement: ast.stmt
    """The whole statement."""


@dataclass(slots=True)
class _Scope:
    outer: _Scope | None = None
    bound: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    """Values of each name; None where the text shows none, as of an argument."""
    changed: set[str] = field(default_factory=set)

    def holder(self, name: str) -> _Scope | None:
        """Return the innermost scope that binds a name."""
        scope: _Scope | None = self
        while scope is not None and name not in scope.bound:
            scope = scope.outer
        return scope


class Names:
    """Names of a script, as its text shows them."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[ast.Call] = []
        """All calls, in order."""
        self.modules: dict[str, str] = {}
        """Imported name -> its full path."""
        self.changes: list[Change] = []
        """Statements that set parts of objects, in order."""
        self._scope, self._statement = _Scope(), ast.stmt()
        self._scope_of: dict[ast.expr, _Scope] = {}
        self._given: dict[ast.expr, ast.expr] = {}
        self._anywhere: dict[str, list[ast.expr]] = {}
        self._changed: list[ast.Name] = []
        self._shared: set[str] = set()
        self.functions: dict[str, list[str]] = {}
        """Functions that the script defines, with the names of their arguments."""
        self._walk(tree)
        for call in self.calls:
            self._note_given(call)
        for name in self._changed:
            self._note_changed(name)

    def resolved(self, value: ast.expr) -> ast.expr:
        """Return what a name is bound to, if it is bound once and its value is not changed; else the expression."""
        if isinstance(value, ast.NamedExpr):
            return value.value
        if not isinstance(value, ast.Name) or value not in self._scope_of:
            return value
        scope = self._scope_of[value].holder(value.id)
        if scope is None or value.id in scope.changed or value.id in self._shared:
            return value
        bound = scope.bound[value.id]
        return bound[0] if len(bound) == 1 and bound[0] is not None else value

    def may_be(self, value: ast.expr, call: ast.Call) -> bool:
        """Return whether an expression is a call, or any binding of it, in whichever function, is the call."""
        seen: set[str] = set()
        left = [value]
        while left:
            one = left.pop()
            if one is call:
                return True
            shown = ast.unparse(one)
            if isinstance(one, ast.Call):  # what a function of the script returns
                shown = f"{last_name(one.func)}()"
            if shown not in seen:
                seen.add(shown)
                left += self._anywhere.get(shown, [])
        return False

    def _note_changed(self, name: ast.Name) -> None:
        """Note that a value is changed, under each of its names, since one name may be bound to another."""
        value: ast.expr = name
        while isinstance(value, ast.Name):
            scope = self._scope_of[value].holder(value.id)
            if scope is None or value.id in scope.changed:
                return
            before = self.resolved(value)
            scope.changed.add(value.id)
            value = before

    def _walk(self, node: ast.AST) -> None:
        outer = self._scope, self._statement
        if isinstance(node, ast.stmt):
            self._statement = node
        self._note(node)
        if isinstance(node, _SCOPES):
            self._scope = _Scope(self._scope)
        for child in ast.iter_child_nodes(node):
            self._walk(child)
        self._scope, self._statement = outer

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._pair(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._pair(node.target, node.value)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self._shared |= set(node.names)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            self._note_import(node)
        elif isinstance(node, ast.arg):
            self._bind(node.arg, None)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._bind(node.name, None)
            if not isinstance(node, ast.ClassDef):
                self._note_function(node)
        elif isinstance(node, ast.Call):
            self.calls.append(node)
            self._note_call(node)
        elif isinstance(node, ast.Name):
            self._scope_of[node] = self._scope
            if self._is_set(node) and isinstance(node.ctx, ast.Store):
                self._bind(node.id, self._given.get(node))
        elif isinstance(node, ast.Attribute) and self._is_set(node):
            self.changes.append(Change(node.value, node.attr, self._statement))
        elif isinstance(node, ast.Subscript) and self._is_set(node):
            self._note_part(node.value)

    def _is_set(self, node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
        """Return whether a statement sets or deletes a target; an annotation alone does neither."""
        statement = self._statement
        only_annotated = isinstance(statement, ast.AnnAssign) and statement.value is None
        return not isinstance(node.ctx, ast.Load) and not only_annotated

    def _pair(self, target: ast.expr, value: ast.expr) -> None:
        for one, its_value in _pairs(target, value):
            self._given[one] = its_value
            if isinstance(one, ast.Name | ast.Attribute):
                self._anywhere.setdefault(ast.unparse(one), []).append(its_value)

    def _bind(self, name: str, value: ast.expr | None) -> None:
        self._scope.bound.setdefault(name, []).append(value)

    def _note_import(self, node: ast.ImportFrom | ast.Import) -> None:
        for one in node.names:
            self._bind(one.asname or one.name.partition(".")[0], None)
            if isinstance(node, ast.ImportFrom) and node.module:
                self.modules[one.asname or one.name] = f"{node.module}.{one.name}"

    def _note_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        of = function.args
        self.functions[function.name] = [one.arg for one in (*of.posonlyargs, *of.args)]
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                self._anywhere.setdefault(f"{function.name}()", []).append(node.value)

    def _note_given(self, call: ast.Call) -> None:
        """Note what a function of the script gets: its arguments are bound to that, and it may change it."""
        is_method = isinstance(call.func, ast.Attribute)
        name = last_name(call.func)
        if name not in self.functions:
            return
        positions = self.functions[name][1 if is_method else 0 :]
        by_name = [(one.arg, one.value) for one in call.keywords if one.arg]
        for argument, value in (*zip(positions, call.args, strict=False), *by_name):
            self._anywhere.setdefault(argument, []).append(value)
            if isinstance(value, ast.Name) and _can_change(self.resolved(value)):
                self._changed.append(value)

    def _note_call(self, call: ast.Call) -> None:
        function = call.func
        if isinstance(function, ast.Name) and function.id == "setattr" and len(call.args) == 3:
            name = call.args[1]
            is_text = isinstance(name, ast.Constant) and isinstance(name.value, str)
            shown = ast.literal_eval(name) if is_text else ""
            self.changes.append(Change(call.args[0], shown, self._statement))
        elif isinstance(function, ast.Attribute) and function.attr in _CHANGING:
            self._note_part(function.value)
        elif isinstance(function, ast.Attribute) and function.attr.startswith("set_"):
            self.changes.append(Change(function.value, "", self._statement))

    def _note_part(self, value: ast.expr) -> None:
        """Note that a part of a value is set: of a name's, of an attribute's, or of ``vars(OBJECT)``."""
        while isinstance(value, ast.Subscript):
            value = value.value
        if isinstance(value, ast.Name):
            self._changed.append(value)
        elif isinstance(value, ast.Attribute):
            self.changes.append(Change(value.value, value.attr, self._statement))
        elif isinstance(value, ast.Call) and ast.unparse(value.func) == "vars" and value.args:
            self.changes.append(Change(value.args[0], "", self._statement))


def last_name(function: ast.expr) -> str:
    """Return ``f`` for ``f`` and for ``self.f``, and an empty name for any other expression."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _can_change(value: ast.expr) -> bool:
    """Return whether a function may change a value that it is given."""
    is_made = isinstance(value, ast.Call) and ast.unparse(value.func) in ("dict", "list", "set")
    return is_made or isinstance(value, ast.Dict | ast.List | ast.Set)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target with its value; targets whose values the text does not tell apart are left out."""
    many = ast.Tuple | ast.List
    if not isinstance(target, many):
        yield target, value
    elif isinstance(value, many) and not any(
        isinstance(one, ast.Starred) for one in (*target.elts, *value.elts)
    ):
        for one, its_value in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, its_value)
