"""Asks the QNN library about one small model; runs in the worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import onnxruntime as ort

from intact import scratch
from intact.backends.probing.probe_job import expected, greatest_error, sqnr
from intact.backends.qnn import job as qnn
from intact.backends.qnn.probe_log import MARK
from intact.runtime.ort_message import sentence

if TYPE_CHECKING:
    from intact.backends.probing.probe_job import ProbeAnswer, ProbeQuestion
    from intact.backends.qnn.client import ChipOrder

_CONVERSIONS = {"Quantize", "Dequantize", "Convert", "Cast"}
# Qnn_DataType_t: 16 and 32 bits of float.
_FLOATS = {0x0216, 0x0232}


class GraphNode(TypedDict):
    """A node of the graph that the library writes down."""

    type: str
    input_names: list[str]
    output_names: list[str]


class GraphTensor(TypedDict):
    """A tensor of that graph."""

    data_type: int


def ask(question: ProbeQuestion) -> ProbeAnswer:
    """Put a question to the library; the answer has its reason, or the SQNR of its simulator."""
    with scratch.folder("graph") as folder:
        dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(folder)}
        try:
            session = _session(question, dump, fallback=False, verbose=False)
        # ORT's exception classes have no common base but Exception.
        except Exception as error:
            _log_reasons(question)
            return {"verdict": "refused", "error": sentence(error)}
        in_float = _computes_in_float(Path(folder))
    return {"verdict": "float" if in_float else "integer", **_compared(session, question)}


def _session(question: ProbeQuestion, dump: dict[str, str], *, fallback: bool, verbose: bool) -> ort.InferenceSession:
    chip: ChipOrder = {"arch": question["arch"], "soc_id": question["soc_id"], "ep_options": dump, "verbose": verbose}
    options = qnn.session_options(chip)
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if fallback else "1")
    return qnn.create(question["model"], options)


def _log_reasons(question: ProbeQuestion) -> None:
    """Ask once more for the sake of the log, which is the only place where reasons appear."""
    print(f"{MARK} {question['id']}", flush=True)
    try:
        _session(question, {}, fallback=True, verbose=True)
    except Exception as error:
        print(sentence(error), flush=True)
    print(MARK, flush=True)


def _computes_in_float(folder: Path) -> bool:
    """True if any node of the graph that the library was given, conversions aside, reads or writes floats."""
    for path in folder.glob("*.json"):
        graph = json.loads(path.read_text(encoding="utf-8")).get("graph")
        if graph is not None and any(_is_float(node, graph["tensors"]) for node in graph["nodes"].values()):
            return True
    return False


def _is_float(node: GraphNode, tensors: dict[str, GraphTensor]) -> bool:
    if node["type"] in _CONVERSIONS:
        return False
    names = [*node["input_names"], *node["output_names"]]
    return any(name in tensors and tensors[name]["data_type"] in _FLOATS for name in names)


def _compared(session: ort.InferenceSession, question: ProbeQuestion) -> ProbeAnswer:
    """The simulator's result against the CPU's; nothing where the simulator stops."""
    feeds, wanted = expected(question)
    try:
        found = session.run(list(wanted), feeds)
    # ORT's exception classes have no common base but Exception.
    except Exception:
        return {"sqnr_db": None, "steps": None}
    worst = greatest_error(wanted.values(), found, question["step"])
    return {"sqnr_db": sqnr(wanted.values(), found), "steps": worst}
