"""`intact toolchain`: install, list and remove, and what other commands say of a toolchain that is missing."""

from __future__ import annotations

import json

import pytest

import intact
from intact.api import doctor as api_doctor
from intact.backends import installed
from intact.errors import NotAvailable, SettingsError
from intact.runtime import installation, toolchains
from tests.cli import command
from tests.runtime.fake_vendor import environment, recipe


class FakeBackend:
    """A device whose toolchain has an environment of its own."""

    title, packages, install, simulator = "Fake", ("fake-vendor",), None, None
    toolchain = recipe()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Call the command in this process, with a cache of its own and a device `fake`: its status, stdout and stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("INTACT_TOOLCHAIN_FAKE", raising=False)
    monkeypatch.setattr(installed, "every", lambda: iter([("fake", FakeBackend)]))
    return command.run


@pytest.fixture
def quick(monkeypatch):
    """Environments with the metadata of the package, without a virtual environment: see tests/runtime for those."""

    def make(made, version, base, advance):
        folder = toolchains.place(made, version)
        environment(folder, version)
        (folder / toolchains.RECORD).write_text(json.dumps({"requirements": made.pins(version)}))
        return toolchains.at(made, folder, "a test")

    monkeypatch.setattr(installation, "_made", make)


def rows(run):
    status, out, _ = run("toolchain", "list", "--json")
    assert status == 0
    return json.loads(out)["toolchains"]


def test_what_is_missing_is_listed_with_the_command_that_installs_it(run):
    assert rows(run) == [{"name": "fake", "installed": False, "version": None, "path": None}]
    assert "– fake: not installed: intact toolchain install fake" in run("toolchain", "list")[1]


def test_what_is_installed_is_listed_and_can_be_removed(run, quick, tmp_path):
    status, out, err = run("toolchain", "install", "fake")
    folder = tmp_path / "intact/toolchains/fake@1.0"
    assert status == 0 and f"fake: version 1.0 compiles an operator: {folder}" in out and str(folder) in err
    assert run("toolchain", "install", "fake@0.9")[0] == 0
    assert [(row["name"], row["version"]) for row in rows(run)] == [("fake", "1.0"), ("fake@0.9", "0.9")]
    assert rows(run)[0] == {"name": "fake", "installed": True, "version": "1.0", "path": str(folder)}
    assert run("toolchain", "remove", "fake")[0] == 0 and not folder.exists()
    assert [(row["name"], row["installed"]) for row in rows(run)] == [("fake", False), ("fake@0.9", True)]


@pytest.mark.parametrize("verb", ["install", "remove"])
@pytest.mark.parametrize(
    ("name", "code"), [("banana", "S210"), ("fake@", "S211"), ("fake@../..", "S211"), ("fake@--pre", "S211")]
)
def test_a_name_that_is_none_is_refused(run, verb, name, code):
    status, _, err = run("toolchain", verb, name)
    assert status == 2 and f"error[{code}]" in err and name in err


def test_a_device_whose_usual_library_is_beside_ours_needs_a_version(run, quick, monkeypatch):
    monkeypatch.setattr(FakeBackend, "toolchain", recipe(version=None))
    assert rows(run) == []
    status, _, err = run("toolchain", "install", "fake")
    assert status == 2 and "error[S212]" in err and "fake@VERSION" in err
    assert run("toolchain", "install", "fake@1.0")[0] == 0
    assert [row["name"] for row in rows(run)] == ["fake@1.0"]


def test_only_what_intact_made_is_removed(run, quick, tmp_path, monkeypatch):
    made = intact.install_toolchain("fake")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("INTACT_TOOLCHAIN_FAKE", made.path)
    status, _, err = run("toolchain", "remove", "fake")
    assert status == 5 and "error[E170]" in err and "INTACT_TOOLCHAIN_FAKE" in err
    assert [row.path for row in intact.list_toolchains()] == [made.path]


def test_a_build_without_its_toolchain_is_refused_before_any_work(run, monkeypatch):
    """The error names the one command that helps; doctor and targets say the same."""
    monkeypatch.setattr(installed, "find", lambda name: FakeBackend)
    monkeypatch.setattr(installed, "is_backend", lambda name: True)
    with pytest.raises(NotAvailable) as told:
        installed.versions("fake")
    assert (told.value.code, told.value.fix, told.value.status) == ("E160", "intact toolchain install fake", 5)
    checked = api_doctor._device("fake")
    assert (checked.state, checked.fix) == ("missing", "intact toolchain install fake")


def test_the_version_of_a_toolchain_is_that_of_its_environment(run, quick, monkeypatch):
    monkeypatch.setattr(installed, "find", lambda name: FakeBackend)
    monkeypatch.setattr(installed, "is_backend", lambda name: True)
    intact.install_toolchain("fake")
    assert installed.versions("fake")["fake-vendor"] == "1.0"
    intact.install_toolchain("fake@0.9")
    assert installed.versions("fake", "0.9")["fake-vendor"] == "0.9"


def test_a_device_without_a_toolchain_of_its_own_takes_none():
    with pytest.raises(SettingsError, match=r"cpu has none") as told:
        installed.versions("cpu", "1.0")
    assert told.value.code == "S213"
