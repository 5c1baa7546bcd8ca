"""Asks the QNN library about one small model; runs in the worker."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime as ort

from intact.backends.probing.probe_job import expected, sqnr
from intact.backends.qnn import job as qnn
from intact.backends.qnn.probe_log import MARK
from intact.runtime.ort_message import sentence

_CONVERSIONS = {"Quantize", "Dequantize", "Convert", "Cast"}
# Qnn_DataType_t: 16 and 32 bits of float.
_FLOATS = {0x0216, 0x0232}


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """What the library says to a question, with its reason or with the SQNR of its simulator."""
    with tempfile.TemporaryDirectory(prefix="intact-graph-") as folder:
        dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": folder}
        try:
            session = _session(question, dump, fallback=False, verbose=False)
        # ORT's exception classes have no common base but Exception.
        except Exception as error:
            _log_reasons(question)
            return {"verdict": "refused", "error": sentence(error)}
        verdict = "float" if _computes_in_float(Path(folder)) else "integer"
    return {"verdict": verdict, "sqnr_db": _sqnr(session, question)}


def _session(question: dict[str, Any], dump: dict[str, str], *, fallback: bool, verbose: bool) -> ort.InferenceSession:
    chip = {"arch": question["arch"], "soc_id": question["soc_id"], "ep_options": dump, "verbose": verbose}
    options = qnn.session_options(chip)
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if fallback else "1")
    return qnn.create(question["model"], options)


def _log_reasons(question: dict[str, Any]) -> None:
    """Ask once more for the sake of the log, which is the only place where reasons appear."""
    print(f"{MARK} {question['id']}", flush=True)
    try:
        _session(question, {}, fallback=True, verbose=True)
    except Exception as error:
        print(sentence(error), flush=True)
    print(MARK, flush=True)


def _computes_in_float(folder: Path) -> bool:
    """Whether any node of the graph that the library was given, conversions aside, reads or writes floats."""
    for path in folder.glob("*.json"):
        graph = json.loads(path.read_text(encoding="utf-8")).get("graph")
        if graph is not None and any(_is_float(node, graph["tensors"]) for node in graph["nodes"].values()):
            return True
    return False


def _is_float(node: dict[str, Any], tensors: dict[str, Any]) -> bool:
    if node["type"] in _CONVERSIONS:
        return False
    names = [*node["input_names"], *node["output_names"]]
    return any(name in tensors and tensors[name]["data_type"] in _FLOATS for name in names)


def _sqnr(session: ort.InferenceSession, question: dict[str, Any]) -> float | None:
    """How the simulator's result compares with the CPU's; None where the simulator stops."""
    feeds, wanted = expected(question)
    try:
        found = session.run(list(wanted), feeds)
    # ORT's exception classes have no common base but Exception.
    except Exception:
        return None
    return sqnr(wanted.values(), found)
