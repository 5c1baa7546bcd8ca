"""Small faults in a source text, one at a time: another comparison, a constant off by one, a statement left out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "rint": "floor",
    "floor": "ceil",
    "ceil": "floor",
}
# Parts of a program that no test has to pin down: types, decorators, invariants of our own, the words of messages.
_LEFT_ALONE = ("annotation", "returns", "decorator_list", "type_params")
_SKIPPED = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


# The way from a module to a part of it: fields of nodes, and indices in those that are lists.
Path = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the function that it is in, the line as it was, and what became of a part of it."""

    place: str
    line: str
    change: str
    number: int
    lineno: int
    path: Path = field(repr=False)
    replacement: ast.AST = field(repr=False)

    @property
    def key(self) -> str:
        """A name without module and line number, which stays the same when files move."""
        repeated = f" #{self.number}" if self.number else ""
        return f"{self.place}: {self.line} [{self.change}]{repeated}"

    def tree(self, source: str) -> ast.Module:
        """The text that the fault was found in, with the fault."""
        result = ast.parse(source)
        parent: ast.AST = result
        for name, index in self.path[:-1]:
            parent = getattr(parent, name) if index is None else getattr(parent, name)[index]
        name, index = self.path[-1]
        if index is None:
            setattr(parent, name, self.replacement)
        else:
            getattr(parent, name)[index] = self.replacement
        return ast.fix_missing_locations(result)


def mutants(source: str) -> list[Mutant]:
    """Every fault of `source`, in the order of its text."""
    tree, lines = ast.parse(source), source.splitlines()
    settled = {id(part) for node in ast.walk(tree) for part in _settled(node)}
    seen: dict[tuple[str, str, str], int] = {}
    found = []
    for path, place, node in _nodes(tree, (), ""):
        if id(node) in settled:
            continue
        for change, replacement in _faults(node):
            name = (place or "the module", lines[node.lineno - 1].strip(), change)
            number = seen.get(name, 0)
            seen[name] = number + 1
            found.append(Mutant(*name, number, node.lineno, path, replacement))
    return found


def _nodes(node: ast.AST, path: Path, place: str) -> Iterator[tuple[Path, str, ast.expr | ast.stmt]]:
    """Every expression and statement that may be changed, with the way to it and the function that it is in."""
    if isinstance(node, _SKIPPED) or _is_docstring(node) or _is_for_types(node):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield path, place, node
    inside = f"{place}.{node.name}".lstrip(".") if isinstance(node, ast.FunctionDef | ast.ClassDef) else place
    for name, value in ast.iter_fields(node):
        if name in _LEFT_ALONE:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _nodes(item, (*path, (name, index)), inside)
        elif isinstance(value, ast.AST):
            yield from _nodes(value, (*path, (name, None)), inside)


def _settled(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that are left alone because no program could tell the difference."""
    match node:
        case ast.keyword(arg="strict" | "repr"):
            yield node.value
        case ast.Subscript(slice=ast.Constant()):
            yield node.slice  # An index is changed by a rule of its own.
        case ast.Call(func=ast.Attribute(attr="reshape")):
            # Every negative size means the same to numpy.
            yield from (size.operand for size in node.args if isinstance(size, ast.UnaryOp))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_types(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
    return False


Fault = tuple[str, ast.AST]


def _faults(node: ast.AST) -> Iterator[Fault]:
    for replacement in _RULES.get(type(node), lambda node: ())(node):
        located = ast.copy_location(replacement, node)
        yield f"{_text(node)} → {_text(replacement)}", located


def _text(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]


def _compare(node: ast.Compare) -> Iterator[ast.AST]:
    for index, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            yield ast.Compare(node.left, [*node.ops[:index], other(), *node.ops[index + 1 :]], node.comparators)


def _bin_op(node: ast.BinOp) -> Iterator[ast.AST]:
    if type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)


def _bool_op(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)


def _unary_op(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _constant(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node.value, float):
        yield ast.Constant(node.value * 2 if node.value else 1.0)


def _name(node: ast.Name) -> Iterator[ast.AST]:
    if node.id in _NAMES:
        yield ast.Name(_NAMES[node.id], node.ctx)


def _attribute(node: ast.Attribute) -> Iterator[ast.AST]:
    if node.attr in _NAMES:
        yield ast.Attribute(node.value, _NAMES[node.attr], node.ctx)


def _subscript(node: ast.Subscript) -> Iterator[ast.AST]:
    """The next index and the one before, but not the last for the first: many sequences have one element."""
    if isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
        for index in (node.slice.value + 1, node.slice.value - 1):
            if index >= 0:
                yield ast.Subscript(node.value, ast.Constant(index), node.ctx)


def _return(node: ast.Return) -> Iterator[ast.AST]:
    """None instead of a result, unless that is None or False, which callers take alike."""
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value in (None, False)):
        yield ast.Return(ast.Constant(None))


def _dropped(node: ast.stmt) -> Iterator[ast.AST]:
    yield ast.Pass()


def _has_opposite(test: ast.expr) -> bool:
    """True if one of the test's own faults is its negation already."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _if(node: ast.If) -> Iterator[ast.AST]:
    if not _has_opposite(node.test):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _if_exp(node: ast.IfExp) -> Iterator[ast.AST]:
    if not _has_opposite(node.test):
        yield ast.IfExp(node.test, node.orelse, node.body)


_RULES: dict[type[ast.AST], Callable[..., Iterator[ast.AST]]] = {
    ast.Compare: _compare,
    ast.BinOp: _bin_op,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary_op,
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Return: _return,
    ast.Expr: _dropped,
    ast.AugAssign: _dropped,
    ast.Continue: _dropped,
    ast.Raise: _dropped,
    ast.If: _if,
    ast.IfExp: _if_exp,
}
