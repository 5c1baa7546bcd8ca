"""A folder that cannot be renamed, as a volume of a container, is filled: the manifest first out and last in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from intact.reports import exchange, publish
from tests.reports.test_publish import NEW, contents, fill, manifest

OLD = {"old.bin": "stale", "model.onnx": "old", "manifest.json": manifest("old.bin", "model.onnx"), "notes.txt": "mine"}


@pytest.fixture
def fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an earlier build that passes for a mount point."""
    fill(tmp_path / "out", OLD)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "out")
    return tmp_path / "out"


def test_it_is_filled_and_keeps_what_others_wrote(fixed: Path) -> None:
    told: list[str] = []
    with publish.staged(fixed, overwrite=True, tell=told.append) as work:
        assert work.parent == fixed
        fill(work, NEW)
    assert contents(fixed) == {**NEW, "notes.txt": "mine"}
    assert os.listdir(fixed.parent) == ["out"]
    assert len(told) == 1 and "one by one" in told[0]


def test_an_empty_one_needs_no_overwrite(fixed: Path) -> None:
    for path in fixed.iterdir():
        path.unlink()
    with publish.staged(fixed) as work:
        fill(work, NEW)
    assert contents(fixed) == NEW


def test_at_no_moment_a_manifest_stands_beside_files_of_another_build(
    fixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    replace = os.replace

    def watched(source: str, target: str) -> None:
        seen.append(contents(fixed))
        replace(source, target)

    with publish.staged(fixed, overwrite=True) as work:
        fill(work, {**NEW, "z.bin": "new"})
        monkeypatch.setattr(os, "replace", watched)
    assert len(seen) == 3
    assert not any("manifest.json" in names for names in seen)


def test_a_file_system_that_cannot_exchange_is_filled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(exchange, "swap", refuse)
    fill(tmp_path / "out", OLD)
    told: list[str] = []
    with publish.staged(tmp_path / "out", overwrite=True, tell=told.append) as work:
        fill(work, NEW)
    assert contents(tmp_path / "out") == {**NEW, "notes.txt": "mine"}
    assert os.listdir(tmp_path) == ["out"] and told


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged on Linux")
def test_the_name_of_an_ordinary_folder_is_never_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the folder was renamed away")

    fill(tmp_path / "out", OLD)
    told: list[str] = []
    with publish.staged(tmp_path / "out", overwrite=True, tell=told.append) as work:
        fill(work, NEW)
        monkeypatch.setattr(Path, "rename", refuse)
    assert contents(tmp_path / "out") == {**NEW, "notes.txt": "mine"}
    assert told == []


MOUNTED = """
mount -t tmpfs none "$1" || exit 77
shift
exec "$@"
"""


def test_a_build_into_a_mount_point(tmp_path: Path) -> None:
    """A mount in a name space of its own, as a container has it."""
    (tmp_path / "out").mkdir()
    code = f"""
import json, os, pathlib
from intact.reports import publish
out = pathlib.Path({str(tmp_path / "out")!r})
assert os.path.ismount(out)
for text in ("first", "second"):
    publish.check_folder(out, overwrite=text == "second")
    with publish.staged(out, overwrite=text == "second") as work:
        (work / "model.onnx").write_text(text)
        (work / "manifest.json").write_text(json.dumps({{"artifacts": [{{"path": "model.onnx"}}]}}))
print(json.dumps([sorted(os.listdir(out)), (out / "model.onnx").read_text(), os.listdir(out.parent)]))
"""
    command = ["unshare", "-rm", "sh", "-c", MOUNTED, "sh", str(tmp_path / "out"), sys.executable, "-c", code]
    try:
        told = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if told.returncode in (1, 77) and "Traceback" not in told.stderr:
        pytest.skip(f"no mount in a name space of its own: {told.stderr.strip()}")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == [["manifest.json", "model.onnx"], "second", ["out"]]
