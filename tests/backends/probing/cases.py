"""Models of single operators, by the line that names a probe's case."""

from __future__ import annotations

import functools

from intact.backends.probing.cases import cases
from intact.backends.probing.models import PROBED, model_of


@functools.cache
def by_name():
    return {case.name: case for case in cases()}


def model(name):
    """The model of a case, and the node that it is about."""
    built = model_of(by_name()[name])
    return built, next(node for node in built.graph if node.name == PROBED)
