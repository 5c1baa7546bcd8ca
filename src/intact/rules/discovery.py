"""Finds rules where they are written: a class in a file of a folder is a rule, and nothing else lists it.

The rules of a file stand in the order of their classes. A class whose name begins with an underscore, or that lacks a
pattern, a rewrite or a claim, is for others to derive from.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType

from intact.matching.rewriter import Rule


def files_of(package: ModuleType, order: Sequence[str] = ()) -> tuple[ModuleType, ...]:
    """The files of a folder: those named in `order` first, in that order, then the others by name."""
    found = sorted(item.name for item in pkgutil.iter_modules(package.__path__))
    assert set(order) <= set(found), f"{package.__name__} has no {', '.join(sorted(set(order) - set(found)))}"
    names = [*order, *(name for name in found if name not in order)]
    return tuple(importlib.import_module(f"{package.__name__}.{name}") for name in names)


def rules_of(module: ModuleType) -> tuple[Rule, ...]:
    """The rules of a file, in the order of their classes."""
    classes = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]
    return tuple(rule for one in classes if issubclass(one, Rule) and is_complete(one) for rule in one.variants())


def is_complete(kind: type[Rule]) -> bool:
    """True if a class is a rule, and not just the common part of several."""
    overridden = kind.pattern is not Rule.pattern and kind.rewrite is not Rule.rewrite
    return overridden and hasattr(kind, "exactness") and not kind.__name__.startswith("_")


def family_of(module: ModuleType) -> str:
    """The family that the rules of a file are of: the name of the file, unless it names another."""
    named: str = getattr(module, "FAMILY", module.__name__.rpartition(".")[2])
    return named


def families_of(package: ModuleType, order: Sequence[str] = ()) -> dict[str, tuple[Rule, ...]]:
    """The rules of a folder by family; families and their files stand in the order of `files_of`."""
    found: dict[str, tuple[Rule, ...]] = {}
    for module in files_of(package, order):
        rules = rules_of(module)
        if rules:
            found[family_of(module)] = found.get(family_of(module), ()) + rules
    return found
