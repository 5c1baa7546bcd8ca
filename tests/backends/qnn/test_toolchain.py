"""Another version of the Hexagon compiler than the one beside intact, from an environment of its own."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from intact.api import doctor
from intact.backends import installed, other_version
from intact.backends.base import Device
from intact.backends.qnn.toolchain import TOOLCHAIN
from intact.errors import NotAvailable
from intact.runtime import installation, ort_cpu, toolchains
from tests.backends import qdq
from tests.runtime.fake_vendor import environment

OTHER = "9.9.0"
REAL = "2.6.0"


@pytest.fixture
def other(tmp_path, monkeypatch):
    """An environment whose library says that it is of another version; what it does is done by the one that is here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packages = environment(tmp_path / "other", OTHER, "onnxruntime-qnn")
    here = Path(str(metadata.distribution("onnxruntime-qnn").locate_file("onnxruntime_qnn")))
    (packages / "onnxruntime_qnn").symlink_to(here, target_is_directory=True)
    return tmp_path / "other"


@pytest.mark.qnn
def test_an_environment_that_a_setting_names_compiles_and_runs(other, tmp_path):
    device, backend = Device("qnn", 120, 73, toolchain=str(other)), installed.find("qnn")
    compiled = backend.compile(qdq.cnn(), device, tmp_path, {})
    assert compiled.runtime == f"onnxruntime-qnn {OTHER}, simulator of v73"
    sample = qdq.images(1)[0]
    [found] = backend.run(compiled.path, [sample], device)
    [expected] = ort_cpu.Session(qdq.cnn()).run(sample).values()
    assert np.abs(next(iter(found.values())) - expected).max() < 0.1 * np.ptp(expected)


@pytest.mark.qnn
def test_its_version_is_that_of_the_build_and_the_table_was_probed_with_another(other, monkeypatch):
    assert installed.versions("qnn", str(other))["onnxruntime-qnn"] == OTHER
    assert other_version.library_drift("qnn", str(other))[1] == f"onnxruntime-qnn {OTHER}"
    usual = metadata.version("onnxruntime-qnn")
    assert installed.versions("qnn")["onnxruntime-qnn"] == usual
    monkeypatch.setenv("INTACT_TOOLCHAIN_QNN", str(other))
    assert installed.versions("qnn")["onnxruntime-qnn"] == OTHER


@pytest.mark.qnn
def test_its_job_for_installation_compiles_an_operator(other):
    installation.check(TOOLCHAIN, toolchains.at(TOOLCHAIN, other, "a test"))


def test_a_version_that_is_not_installed_is_told_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotAvailable) as told:
        installed.versions("qnn", "2.5.0")
    assert (told.value.code, told.value.fix) == ("E160", "intact toolchain install qnn@2.5.0")


def test_doctor_looks_at_every_version_that_is_installed(monkeypatch):
    monkeypatch.setattr(installed, "names", lambda: ["qnn"])
    monkeypatch.setattr(doctor.installation, "versions", lambda recipe: ["2.5.0", "2.6.0"])
    monkeypatch.setattr(doctor, "_device", lambda name, version: (name, version))
    assert doctor.doctor().devices == (("qnn", None), ("qnn", "2.5.0"), ("qnn", "2.6.0"))


@pytest.mark.qnn
@pytest.mark.slow
def test_a_real_other_version_runs_an_operator():
    if toolchains.find(TOOLCHAIN, REAL) is None:
        pytest.skip(f"qnn@{REAL} is not installed (intact toolchain install qnn@{REAL})")
    found = doctor._device("qnn", REAL)
    assert (found.state, f"onnxruntime-qnn {REAL}" in found.found) == ("ok", True)
