"""Answers to a probe from what Rockchip's toolkit leaves behind: its log, its results, and the end of its process."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from intact.backends.probing import asking, chips
from intact.backends.probing.asking import Question
from intact.backends.rknn import client
from intact.backends.rknn.backend import BACKEND
from intact.model import io
from intact.runtime import ort_cpu, process
from tests.backends.probing.cases import by_name

TABLE = r"""
D RKNN: [11:32:43.660]                             Network Layer Information Table
D RKNN: [11:32:43.660] 1    {kind}   {type}  {place}    (1,8,4,4)  (1,8,4,4)    78/64/78               1       {kind}:{name}
"""  # noqa: E501
INTEGER, FLOAT = "Relu (int8) -> int8", "Relu (float) -> float"


@pytest.fixture
def toolkit(monkeypatch):
    """A toolkit that does with every question as it is told; it records the questions."""
    asked = []

    def use(*, end=0, built=True, place="NPU", type="INT8", right=True, log=""):
        def call(job, request, *, timeout, python):
            for order in request["questions"]:
                asked.append(order)
                nodes = [node.name for node in io.load(Path(order["model"])).graph if node.op_type == "Relu"]
                order["nodes"] = nodes
                Path(order["log"]).write_text(log or TABLE.format(kind="Relu", type=type, place=place, name=nodes[0]))
                if built:
                    Path(order["built"]).touch()
                    with np.load(order["inputs"]) as arrays:
                        found = ort_cpu.Session(Path(order["model"])).run(dict(arrays)).values()
                    np.savez(order["outputs"], *(value if right else -value for value in found))
            return process.Reply({"ends": [end] * len(request["questions"])}, "")

        monkeypatch.setattr(process, "call", call)
        monkeypatch.setattr(client, "toolkit", lambda: SimpleNamespace(python=None))
        return asked

    return use


def answer(name, soc="rk3588"):
    [number] = chips.numbers_of("rknn", [soc])
    [(_, found)] = asking.ask(BACKEND.library, [Question(by_name()[name], number, number)])
    return found


def test_an_operator_on_the_npu_is_taken_in_the_numbers_of_its_layer(toolkit):
    toolkit()
    assert (answer(INTEGER).verdict, answer(INTEGER).sqnr_db) == ("integer", 999.0)
    toolkit(type="FLOAT16")
    assert answer(FLOAT).verdict == "float"


def test_an_operator_on_the_cpu_is_refused_and_its_numbers_are_told_all_the_same(toolkit):
    toolkit(place="CPU")
    found = answer(INTEGER)
    assert (found.verdict, found.reason, found.sqnr_db) == ("refused", "the compiler computes it on the CPU", 999.0)


def test_wrong_numbers_are_no_right_answer(toolkit):
    toolkit(right=False)
    found = answer(INTEGER)
    assert found.verdict == "integer" and not found.accepted and found.sqnr_db < 0


@pytest.mark.parametrize(
    ("end", "verdict", "reason"),
    [
        (1, "refused", "Meet unsupported conv, input type: 3"),
        (-signal.SIGSEGV, "died", "the process died of SIGSEGV"),
        (-signal.SIGXCPU, "died", "the compiler does not end"),
    ],
)
def test_a_compiler_that_does_not_build_it_refuses_it_or_died_of_it(toolkit, end, verdict, reason):
    toolkit(end=end, built=False, log="E RKNN: [11:40:53.453] Meet unsupported conv, input type: 3\n")
    found = answer(INTEGER)
    assert (found.verdict, found.reason, found.sqnr_db) == (verdict, reason, None)


def test_what_the_compiler_cannot_read_is_not_asked(toolkit):
    asked = toolkit()
    found = answer("Relu (int16) -> int16")
    assert found.verdict == "refused" and "opset 19" in found.reason and asked == []


@pytest.mark.parametrize(("soc", "count"), [("rk3588", 1), ("rv1106", 2)])
def test_floats_are_asked_beside_integers_where_a_chip_has_no_half_precision(toolkit, soc, count):
    asked = toolkit(type="FLOAT16")
    found = answer(FLOAT, soc)
    assert (found.verdict, found.sqnr_db) == ("float", 999.0)
    [order] = asked
    assert order["platform"] == soc
    assert len(order["nodes"]) == count


def test_every_chip_of_the_table_has_a_number_of_its_own():
    numbers = chips.numbers("rknn")
    assert len(set(numbers)) == len(numbers) == 10
    assert [chips.target_of("rknn", number).soc.id for number in numbers] == numbers
    assert chips.label("rknn", 3588) == "RK3588" and chips.usual("rknn") == 3588
