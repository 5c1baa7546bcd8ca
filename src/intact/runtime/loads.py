"""Loading a written model in a child process, as an application would: what crashes there must not reach a user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from intact.errors import IntactError, ModelError
from intact.runtime import process
from intact.runtime.trial_load import TrialLoad

# A session of the largest models that people build takes a minute; one that takes this long does not end.
TIMEOUT = 900.0

# Loading multiplies no matrices: the threads that numpy's library would start for that spin for longer than a small
# model takes to load.
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}

# A child process that loads models, as `loader` gives it.
Loader = process.Call


def check(*paths: Path, timeout: float = TIMEOUT, optimize: bool = True) -> None:
    """Refuse models that ONNX Runtime's CPU provider does not load, with its default optimizations or without any."""
    for path, problem in problems(*paths, timeout=timeout, optimize=optimize).items():
        raise refusal(path, problem)


def refusal(path: Path, problem: str) -> ModelError:
    """The error about a model that was written and does not load."""
    return ModelError(
        "M133",
        f"{path}: ONNX Runtime does not load the model that was written: {problem}",
        fix="intact lint names known causes; --exclude-node keeps the nodes in question in float",
    )


@contextmanager
def loader(timeout: float = TIMEOUT) -> Iterator[Loader]:
    """A child process that gets ready to load models while this one makes them."""
    with process.staying(timeout=timeout, imports="onnxruntime", environment=NO_THREADS, forks=True) as call:
        yield call


def problems(
    *paths: Path, timeout: float = TIMEOUT, optimize: bool = True, loader: Loader | None = None
) -> dict[Path, str]:
    """The reasons for which ONNX Runtime does not load models, by path; those that it loads are left out.

    They are loaded by a `loader` that is ready, or by a child process of their own.
    """
    if not paths:
        return {}
    # The child has another working directory.
    places = {str(path.absolute()): path for path in paths}
    try:
        order: TrialLoad = {"models": list(places), "optimize": optimize}
        call = loader or partial(process.call, timeout=timeout)
        reply = call("intact.runtime.trial_load:load", order)
    except IntactError as error:
        if len(paths) == 1:
            return {paths[0]: error.message}
        # The process died of one of them: alone, each tells.
        return {path: why for one in paths for path, why in problems(one, timeout=timeout, optimize=optimize).items()}
    return {places[path]: why for path, why in reply.result["refused"].items()}
