"""Toolchains in environments of their own: made whole or not at all, found where they are, and left alone by ours."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from intact import scratch
from intact.errors import NotAvailable, ToolchainError
from intact.events import Silence
from intact.runtime import installation, process, toolchains
from tests.runtime.fake_vendor import THIS_PYTHON, environment, recipe, wheel

JOBS = "tests.runtime.toolchain_jobs"


class Notes(Silence):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A toolchain that was installed, for all tests that only look at it: a virtual environment takes seconds."""
    cache, links = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("wheels")
    wheel(links, "1.0")
    with pytest.MonkeyPatch.context() as patch:
        _point_pip_to(patch, links, cache)
        yield installation.install(recipe(), "1.0", None, Silence())


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache, and pip that has nothing to fetch from."""
    _point_pip_to(monkeypatch, tmp_path, tmp_path / "cache")
    monkeypatch.delenv("INTACT_TOOLCHAIN_FAKE", raising=False)
    return toolchains.home()


@pytest.fixture
def quick(monkeypatch, home):
    """Commands of the new environment that write what those would, at once; `failing` names one that does not."""
    commands = []

    def run(command, folder, seconds, refusal):
        commands.append(command)
        if "venv" in command:
            environment(folder, "1.0")
        if any(word in command for word in run.failing):
            raise run.failing.pop()
        return "fake-vendor==1.0\n" if "freeze" in command else ""

    run.failing, run.commands = {}, commands
    monkeypatch.setattr(installation, "_run", run)
    monkeypatch.setattr(installation, "check", lambda *_: None)
    return run


def _point_pip_to(patch, links, cache):
    patch.setenv("XDG_CACHE_HOME", str(cache))
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(links))
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        patch.delenv(name, raising=False)


def refused(call, *args):
    with pytest.raises(ToolchainError) as caught:
        call(*args)
    assert caught.value.status == 5
    return caught.value


class TestAnEnvironmentThatWasMade:
    def test_has_the_pinned_packages_and_its_record_says_which(self, made):
        record = json.loads((made.path / toolchains.RECORD).read_text())
        assert (made.version, made.path.name) == ("1.0", "fake@1.0")
        assert record["requirements"] == ["fake-vendor==1.0"] and "fake-vendor==1.0" in record["packages"]
        assert not any("not-here" in line for line in record["packages"]), (
            "what packages ask for themselves is left out"
        )

    def test_is_found_by_its_recipe(self, made):
        assert toolchains.find(recipe()) == toolchains.require(recipe()) == made
        assert installation.versions(recipe()) == ["1.0"]

    def test_is_not_that_of_a_recipe_with_other_pins(self, made):
        assert toolchains.find(recipe(requirements=("fake-vendor=={version}", "other==2"))) is None
        assert toolchains.find(recipe(), "2.0") is None

    def test_is_not_made_again(self, made, monkeypatch):
        monkeypatch.setattr(installation, "_run", lambda *_: pytest.fail("nothing is to be run"))
        events = Notes()
        assert installation.install(recipe(), "1.0", None, events) == made
        assert "is installed already" in events.notes[0]

    def test_runs_a_job_that_sees_its_packages_and_nothing_of_ours(self, made):
        found = process.call(f"{JOBS}:look", {}, timeout=60, python=made.python).result
        assert found["prefix"] == str(made.path) and found["vendor"] == "1.0" and found["seed"] == "0"
        assert found["there"] == dict.fromkeys(("intact", "numpy", "process", "worker"), False)

    def test_keeps_a_job_within_its_limits_of_time_and_memory(self, made):
        late = refused(lambda: process.call(f"{JOBS}:sleep", {}, timeout=2, python=made.python))
        large = refused(lambda: process.call(f"{JOBS}:hog", {}, timeout=60, memory_limit=1 << 30, python=made.python))
        assert (late.code, large.code) == ("E103", "E104")

    def test_is_taken_where_a_variable_names_it(self, made, home, monkeypatch):
        assert toolchains.find(recipe()) is None
        monkeypatch.setenv("INTACT_TOOLCHAIN_FAKE", str(made.path))
        assert toolchains.find(recipe()) == made
        assert toolchains.find(recipe(), "1.0") is None, "a version that is asked for is one that intact installed"

    def test_is_taken_where_a_setting_names_its_folder(self, made, home):
        assert toolchains.chosen(recipe(), str(made.path)) == made
        assert refused(toolchains.chosen, recipe(), "1.0").fix == "intact toolchain install fake@1.0"

    def test_stands_before_our_packages_where_it_gets_along_with_them(self, made):
        beside = toolchains.at(recipe(beside=True), made.path, "a test")
        found = process.call(f"{JOBS}:look", {}, timeout=60, python=beside.python).result
        assert found["vendor"] == "1.0" and found["there"]["numpy"] and not found["there"]["worker"]
        assert found["prefix"] == sys.prefix

    def test_whose_operator_does_not_compile_is_told_with_the_vendors_words(self, made):
        told = refused(installation.check, recipe(check=f"{JOBS}:fail"), made)
        assert told.code == "E166" and "libvendor.so" in told.message and str(made.path) in told.message
        assert told.fix == "ask the vendor"


class TestAbsence:
    def test_is_an_error_with_the_command_that_helps(self, home):
        told = refused(toolchains.require, recipe())
        assert isinstance(told, NotAvailable) and told.code == "E160" and "fake-vendor" in told.message
        assert told.fix == "intact toolchain install fake" and "INTACT_TOOLCHAIN_FAKE" in told.allowed

    @pytest.mark.parametrize("folder", ["absent", "empty", "environment"])
    def test_of_what_a_variable_names_is_told_and_nothing_else_is_taken(self, folder, quick, tmp_path, monkeypatch):
        installation.install(recipe(), "1.0", None, Silence())
        (tmp_path / "empty").mkdir()
        environment(tmp_path / "environment", "1.0", "something-else")
        monkeypatch.setenv("INTACT_TOOLCHAIN_FAKE", str(tmp_path / folder))
        told = refused(toolchains.find, recipe())
        assert told.code == "E161" and str(tmp_path / folder) in told.message and "FAKE" in told.message
        assert ("has no fake-vendor" in told.message) == (folder == "environment")

    @pytest.mark.skipif(sys.platform == "win32", reason="environments do not tell their Python by their folders there")
    def test_of_our_python_in_an_environment_that_stands_beside_ours(self, quick):
        made = installation.install(recipe(), "1.0", None, Silence())
        (made.path / "lib").rename(made.path / "held")
        (made.path / "lib").mkdir()
        (made.path / f"held/python{THIS_PYTHON}").rename(made.path / "lib/python3.99")
        assert toolchains.find(recipe()) is not None
        assert "python3.99" in refused(toolchains.find, recipe(beside=True)).message


class TestInstalling:
    def test_pins_are_all_that_pip_is_given(self, quick):
        installation.install(recipe(requirements=("fake-vendor=={version}", "other==2")), "1.0", None, Silence())
        [command] = [command for command in quick.commands if "install" in command]
        assert {"--no-deps", "--only-binary"} < set(command) and command[-2:] == ["fake-vendor==1.0", "other==2"]

    @pytest.mark.parametrize("step", ["venv", "install", "freeze"])
    @pytest.mark.parametrize("end", [ToolchainError("E165", "pip fails"), KeyboardInterrupt(), OSError(28, "full")])
    def test_that_ends_on_the_way_leaves_nothing(self, step, end, quick, home):
        class Failing(dict):
            def pop(self):
                return end

        quick.failing = Failing({step: end})
        with pytest.raises(type(end) if not isinstance(end, OSError) else ToolchainError):
            installation.install(recipe(), "1.0", None, Silence())
        assert not (home / "fake@1.0").exists() and toolchains.find(recipe()) is None

    def test_whose_check_fails_leaves_nothing(self, quick, home, monkeypatch):
        def fail(*_):
            raise ToolchainError("E166", "it does not compile")

        monkeypatch.setattr(installation, "check", fail)
        assert refused(installation.install, recipe(), "1.0", None, Silence()).code == "E166"
        assert not (home / "fake@1.0").exists()

    def test_replaces_half_of_an_environment_that_a_killed_one_left(self, quick, home):
        (home / "fake@1.0/bin").mkdir(parents=True)
        (home / "fake@1.0/bin/litter").write_text("half")
        assert toolchains.find(recipe()) is None and installation.versions(recipe()) == []
        made = installation.install(recipe(), "1.0", None, Silence())
        assert toolchains.find(recipe()) == made and not (made.path / "bin/litter").exists()

    @pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks on Windows")
    def test_is_refused_while_another_process_does_it(self, quick, home):
        home.mkdir(parents=True)
        holder = (
            f"import fcntl, sys; file = open({str(home / '.fake@1.0.lock')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
        )
        waiting = "; print('held', flush=True); sys.stdin.read()"
        other = subprocess.Popen(
            [sys.executable, "-c", holder + waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with other:
            assert other.stdout.readline() == b"held\n"
            for call in (installation.install, lambda *_: installation.remove(recipe(), "1.0")):
                assert refused(call, recipe(), "1.0", None, Silence()).code == "E167"
            assert not (home / "fake@1.0").exists()
            other.stdin.close()
        assert installation.install(recipe(), "1.0", None, Silence()).version == "1.0"

    def test_needs_room_on_the_disk_and_says_how_much(self, quick, home):
        told = refused(installation.install, recipe(bytes=1 << 60), "1.0", None, Silence())
        assert told.code == "E164" and str(home) in told.message and "1152921504.6 GB" in told.allowed
        assert quick.commands == []

    @pytest.mark.parametrize(
        ("python", "found"),
        [(None, f"is Python {THIS_PYTHON}"), (sys.executable, f"is Python {THIS_PYTHON}"), ("nowhere", "no Python")],
    )
    def test_with_a_python_that_the_packages_do_not_exist_for_is_refused(self, python, found, quick, home):
        told = refused(installation.install, recipe(pythons=("3.99",)), "1.0", python, Silence())
        assert told.code == "E162" and found in told.message and told.allowed == "Python 3.99"
        assert "--python python3.99" in told.fix and not (home / "fake@1.0").exists()

    @pytest.mark.skipif(sys.platform == "win32", reason="its interpreters have no names with versions")
    def test_takes_another_python_of_the_path_where_ours_does_not_fit(self, quick, monkeypatch, tmp_path):
        (tmp_path / "python3.99").write_text("#!/bin/sh\necho 3.99.1\n")
        (tmp_path / "python3.99").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        events = Notes()
        installation.install(recipe(pythons=("3.99",)), "1.0", None, events)
        assert quick.commands[0][0] == str(tmp_path / "python3.99") and "with Python 3.99.1" in events.notes[0]

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "E164", "full"),
            (
                "WARNING: Retrying … NewConnectionError('…: Failed to establish a new connection')\n"
                "ERROR: No matching distribution found for fake-vendor==1.0",
                "E163",
                "reaches no index",
            ),
            ("ERROR: No matching distribution found for fake-vendor==1.0", "E169", "no fake-vendor==1.0 for this"),
            ("Traceback\nERROR: something new", "E165", "\n  | ERROR: something new"),
        ],
    )
    def test_what_pip_says_becomes_an_error_of_its_own(self, words, code, said, tmp_path):
        told = installation._no_packages(tmp_path, words)
        assert told.code == code and said in told.message and str(tmp_path) in told.message and told.fix

    def test_without_the_package_at_hand_is_told(self, home):
        """The one failure that the real pip is asked for."""
        run, pip = installation._run, [sys.executable, "-m", "pip", "install", "--no-deps", "fake-vendor==1.0"]
        told = refused(run, pip, home, 60, installation._no_packages)
        assert told.code == "E169" and "fake-vendor==1.0" in told.message


def test_removing_deletes_the_environment_or_half_of_one(quick, home):
    made = installation.install(recipe(), "1.0", None, Silence())
    assert installation.remove(recipe(), "1.0") == made.path
    assert not made.path.exists() and toolchains.find(recipe()) is None
    assert installation.remove(recipe(), "1.0") is None
    (home / "fake@1.0").mkdir()
    assert installation.remove(recipe(), "1.0") is not None and not (home / "fake@1.0").exists()


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    with scratch.locked(tmp_path / "lock") as ours, scratch.locked(tmp_path / "lock") as theirs:
        assert ours and (sys.platform == "win32" or not theirs)
    with scratch.locked(tmp_path / "lock") as again, contextlib.suppress(OSError):
        assert again


def test_a_cache_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Exception, match=r"cannot write .*file") as caught:
        installation.install(recipe(), "1.0", None, Silence())
    assert caught.value.code == "O130"
    assert Path(tmp_path / "file").read_text() == ""
