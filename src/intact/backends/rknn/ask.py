"""Questions of a probe to Rockchip's toolkit. Its own interpreter runs this file, which needs numpy and rknn alone.

`backends.rknn.answering` is the side that asks, and reads what is left here: for each question its log, and, where the
simulator ran, its results.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any, NoReturn

import numpy as np

# The toolkit imports these when it builds a model: here once for all questions.
import onnxruntime  # noqa: F401
import pkg_resources  # noqa: F401
from rknn.api import RKNN

# A question takes a twentieth of a second, and seconds on a machine with much else to do; on a few it does not end.
CPU_SECONDS = 10


def ask_all(request: dict[str, Any]) -> dict[str, Any]:
    """Put each of `questions` to the toolkit, in a copy of this process: it dies of some, and does not end on others.

    A question is a `model`, its `inputs` (.npz) and a `platform`; `log`, `built` and `outputs` are the files to write.
    The answer has, for each, how its process ended: the status, negative for a signal. A model that it does not end on
    is not tried for another platform: it goes round in passes over the graph that know none.
    """
    ends: list[int] = []
    endless: set[str] = set()
    for question in request["questions"]:
        ends.append(-signal.SIGXCPU if question["model"] in endless else _asked_apart(question))
        if ends[-1] == -signal.SIGXCPU:
            endless.add(question["model"])
    return {"ends": ends}


def _asked_apart(question: dict[str, str]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _ask(question)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _ask(question: dict[str, str]) -> NoReturn:
    """Compile and simulate one question, and end this process."""
    log = os.open(question["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    try:
        status = _simulated(question)
    # The toolkit raises whatever it likes; the sentence is in the log.
    except BaseException as error:
        sys.stdout.write(f"{type(error).__name__}: {_last_line(error)}\n")
        status = 1
    sys.stdout.flush()
    # Destructors need not run.
    os._exit(status)


def _simulated(question: dict[str, str]) -> int:
    """The status of the first step that failed, or 0."""
    toolkit = RKNN(verbose=True)
    toolkit.config(target_platform=question["platform"])
    if toolkit.load_onnx(model=question["model"]) != 0 or toolkit.build(do_quantization=False) != 0:
        return 1
    # What is built is placed; a simulator that stops leaves no results.
    sys.stdout.flush()
    open(question["built"], "wb").close()
    if toolkit.init_runtime() != 0:
        return 1
    with np.load(question["inputs"], allow_pickle=False) as arrays:
        feeds = [arrays[name] for name in arrays.files]
    found = toolkit.inference(inputs=feeds, data_format=["nchw"] * len(feeds))
    np.savez(question["outputs"], *found)
    return 0


def _last_line(error: BaseException) -> str:
    """The sentence at the end of an error, before which a whole traceback stands."""
    lines = str(error).strip().splitlines() or ["no reason was given"]
    return lines[-1].rpartition("Error: ")[2]
