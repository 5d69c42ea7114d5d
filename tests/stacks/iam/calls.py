"""Reads from a program's source which AWS calls it makes, so that no list is kept by hand.

From the entry on, it reads each function that can be reached, and follows clients through variables, arguments,
attributes and results. Each operation of a client, called or passed on, counts as a call. A client that cannot be
followed is an error, not a missed call.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import NamedTuple

import botocore.session
from botocore import xform_name

from stacks.constructs.staging import ROOT

ALL = "*"


class Call(NamedTuple):
    """A call to AWS.

    Attributes:
        service, operation: botocore's names: ``s3``, ``ListObjectsV2``.
        on: What a script names in it, such as ``s3://bucket/key``; `ALL` for a paginated call, which may ask for
            everything; otherwise empty.
    """

    service: str
    operation: str
    on: str = ""


Value = frozenset[str]
"""Possible values of an expression: ``client:SERVICE``, or a literal text in the code."""

_NOTHING: Value = frozenset()
_CLIENT = "client:"
_NO_CALLS = {"close", "exceptions", "meta", "can_paginate"}
_PLACE = re.compile(r"(?:runtime|lambda_actor)(?:\.\w+)+:(\w+)")
_TABLE, _LOADER = "runtime.registry", ("runtime.experiment.kinds", "load")
"""All programs have the registry's table. The parts it names are imported only by programs that reach the loader."""
_CUSTOM_COMMANDS = {("ecr", "get-login-password"): ("ecr", "get-authorization-token")}
"""Commands of AWS' command line that make another call."""
_SESSION = botocore.session.get_session()
_SERVICES = frozenset(_SESSION.get_available_services())


class UnfollowedError(Exception):
    """The code uses a client in a way that this reader does not understand."""


@cache
def operations(service: str) -> Mapping[str, str]:
    """Operations of a service, by their names in Python."""
    return {xform_name(name): name for name in _SESSION.get_service_model(service).operation_names}


@cache
def calls_from(module: str, function: str) -> frozenset[Call]:
    """Returns all calls that ``module.function`` may make, directly or indirectly.

    Raises:
        UnfollowedError: They cannot be determined.
    """
    return frozenset(_Reader(module, function).read())


@dataclass(eq=False)
class _Function:
    """A function or a method. Class bodies and modules are read as functions without arguments."""

    module: _Module
    node: ast.FunctionDef | ast.Module | ast.ClassDef
    owner: _Class | None = None

    def arguments(self) -> list[str]:
        if not isinstance(self.node, ast.FunctionDef):
            return []
        names = self.node.args
        listed = [one.arg for one in (*names.posonlyargs, *names.args)]
        is_bound = self.owner is not None and not any(
            ast.unparse(one) == "staticmethod" for one in self.node.decorator_list
        )
        return [*listed[is_bound:], *(one.arg for one in names.kwonlyargs)]


@dataclass(eq=False)
class _Class:
    module: _Module
    node: ast.ClassDef
    methods: dict[str, _Function] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)

    def fields(self) -> list[str]:
        """Fields, if it is a dataclass."""
        return [
            one.target.id
            for one in self.node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]


@dataclass(eq=False)
class _Module:
    name: str
    tree: ast.Module
    imported: dict[str, tuple[str, str | None]]
    services: frozenset[str]
    defined: dict[str, _Function | _Class] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)


@cache
def _parse(text: str) -> tuple[ast.Module, dict[str, tuple[str, str | None]], frozenset[str]]:
    """Returns a file's tree, its imports, and the services that its texts name."""
    tree, imported, texts = ast.parse(text), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0],
                    None,
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {
                alias.asname or alias.name: (node.module, alias.name) for alias in node.names
            }
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return tree, imported, _SERVICES & texts


@cache
def _children(node: ast.AST) -> list[ast.AST]:
    return list(ast.iter_child_nodes(node))


def _load(name: str, path: str) -> _Module:
    module = _Module(name, *_parse(Path(path).read_text()))
    for statement in module.tree.body:
        if isinstance(statement, ast.FunctionDef):
            module.defined[statement.name] = _Function(module, statement)
        elif isinstance(statement, ast.ClassDef):
            made = _Class(module, statement)
            made.methods = {
                one.name: _Function(module, one, made)
                for one in statement.body
                if isinstance(one, ast.FunctionDef)
            }
            module.defined[statement.name] = made
    return module


_Reading = tuple[_Function, frozenset[tuple[str, Value]]]
"""A function with the possible values of its arguments."""


class _Reader:
    """Reads until nothing new is found: reached functions, and possible values of attributes and variables."""

    def __init__(self, module: str, function: str) -> None:
        self.finder = ModuleFinder([str(ROOT)])
        self.modules: dict[str, _Module] = {}
        self.calls: set[Call] = set()
        self.reached: set[_Reading] = set()
        self.waiting: list[_Reading] = []
        self.classes: set[_Class] = set()
        self.holders: defaultdict[str, set[_Class]] = defaultdict(set)
        """Reached classes that have a method or an attribute of that name."""
        self.used: set[str] = set()
        self.results: dict[_Function, Value] = {}
        self.has_changed = False
        self.paginated: dict[str, bool] = {}
        self.unfollowed: set[tuple[str, str]] = set()
        self.words: set[str] = set()
        """Texts that may name a service or an operation. Others are not followed."""
        self.add_module(module)
        entry = self.modules[module].defined[function]
        assert isinstance(entry, _Function)
        self.reach(entry)

    def add_module(self, name: str) -> None:
        """Adds a module and all modules it imports."""
        if name in self.modules:
            return
        self.finder.import_hook(name)
        for found, imported in list(self.finder.modules.items()):
            if found not in self.modules and imported.__file__:
                self.modules[found] = module = _load(found, imported.__file__)
                self.words |= module.services.union(*map(operations, module.services))
                self.reach(_Function(module, module.tree))

    def reach(self, function: _Function, bound: Mapping[str, Value] | None = None) -> None:
        for context in ({}, bound or {}):
            reading = (function, frozenset(context.items()))
            if reading not in self.reached:
                self.reached.add(reading)
                self.waiting.append(reading)
                self.has_changed |= function is self.find(*_LOADER)

    def is_reached(self, module: str, function: str) -> bool:
        return any(one is self.find(module, function) for one, _ in self.reached)

    def reach_class(self, found: _Class) -> None:
        if found not in self.classes:
            self.classes.add(found)
            for name in (*found.methods, *found.attributes):
                self.holders[name].add(found)
            for base in found.node.bases:
                if isinstance(one := self.resolve(found.module, base), _Class):
                    self.reach_class(one)

    def read(self) -> set[Call]:
        while self.waiting or self.has_changed:
            if not self.waiting:
                # New values may change the meaning of functions that were already read.
                self.has_changed = False
                self.waiting = list(self.reached)
            while self.waiting:
                function, context = self.waiting.pop()
                _Scope(self, function, dict(context)).run()
            for method in [
                method
                for found in self.classes
                for name, method in found.methods.items()
                if name in self.used or name.startswith("__")
            ]:
                self.reach(method)
        self._check()
        return self.calls

    def _check(self) -> None:
        """Checks that every apparent AWS call that is not a call to our own code was understood somewhere."""
        if lost := sorted(
            self.paginated.keys()
            - {place for place, is_known in self.paginated.items() if is_known}
        ):
            raise UnfollowedError(f"{lost}: it is unknown which operation is paginated")
        ours = {name for module in self.modules.values() for name in module.defined} | {
            name
            for found in self.classes
            for name in (*found.methods, *found.fields(), *found.attributes)
        }
        called = {xform_name(call.operation) for call in self.calls}
        for name, place in sorted(self.unfollowed):
            if name in self.words and name not in ours | called:
                raise UnfollowedError(f"{place}: it is unknown whose {name} this is")

    def note(self, service: str, name: str, on: str = "") -> bool:
        if name in operations(service):
            self.calls.add(Call(service, operations(service)[name], on))
            return True
        return False

    def widen(self, values: dict[str, Value], name: str, value: Value) -> None:
        if not value <= values.get(name, _NOTHING):
            values[name] = values.get(name, _NOTHING) | value
            self.has_changed = True

    def widen_attribute(self, found: _Class, name: str, value: Value) -> None:
        self.widen(found.attributes, name, value)
        if found in self.classes and name in found.attributes:
            self.holders[name].add(found)

    def resolve(self, module: _Module, node: ast.expr) -> _Function | _Class | _Module | None:
        """Returns the object behind a name or a module's attribute."""
        if isinstance(node, ast.Name):
            return self.find(module.name, node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve(module, node.value)
            return self.find(base.name, node.attr) if isinstance(base, _Module) else None
        return None

    def find(self, module: str, name: str) -> _Function | _Class | _Module | None:
        found = self.modules.get(module)
        if found is None:
            return None
        if name in found.defined:
            return found.defined[name]
        if f"{module}.{name}" in self.modules:
            return self.modules[f"{module}.{name}"]
        if name in found.imported:
            home, what = found.imported[name]
            if what is None:
                return self.modules.get(home)
            return self.modules.get(f"{home}.{what}") or (
                self.find(home, what) if home != module else None
            )
        return None


class _Scope:
    """One reading of one function, with the possible values of its arguments."""

    def __init__(self, reader: _Reader, function: _Function, values: dict[str, Value]) -> None:
        self.reader, self.function, self.values = reader, function, values
        self.module, self.owner = function.module, function.owner
        self.nested: dict[str, ast.FunctionDef] = {}

    def run(self) -> None:
        node = self.function.node
        body = node.body
        for _ in range(2):  # loops bring later values to earlier lines
            for statement in body:
                self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        is_file = isinstance(self.function.node, ast.Module)
        if isinstance(node, ast.ClassDef):
            for one in (*node.body, *node.decorator_list):
                if isinstance(one, ast.expr):
                    self.value(one)
                elif not isinstance(one, ast.FunctionDef):
                    self.statement(one)
        elif isinstance(node, ast.FunctionDef) and is_file:
            for one in node.decorator_list:
                self.value(one)
        elif isinstance(node, ast.FunctionDef):
            self.nested[node.name] = node
            for one in node.body:
                self.statement(one)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "__name__ == '__main__'",
        ):
            return
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self.assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            if node.value is not None:
                self.assign(node.target, node.value)
        elif isinstance(node, ast.Return):
            result = self.value(node.value) if node.value else _NOTHING
            known = self.reader.results.get(self.function, _NOTHING)
            if not result <= known:
                self.reader.results[self.function] = known | result
                self.reader.has_changed = True
        else:
            for child in _children(node):
                self.child(child)

    def child(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self.statement(node)
        elif isinstance(node, ast.expr):
            self.value(node)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self.assign(node.optional_vars, node.context_expr)
        else:
            for child in _children(node):
                self.child(child)

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(node, ast.Tuple)
            and len(target.elts) == len(node.elts)
        ):
            for one, other in zip(target.elts, node.elts, strict=True):
                self.assign(one, other)
            return
        value = self.value(node)
        if not value:
            self.value(target)
        elif isinstance(target, ast.Name):
            if isinstance(self.function.node, ast.Module):
                self.reader.widen(self.module.values, target.id, value)
            self.values[target.id] = self.values.get(target.id, _NOTHING) | value
        elif (
            isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and self.owner
        ):
            self.reader.widen_attribute(self.owner, target.attr, value)
        elif _clients(value):
            raise UnfollowedError(
                f"{self.place(target)}: a client is kept in {ast.unparse(target)}"
            )

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return self.text(node.value)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        if isinstance(node, ast.BoolOp | ast.IfExp | ast.NamedExpr):
            values = [self.value(one) for one in _children(node) if isinstance(one, ast.expr)]
            value = _NOTHING.union(*values)
            if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
                self.values[node.target.id] = self.values.get(node.target.id, _NOTHING) | value
            return value
        for child in _children(node):
            self.child(child)
        return _NOTHING

    def text(self, value: object) -> Value:
        if not isinstance(value, str):
            return _NOTHING
        if place := _PLACE.fullmatch(value):
            if self.module.name == _TABLE and not self.reader.is_reached(*_LOADER):
                return _NOTHING
            # A variant that is imported by name.
            module = value.partition(":")[0]
            self.reader.add_module(module)
            self.reach(self.reader.modules[module].defined.get(place[1]))
        return frozenset({value}) if value in self.reader.words else _NOTHING

    def name(self, node: ast.Name) -> Value:
        if node.id in self.nested or node.id in self.values:
            return self.values.get(node.id, _NOTHING)
        found = self.reader.resolve(self.module, node)
        self.reach(found)
        if found is None and node.id in self.module.imported:
            home, what = self.module.imported[node.id]
            if home in self.reader.modules and what:
                return self.reader.modules[home].values.get(what, _NOTHING)
        return self.module.values.get(node.id, _NOTHING)

    def reach(self, found: _Function | _Class | _Module | None) -> None:
        if isinstance(found, _Function):
            self.reader.reach(found)
        elif isinstance(found, _Class):
            self.reader.reach_class(found)

    def attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        found = self.reader.resolve(self.module, node)
        if found is not None:
            self.reach(found)
            return _NOTHING
        if clients := _clients(base):
            if node.attr not in _NO_CALLS and not any(
                [self.reader.note(one, node.attr) for one in clients]
            ):
                raise UnfollowedError(
                    f"{self.place(node)}: {node.attr} is no operation of {', '.join(clients)}"
                )
            return _NOTHING
        self.reader.used.add(node.attr)
        if "_" in node.attr or _is_client(node.value):
            self.reader.unfollowed.add((node.attr, self.place(node)))
        if isinstance(node.value, ast.Name) and node.value.id == "self" and self.owner:
            holders = self.family(self.owner)
        else:
            holders = self.reader.holders.get(node.attr, set())
        value = _NOTHING
        for one in holders:
            value |= one.attributes.get(node.attr, _NOTHING)
            if node.attr in one.methods:
                value |= self.reader.results.get(one.methods[node.attr], _NOTHING)
        return value

    def family(self, found: _Class) -> set[_Class]:
        bases = [self.reader.resolve(found.module, base) for base in found.node.bases]
        return {found}.union(*(self.family(base) for base in bases if isinstance(base, _Class)))

    def call(self, node: ast.Call) -> Value:
        given = [self.value(one) for one in node.args]
        named = {one.arg: self.value(one.value) for one in node.keywords}
        if _is_client(node.func) and given and given[0] & _SERVICES:
            self.value(node.func)
            return frozenset(_CLIENT + service for service in given[0] & _SERVICES)
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "get_paginator",
            "get_waiter",
        ):
            return self.paginate(node, _clients(self.value(node.func.value)), given[0])
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "getattr"
            and given
            and _clients(given[0])
        ):
            raise UnfollowedError(f"{self.place(node)}: an operation is looked up by its name")
        result = self.value(node.func)
        for function, bound in self.targets(node.func, given, named):
            self.reader.reach(function, {name: value for name, value in bound.items() if value})
            result |= self.reader.results.get(function, _NOTHING)
        return result if isinstance(node.func, ast.Attribute | ast.Name) else _NOTHING

    def paginate(self, node: ast.Call, clients: list[str], names: Value) -> Value:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get_waiter":
            raise UnfollowedError(f"{self.place(node)}: waiters are not read")
        is_known = any(
            [self.reader.note(client, name, ALL) for client in clients for name in names]
        )
        self.reader.paginated[self.place(node)] = (
            self.reader.paginated.get(self.place(node), False) or is_known
        )
        return _NOTHING

    def targets(
        self, called: ast.expr, given: list[Value], named: Mapping[str | None, Value]
    ) -> Iterator[tuple[_Function, dict[str, Value]]]:
        """Yields the functions that a call may reach, with the possible values of their arguments."""
        if isinstance(called, ast.Name) and called.id in self.nested:
            nested = _Function(self.module, self.nested[called.id])
            for name, value in _bound(nested.arguments(), given, named).items():
                self.values[name] = self.values.get(name, _NOTHING) | value
            return
        found = self.reader.resolve(self.module, called)
        if isinstance(found, _Function):
            yield found, _bound(found.arguments(), given, named)
        elif isinstance(found, _Class):
            yield from self.made(found, given, named)
        elif isinstance(called, ast.Attribute) and (
            methods := [
                one.methods[called.attr]
                for one in self.reader.holders.get(called.attr, ())
                if called.attr in one.methods
            ]
        ):
            for method in methods:
                yield method, _bound(method.arguments(), given, named)
        elif _clients(_NOTHING.union(*given, *named.values())):
            raise UnfollowedError(
                f"{self.place(called)}: a client is given to {ast.unparse(called)}"
            )

    def made(
        self, found: _Class, given: list[Value], named: Mapping[str | None, Value]
    ) -> Iterator[tuple[_Function, dict[str, Value]]]:
        constructors = [
            one.methods["__init__"] for one in self.family(found) if "__init__" in one.methods
        ]
        for constructor in constructors:
            yield constructor, _bound(constructor.arguments(), given, named)
        if not constructors:
            for name, value in _bound(found.fields(), given, named).items():
                self.reader.widen_attribute(found, name, value)

    def place(self, node: ast.expr) -> str:
        return f"{self.module.name}:{node.lineno}"


def calls_of_script(text: str, variables: Mapping[str, str]) -> list[Call]:
    """Returns the calls that a shell script makes with AWS' command line.

    Args:
        text: The script.
        variables: Variables that it receives or sets itself; unknown ones are ``?``.

    Raises:
        UnfollowedError: A call is not known.
    """
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)(^|\s)#.*$", "", text))
    found = []
    for service, operation, options in re.findall(
        r"(?<![\w/.$-])aws ([a-z]\S*) ([a-z][a-z0-9-]*)(.*)$", lines, re.MULTILINE
    ):
        filled = re.sub(
            r"\$(?:\{(\w+)[^}]*\}|(\w+))",
            lambda name: variables.get(name[1] or name[2], "?"),
            options,
        )
        named = re.findall(r'--(bucket|key|prefix|stack-name) ("[^"]*"|[^\s;|)]+)', filled)
        found.append(_call_of(service, operation, {name: text.strip('"') for name, text in named}))
    return found


def _call_of(service: str, operation: str, named: Mapping[str, str]) -> Call:
    service, operation = _CUSTOM_COMMANDS.get((service, operation), (service, operation))
    service = {"s3api": "s3"}.get(service, service)
    method = operation.replace("-", "_")
    if service not in _SERVICES or method not in operations(service):
        raise UnfollowedError(f"aws {service} {operation}: not a command that is known here")
    known = operations(service)[method]
    if "bucket" in named and "key" in named:
        return Call(service, known, f"s3://{named['bucket']}/{named['key']}")
    if (service, known) == ("cloudformation", "DescribeStacks") and "stack-name" not in named:
        return Call(service, known, ALL)
    return Call(service, known, named.get("prefix", named.get("stack-name", "")))


def _bound(
    names: list[str], given: list[Value], named: Mapping[str | None, Value]
) -> dict[str, Value]:
    return {
        **dict(zip(names, given, strict=False)),
        **{name: named[name] for name in names if name in named},
    }


def _clients(value: Value) -> list[str]:
    return sorted(one.removeprefix(_CLIENT) for one in value if one.startswith(_CLIENT))


def _is_client(node: ast.expr) -> bool:
    """Whether the name is that of a client or of a maker: ``self._client``, ``waiting_client``, ``clients()``."""
    if isinstance(node, ast.Call):
        return _is_client(node.func) and not node.args
    name = (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )
    return re.fullmatch(r"_?(\w+_)?clients?", name) is not None
