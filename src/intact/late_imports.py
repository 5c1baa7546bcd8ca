"""Packages that are imported when they are first used.

onnx-ir computes with free dimensions by sympy, and imports it always: a quarter of a second in every process of ours,
none of which computes so. Its module with the formulas and sympy itself are run when something asks for their names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_LATE = frozenset(
    {
        *("sympy", "onnx_ir._symbolic_shapes"),
        # Other formats of messages than the one that files have, and messages in Python alone.
        *("google.protobuf.json_format", "google.protobuf.text_format", "google.protobuf.internal.python_message"),
        # Joining models, extracting parts of them, and writing the definition of the format itself.
        *("onnx.compose", "onnx.utils", "onnx.gen_proto"),
    }
)


class LateFinder:
    """Finds some modules where they are, and has them run on first use.

    It is a finder by its method alone: the class of all finders comes with modules for the resources of packages.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as Python finds it, to be run late; None leaves it to the other finders."""
        if fullname not in _LATE:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found


def install() -> None:
    """Have the modules imported late by whoever imports them after this."""
    if not any(isinstance(finder, LateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LateFinder())
