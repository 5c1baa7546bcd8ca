"""Accuracy of the task itself: how often a form of a model gives the right class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from intact.data.labels import ANY_OUTPUT, Labels
from intact.errors import DataError
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
            f"output {name} has shape {list(output.shape)} for a sample with {count} label(s)",
            allowed="scores of two or more classes on the last axis, or classes as integers, one for each label",
        )
    return best.reshape(-1)


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
