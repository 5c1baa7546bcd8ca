"""What a process needs only while it works is gone with it, or after the next command, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intact import scratch
from intact.errors import OutputError

HOLD = """
import pathlib, sys, time
from intact import scratch
with scratch.folder("job", pathlib.Path(sys.argv[1])) as folder, scratch.draft(pathlib.Path(sys.argv[1], "m.onnx")):
    (folder / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def holder(place: Path) -> subprocess.Popen[str]:
    """Another process with a folder and a draft in `place`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, place], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_is_gone_with_its_block(tmp_path: Path) -> None:
    with scratch.folder("job", tmp_path) as folder:
        (folder / "file").write_text("x")
        assert [scratch.is_ours(name) for name in os.listdir(tmp_path)] == [True]
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked on Windows")
def test_a_folder_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[str] = []
    opened = os.open

    def too_late(path: Path, flags: int, *rest: int) -> int:
        if not gone and Path(path).is_dir():
            gone.append(str(path))
            os.rmdir(path)
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", too_late)
    with scratch.folder("job", inside=tmp_path) as path:
        assert path.is_dir() and gone and str(path) not in gone


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked on Windows")
def test_what_a_killed_process_left_is_removed_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    dead, alive = holder(tmp_path), holder(tmp_path)
    try:
        assert len(os.listdir(tmp_path)) == 4
        end(dead)
        scratch.sweep(tmp_path)
        left = os.listdir(tmp_path)
        assert len(left) == 2 and all(f"-{alive.pid}-" in name for name in left)
    finally:
        end(alive)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked on Windows")
def test_a_folder_that_a_sweep_takes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    plain = os.open

    def open_(path: Path, *rest: int) -> int:
        if not taken:
            os.rmdir(path)
            taken.append(path)
        return plain(path, *rest)

    monkeypatch.setattr(os, "open", open_)
    with scratch.folder("job", tmp_path) as folder:
        assert folder.is_dir() and taken and folder != taken[0]


@pytest.mark.parametrize(
    "name", ["intact-data", ".intact-", "intact-job-12-34", ".out-old-abc", "intact-job-1-2-abcdefabcdef.bak"]
)
def test_what_others_made_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    scratch.sweep(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_a_link_with_a_name_of_ours_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")
    (tmp_path / "intact-job-1-2-abcdefabcdef").symlink_to(tmp_path / "mine")
    scratch.sweep(tmp_path)
    assert (tmp_path / "mine/file").exists()


def test_a_draft_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("old")

    def fail() -> None:
        with scratch.draft(tmp_path / "m") as path:
            path.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "m").read_text() == "old" and os.listdir(tmp_path) == ["m"]
    scratch.write_text(tmp_path / "m", "new \udc80")
    assert (tmp_path / "m").read_text() == "new \\udc80" and os.listdir(tmp_path) == ["m"]


def test_text_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write") as error:
        scratch.write_text(tmp_path / "none/m", "text")
    assert error.value.code == "O130"


COMMAND = """
import sys, time
from intact import scratch
from intact.cli import main
def wait(*_):
    with scratch.folder("job"):
        print("ready", flush=True)
        time.sleep(600)
main.app = wait
main.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_command_that_is_asked_to_end_cleans_up_and_says_one_line(
    number: signal.Signals, word: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert len(os.listdir(tmp_path)) == 1
    begun = time.monotonic()
    process.send_signal(number)
    _, told = process.communicate(timeout=20)
    assert time.monotonic() - begun < 10
    assert (process.returncode, told) == (128 + number, f"{word}\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked on Windows")
@pytest.mark.parametrize("swept", ["before it is opened", "before it is locked"])
def test_what_is_swept_before_it_is_locked_is_made_again(
    swept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may sweep between two steps of ours: that is no reason to fail."""
    plain_open, plain_lock, times = os.open, scratch._try_lock, []

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if swept == "before it is opened" and flags == os.O_RDONLY and not times:
            times.append(path)
            path.rmdir()
        return plain_open(path, flags, mode)

    def locked(file: int) -> bool | None:
        if swept == "before it is locked" and len(times) < 2:
            times.append(file)
            return False
        return plain_lock(file)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(scratch, "_try_lock", locked)
    with scratch.folder("job", tmp_path) as folder, scratch.draft(tmp_path / "m") as draft:
        draft.write_text("whole")
        assert folder.is_dir()
    assert times and (tmp_path / "m").read_text() == "whole"
