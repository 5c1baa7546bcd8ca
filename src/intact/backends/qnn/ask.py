"""Asks the QNN library about one small model; runs in the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import onnxruntime as ort

from intact import scratch
from intact.backends.probing.joined_names import owner_of
from intact.backends.probing.probe_job import expected, greatest_error, sqnr
from intact.backends.qnn import job as qnn
from intact.backends.qnn.probe_log import MARK
from intact.runtime.ort_message import sentence

if TYPE_CHECKING:
    from intact.backends.probing.probe_job import JoinedQuestions, ProbeAnswer, ProbeQuestion
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
            if question["explain"]:
                _log_reasons(question)
            return {"verdict": "refused", "error": sentence(error)}
        in_float = any(True for _ in _float_nodes(Path(folder)))
    return {"verdict": "float" if in_float else "integer", **_compared(session, question)}


def ask_together(group: JoinedQuestions) -> list[ProbeAnswer | None] | None:
    """Answers to questions that share a model, None for those that are not wholly on the NPU; None if nothing runs."""
    with scratch.folder("graph") as folder:
        # Where nodes may be on the CPU, those at both ends of a graph would be, unless this is said.
        dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(folder), "offload_graph_io_quantization": "0"}
        try:
            session = _session(group, dump, fallback=True, verbose=False)
            feeds, wanted = expected(group)
            found = dict(zip(wanted, session.run(list(wanted), feeds), strict=True))
        # ORT's exception classes have no common base but Exception; its CPU stops at shapes that no operator takes.
        except Exception:
            return None
        in_float = [_owners(names) for names in _float_nodes(Path(folder))]
    assigned = session.get_provider_graph_assignment_info()
    left = [_owners([node.name for node in one.get_nodes()]) for one in assigned if one.ep_name != qnn.PROVIDER]
    if not all(in_float) or not all(left):
        return None
    return [
        _part(number, step, wanted, found, in_float=any(number in owners for owners in in_float))
        if not any(number in owners for owners in left)
        else None
        for number, step in zip(group["numbers"], group["steps"], strict=True)
    ]


def _owners(names: Sequence[str]) -> set[int]:
    """The questions of a joined model that these names are of."""
    return {number for number in map(owner_of, names) if number is not None}


def _part(
    number: int,
    step: float | None,
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    *,
    in_float: bool,
) -> ProbeAnswer:
    """The answer to one question of a joined model."""
    names = [name for name in wanted if owner_of(name) == number]
    right, given = ([values[name] for name in names] for values in (wanted, found))
    return {
        "verdict": "float" if in_float else "integer",
        "sqnr_db": sqnr(right, given),
        "steps": greatest_error(right, given, step),
    }


def _session(
    question: ProbeQuestion | JoinedQuestions, dump: dict[str, str], *, fallback: bool, verbose: bool
) -> ort.InferenceSession:
    chip: ChipOrder = {"arch": question["arch"], "soc_id": question["soc_id"], "ep_options": dump, "verbose": verbose}
    options = qnn.session_options(chip)
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if fallback else "1")
    return _staying(qnn.create(question["model"], options), question)


# The first session of a process on each chip. While one is there the library stays loaded, which is four fifths of
# what a small question costs.
_STAYS: dict[tuple[int, int | None], ort.InferenceSession] = {}


def _staying(session: ort.InferenceSession, question: ProbeQuestion | JoinedQuestions) -> ort.InferenceSession:
    chip = question["arch"], question["soc_id"]
    if chip not in _STAYS:
        _STAYS.clear()
        _STAYS[chip] = session
    return session


def _log_reasons(question: ProbeQuestion) -> None:
    """Ask once more for the sake of the log, which is the only place where reasons appear."""
    print(f"{MARK} {question['id']}", flush=True)
    try:
        _session(question, {}, fallback=True, verbose=True)
    except Exception as error:
        print(sentence(error), flush=True)
    print(MARK, flush=True)


def _float_nodes(folder: Path) -> Iterator[list[str]]:
    """The names in each node of the library's graph that reads or writes floats, conversions aside."""
    for path in folder.glob("*.json"):
        graph = json.loads(path.read_text(encoding="utf-8")).get("graph")
        for name, node in ({} if graph is None else graph["nodes"]).items():
            if _is_float(node, graph["tensors"]):
                yield [name, *node["input_names"], *node["output_names"]]


def _is_float(node: GraphNode, tensors: dict[str, GraphTensor]) -> bool:
    if node["type"] in _CONVERSIONS:
        return False
    names = [*node["input_names"], *node["output_names"]]
    return any(name in tensors and tensors[name]["data_type"] in _FLOATS for name in names)


def _compared(session: ort.InferenceSession, question: ProbeQuestion) -> ProbeAnswer:
    """The simulator's result against the CPU's; nothing where one of them stops."""
    try:
        feeds, wanted = expected(question)
        found = session.run(list(wanted), feeds)
    # ORT's exception classes have no common base but Exception.
    except Exception:
        return {"sqnr_db": None, "steps": None}
    worst = greatest_error(wanted.values(), found, question["step"])
    return {"sqnr_db": sqnr(wanted.values(), found), "steps": worst}
