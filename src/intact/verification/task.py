"""Accuracy of the task itself: how often a form of a model gives the right class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from intact.data.labels import ANY_OUTPUT, Labels
from intact.errors import DataError
from intact.records import dataclass
from intact.results import Form, TaskAccuracy


@dataclass(slots=True)
class Tally:
    """Right answers of one form so far, by output; samples are added in the order of their labels."""

    labels: Labels
    samples: int = 0
    correct: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Take in what a model gave for the next sample."""
        for name, labels in _by_output(self.labels, outputs).items():
            right = labels[self.samples]
            _refuse_unknown(right, outputs[name], name, self.labels.where)
            self.correct[name] += int(np.sum(classes(outputs[name], right.size, name) == right))
            self.total[name] += right.size
        self.samples += 1

    def rows(self, form: Form, runtime: str) -> tuple[TaskAccuracy, ...]:
        """One row for each output that has labels."""
        return tuple(
            TaskAccuracy(form, runtime, name, self.correct[name], total, self.correct[name] / total)
            for name, total in self.total.items()
        )


def classes(output: np.ndarray, count: int, name: str) -> np.ndarray:
    """The `count` classes that an output names: those with the best score on its last axis, or its integers."""
    if output.size == count and np.issubdtype(output.dtype, np.integer):
        return output.reshape(-1)
    best = output.argmax(axis=-1) if output.ndim and output.shape[-1] > 1 else np.zeros(0)
    if best.size != count:
        raise DataError(
            "D135",
            f"output {name} has shape {list(output.shape)} for a sample with {count} label{'s' * (count != 1)}",
            allowed="scores of two or more classes on the last axis, or classes as integers, one for each label",
        )
    return best.reshape(-1)


def _refuse_unknown(labels: np.ndarray, output: np.ndarray, name: str, where: str) -> None:
    """Refuse labels that no output could name: both forms would miss them alike, and any gate would hold."""
    scores = not (output.size == labels.size and np.issubdtype(output.dtype, np.integer))
    known = output.shape[-1] if scores and output.ndim else None
    outside = labels[(labels < 0) | ((labels >= known) if known is not None else False)]
    if outside.size:
        allowed = "0 and above" if known is None else f"0 to {known - 1}: output {name} has {known} classes"
        raise DataError(
            "D137",
            f"{where}: label {int(outside.reshape(-1)[0])} is no class of output {name}",
            allowed=allowed,
            fix="number the classes as the model does, and leave out rows without a label",
        )


def _by_output(labels: Labels, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The labels under the name of the output that they are for."""
    found = dict(labels.by_output)
    if set(found) == {ANY_OUTPUT} and ANY_OUTPUT not in outputs and len(outputs) == 1:
        return {next(iter(outputs)): found[ANY_OUTPUT]}
    unknown = [name for name in found if name not in outputs]
    if unknown:
        raise DataError(
            "D136",
            f"{labels.where}: {unknown[0]} is no output of the model",
            allowed=", ".join(outputs),
            fix="save the labels in an .npz file, under the name of the output that they are for",
        )
    return found
