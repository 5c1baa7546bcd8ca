"""The side of a probe that runs in the worker: puts one small model after another to a library."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from intact.runtime import ort_cpu

# Reported where a library and the CPU agree bit for bit.
_IDENTICAL = 999.0


def ask_all(request: dict[str, Any]) -> dict[str, Any]:
    """Answer each question of `request` and append the answer to the file `answers` at once.

    A library that dies takes only the question with it that it died of. `library` is the module that asks it: its
    `ask(question)` returns a verdict, with an error or the SQNR of the result.
    """
    library = importlib.import_module(request["library"])
    with open(request["answers"], "a", encoding="utf-8") as answers:
        for question in request["questions"]:
            answers.write(json.dumps({"id": question["id"], **library.ask(question)}) + "\n")
            answers.flush()
    return {}


def expected(question: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inputs of a question, and what ONNX Runtime's CPU provider makes of them."""
    with np.load(question["inputs"], allow_pickle=False) as arrays:
        feeds = dict(arrays)
    return feeds, ort_cpu.Session(Path(question["model"]), threads=1).run(feeds)


def sqnr(wanted: Iterable[np.ndarray], found: Iterable[np.ndarray]) -> float:
    """How two results compare, in dB."""
    right = np.concatenate([value.ravel() for value in wanted]).astype(np.float64)
    noise = np.concatenate([value.ravel() for value in found]).astype(np.float64) - right
    if not noise.any():
        return _IDENTICAL
    return round(float(10 * np.log10(np.sum(right**2) / np.sum(noise**2) + 1e-30)), 1)
