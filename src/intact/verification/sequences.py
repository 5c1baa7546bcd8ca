"""Models with state: what a step returns for the next one is fed back, for as many steps as there are rows.

A single step from a given state shows nothing of errors that add up; a sequence does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from intact.data import Feeds
from intact.errors import SettingsError
from intact.settings.config import nearest
from intact.verification.compare import Outputs, Runner

# Words of names that say which end of a step a state is at, and nothing about what it is.
_BEFORE = {"in", "input", "prev", "previous", "past", "old", "last", "init", "initial", "0"}
_AFTER = {"out", "output", "next", "new", "n", "present", "final", "updated", "1"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
# The usual names of the states of an LSTM.
_SHORT = {"hn": ("h", "n"), "cn": ("c", "n")}


def states_of(asked: Mapping[str, str] | None, row: Outputs, returned: Outputs) -> dict[str, str]:
    """The inputs that are states, each with the output that the next step reads: as asked for, else by their names.

    By name a pair agrees in all words but those for before and after, and in type and shape. A model whose inputs or
    outputs are all states is taken for one without: an image and its `image_out` are no steps of a sequence.
    """
    if asked is not None:
        _check(asked, row, returned)
        return dict(asked)
    named = namesakes(row, returned)
    found = {name: output for name, output in named.items() if _alike(row[name], returned[output])}
    return found if len(found) < min(len(row), len(returned)) else {}


def namesakes(inputs: Iterable[str], outputs: Iterable[str]) -> dict[str, str]:
    """Inputs and outputs that are called alike but for words for before and after, and unlike all others."""
    before, after = _by_stem(inputs, _BEFORE), _by_stem(outputs, _AFTER)
    both = [stem for stem in before if stem and len(before[stem]) == 1 == len(after.get(stem, ()))]
    return {before[stem][0]: after[stem][0] for stem in both}


def chained(runner: Runner, states: Mapping[str, str]) -> Runner:
    """The runner with its own outputs in the place of the states of every row but the first."""
    if not states:
        return runner

    def outputs(rows: Iterable[Feeds]) -> Iterator[Outputs]:
        carried: dict[str, np.ndarray] = {}
        for found in runner.outputs({**row, **carried} for row in rows):
            carried.update({name: np.asarray(found[output]) for name, output in states.items()})
            yield found

    return replace(runner, outputs=outputs)


def _by_stem(names: Iterable[str], words: set[str]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        found.setdefault(_stem(name, words), []).append(name)
    return found


def _stem(name: str, words: set[str]) -> tuple[str, ...]:
    found = (word.lower() for word in _WORD.findall(name))
    return tuple(word for given in found for word in _SHORT.get(given, (given,)) if word not in words)


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    # A sequence of tensors comes as a list.
    return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape


def _check(asked: Mapping[str, str], row: Outputs, returned: Outputs) -> None:
    for name, output in asked.items():
        for what, given, known in (("input", name, list(row)), ("output", output, list(returned))):
            if given not in known:
                text = f"--state {name}={output}: the model has no {what} {given!r}{nearest(given, known)}"
                raise SettingsError("S200", text, allowed=", ".join(known))
        if not _alike(row[name], returned[output]):
            shapes = [f"{array.dtype}{list(array.shape)}" for array in (row[name], returned[output])]
            raise SettingsError("S200", f"--state {name}={output}: {shapes[1]} cannot be fed to {shapes[0]}")
