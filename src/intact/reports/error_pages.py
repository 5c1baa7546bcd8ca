"""The page of an error code: what it is about, what it says, and what to do, taken from the code that raises it."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from intact.records import dataclass

CODE = re.compile(r"[SDOMTEG]\d{3}")

KINDS = {
    "S": "a flag, a settings file or a call is wrong (status 2)",
    "D": "calibration or test inputs do not fit (status 2)",
    "O": "output cannot go where it was asked to go (status 2)",
    "M": "the model cannot be used (status 3)",
    "T": "the device cannot take the model (status 4)",
    "E": "the environment: something is missing, or a vendor's library failed (status 5)",
    "G": "the build is complete, but a gate did not hold (status 1)",
}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A place that uses a code: the purpose of the function, the words, what is allowed, and what to do."""

    purpose: str
    said: str
    allowed: str
    fix: str


def known_codes() -> list[str]:
    """Every code of an error, in order."""
    return sorted({code for text in _sources() for code in re.findall(rf'"({CODE.pattern})"', text)})


def page(code: str) -> str:
    """The explanation of a code."""
    lines = [f"{code}: {KINDS[code[0]]}"]
    for found in dict.fromkeys(_occurrences(code)):
        lines += ["", found.purpose]
        lines += [f"  said: {found.said}"] if found.said else []
        lines += [f"  allowed: {found.allowed}"] if found.allowed else []
        lines += [f"  fix: {found.fix}"] if found.fix else []
    return "\n".join(lines)


def _occurrences(code: str) -> list[Occurrence]:
    found: list[Occurrence] = []
    for text in _sources():
        if f'"{code}"' in text:
            _visit(ast.parse(text), code, "", found)
    return found


def _visit(node: ast.AST, code: str, purpose: str, found: list[Occurrence]) -> None:
    """Walk down to the literals of a code, with the first sentence of the innermost docstring around them."""
    if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
        purpose = (ast.get_docstring(node) or purpose).partition("\n")[0]
    if isinstance(node, ast.Call) and any(_is(argument, code) for argument in node.args):
        place = next(number for number, argument in enumerate(node.args) if _is(argument, code))
        words = {keyword.arg: _words(keyword.value) for keyword in node.keywords}
        said = _words(node.args[place + 1]) if len(node.args) > place + 1 else ""
        found.append(Occurrence(purpose, said, words.get("allowed", ""), words.get("fix", "")))
    elif isinstance(node, ast.Dict):
        found += [entry for pair in zip(node.keys, node.values, strict=True) for entry in _pair(*pair, code, purpose)]
        return
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        names = zip(ast.unparse(node.targets[0]).strip("()").split(", "), node.value.elts, strict=False)
        called = [name.lower().replace("_", " ") for name, value in names if _is(value, code)]
        found += [Occurrence(purpose, name, "", "") for name in called]
        return
    elif _is(node, code):
        found.append(Occurrence(purpose, "", "", ""))
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and _is(child, code)):
            _visit(child, code, purpose, found)


def _pair(key: ast.expr | None, value: ast.expr, code: str, purpose: str) -> list[Occurrence]:
    """An entry of a dictionary: what has a code, or what to do about one."""
    if key is not None and _is(key, code):
        return [Occurrence(purpose, "", "", _words(value))]
    return [Occurrence(purpose, f"{_words(key)} of a node", "", "")] if key is not None and _is(value, code) else []


def _is(node: ast.AST, code: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == code


def _words(node: ast.expr) -> str:
    """The words of a message, with … for what is filled in when it is raised."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _words(node.left) + _words(node.right)
    return "…"


@cache
def _sources() -> tuple[str, ...]:
    """The text of every module of the package."""
    return tuple(_texts(resources.files("intact")))


def _texts(folder: Traversable) -> list[str]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    own = [entry.read_text(encoding="utf-8") for entry in entries if entry.name.endswith(".py")]
    return own + [text for entry in entries if entry.is_dir() for text in _texts(entry)]
