"""`intact doctor`: what works here, what is missing with the command that installs it, and what is broken."""

from __future__ import annotations

import json
from importlib import metadata

import numpy as np
import pytest

from intact.api import doctor as api
from intact.backends import first_operator, installed
from intact.errors import NotAvailable, ToolchainError
from tests.cli import command


@pytest.fixture
def run(monkeypatch):
    """Call the command in this process, without vendors' toolchains: its status and stdout."""
    monkeypatch.setattr(installed, "names", lambda: ["cpu"])
    return lambda *args: command.run("doctor", *args)[:2]


def test_names_versions_and_runs_an_operator(run):
    status, out = run()
    assert status == 0 and f"onnxruntime {metadata.version('onnxruntime')}" in out
    assert "✓ cpu: Add in uint8 compiled and run" in out


def test_a_missing_extra_is_named_with_the_command_that_installs_it(run, monkeypatch):
    monkeypatch.setattr(api, "_version", lambda package: None if package == "torch" else "1.0")
    status, out = run("--json")
    [hf] = [one for one in json.loads(out)["extras"] if one["name"] == "hf"]
    assert (status, hf["state"], hf["fix"]) == (0, "missing", "pip install 'intact[hf]'") and "torch" in hf["found"]


def test_a_device_without_its_packages_is_missing_and_not_broken(run, monkeypatch):
    def refuse(name, asked=None):
        raise NotAvailable("E120", "vendor-package is not installed", fix="pip install 'intact[vendor]'")

    monkeypatch.setattr(installed, "versions", refuse)
    status, out = run()
    assert status == 0 and "– cpu: vendor-package is not installed\n      pip install 'intact[vendor]'" in out


def test_a_toolchain_that_dies_ends_with_status_5(run, monkeypatch):
    def die(*_):
        raise ToolchainError("E101", "the compiler died")

    monkeypatch.setattr(installed.find("cpu"), "compile", die)
    status, out = run()
    assert status == 5 and "✗ cpu: [E101] the compiler died" in out


def test_a_device_that_computes_something_else_is_broken(monkeypatch):
    right = first_operator.run_one_operator("cpu")
    cpu = installed.find("cpu")
    outputs = cpu.run
    monkeypatch.setattr(
        cpu, "run", lambda *a: [{name: value + 1 for name, value in row.items()} for row in outputs(*a)]
    )
    assert right.outcome == "runs" and first_operator.run_one_operator("cpu").outcome == "wrong"


def test_a_result_one_step_off_is_rounding():
    case = first_operator._case()
    session = first_operator.ort_cpu.Session(first_operator.model_of(case))
    expected = next(iter(session.run(first_operator.inputs_of(case)).values()))
    step = first_operator.step_of(case)
    assert np.ptp(expected) > 10 * step, "the operator has something to compute"
    assert [first_operator._compared(case, expected + off * step, "").outcome for off in (1, 2)] == ["runs", "wrong"]
