"""Dataclasses that cost little to define: the method that makes an instance is written when the first one is made.

The standard library writes and compiles the source of six methods when a class is defined. That took a fifth of the
time in which `intact.quantize` loads, and of most classes a run makes no instance. Fields, `replace` and `asdict` are
those of the standard library, and a class behaves as one of its own does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    from operator import attrgetter
    from reprlib import recursive_repr
    from types import MethodType

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True, kw_only=False):
        """The decorator of the standard library, with the options that are used here."""

        def decorated(plain):
            own = set(plain.__dict__)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(plain)
            for name, method in _methods(made, own, frozen, slots, eq, repr):
                setattr(made, name, method)
            return made

        return decorated if cls is None else decorated(cls)

    def _methods(cls, own, frozen, slots, eq, repr):
        """The methods of a class by name, without those that it has of its own."""
        found = {"__init__": _LateInit(cls, frozen)}
        if repr:
            found["__repr__"] = _repr
        if frozen:
            found |= {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        if frozen and slots:
            found |= {"__getstate__": _state, "__setstate__": _restore}
        if eq:
            found |= {"__eq__": _equality(cls), "__hash__": _hash(cls) if frozen else None}
        # Python itself sets __hash__ to None where a class says when its instances are equal.
        known = own - {"__hash__"} if cls.__dict__.get("__hash__") is None else own
        return [(name, method) for name, method in found.items() if name not in known]

    class _LateInit:
        """Stands for the `__init__` of a class until someone asks for it."""

        __slots__ = ("cls", "frozen")

        def __init__(self, cls, frozen):
            self.cls, self.frozen = cls, frozen

        def __get__(self, instance, owner=None):
            written = self.cls.__init__ = _written_init(self.cls, self.frozen)
            return written if instance is None else MethodType(written, instance)

    def _written_init(cls, frozen):
        """Compile the `__init__` of a class from its fields."""
        values = {"_set": object.__setattr__, "_MADE": object()}
        fields = sorted(dataclasses.fields(cls), key=lambda one: one.kw_only)
        parameters, lines = ["self"], []
        for one in fields:
            if one.init and one.kw_only and "*" not in parameters:
                parameters.append("*")
            parameter, value = _assignment(one, values)
            parameters += [parameter] if parameter else []
            if value:
                lines.append(f"_set(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        source = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
        exec(compile(source, f"<{cls.__qualname__}.__init__>", "exec"), values)
        written = values["__init__"]
        written.__qualname__, written.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        written.__annotations__ = {one.name: one.type for one in fields if one.init} | {"return": None}
        return written

    def _assignment(one, values):
        """The parameter of a field and the expression of its value, each of which it may be without."""
        default, maker = f"_default_{one.name}", f"_make_{one.name}"
        if one.default_factory is not dataclasses.MISSING:
            values[maker] = one.default_factory
            if not one.init:
                return None, f"{maker}()"
            return f"{one.name}=_MADE", f"{maker}() if {one.name} is _MADE else {one.name}"
        if one.default is not dataclasses.MISSING:
            values[default] = one.default
            return (f"{one.name}={default}", one.name) if one.init else (None, default)
        return (one.name, one.name) if one.init else (None, None)

    def _equality(cls):
        key = _values_of([one.name for one in dataclasses.fields(cls) if one.compare])

        def __eq__(self, other):
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        return __eq__

    def _hash(cls):
        key = _values_of(
            [one.name for one in dataclasses.fields(cls) if (one.compare if one.hash is None else one.hash)]
        )

        def __hash__(self):
            return hash(key(self))

        return __hash__

    def _values_of(names):
        """The function from an instance to the tuple of these attributes."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda instance: tuple(getattr(instance, name) for name in names)

    @recursive_repr()
    def _repr(self):
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    def _refuse_to_assign(self, name, value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_to_delete(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _state(self):
        return [getattr(self, one.name) for one in dataclasses.fields(self)]

    def _restore(self, state):
        for one, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, one.name, value)
