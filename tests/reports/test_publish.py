"""Output appears whole or not at all, and what others wrote stays."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from intact.errors import OutputError
from intact.reports import publish


def fill(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def manifest(*paths):
    return json.dumps({"artifacts": [{"path": path} for path in paths]})


def build(folder, files, **how):
    with publish.staged(folder, **how) as work:
        assert work.parent == folder.resolve().parent and work != folder
        fill(work, files)


NEW = {"model.onnx": "new", "manifest.json": manifest("model.onnx")}


@pytest.mark.parametrize("before", [None, {}])
def test_a_folder_appears_with_everything_in_it(tmp_path, before):
    if before is not None:
        (tmp_path / "out").mkdir()
    build(tmp_path / "out", NEW)
    assert contents(tmp_path / "out") == NEW
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_missing_parents_are_made(tmp_path):
    build(tmp_path / "a/b/out", NEW)
    assert contents(tmp_path / "a/b/out") == NEW


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, {"mine.txt": "mine", **NEW}])
def test_an_error_on_the_way_leaves_no_trace(tmp_path, error, before):
    if before is not None:
        fill(tmp_path / "out", before)

    def interrupted():
        with publish.staged(tmp_path / "out", overwrite=True) as work:
            fill(work, {"model.onnx": "half"})
            raise error

    with pytest.raises(error):
        interrupted()
    assert os.listdir(tmp_path) == ([] if before is None else ["out"])
    assert before is None or contents(tmp_path / "out") == before


def test_overwriting_replaces_what_was_written_before_and_keeps_the_rest(tmp_path):
    before = {"old.bin": "stale", "manifest.json": manifest("old.bin", "model.onnx"), "model.onnx": "old"}
    fill(tmp_path / "out", {**before, "notes.txt": "mine", "photos/cat.txt": "mine"})
    build(tmp_path / "out", NEW, overwrite=True)
    assert contents(tmp_path / "out") == {**NEW, "notes.txt": "mine", "photos/cat.txt": "mine"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "text", ["not json", "[]", '{"artifacts": 3}', '{"artifacts": [{"path": ""}]}', '{"artifacts": [{}]}', "\ufeff{}"]
)
def test_a_foreign_manifest_claims_nothing(tmp_path, text):
    fill(tmp_path / "out", {"manifest.json": text, "data.bin": "mine"})
    build(tmp_path / "out", NEW, overwrite=True)
    assert contents(tmp_path / "out") == {**NEW, "data.bin": "mine"}


def test_a_manifest_that_claims_files_outside_deletes_none(tmp_path):
    fill(tmp_path, {"outside.txt": "mine"})
    fill(tmp_path / "out", {"manifest.json": manifest("../outside.txt", "/etc/hostname")})
    build(tmp_path / "out", NEW, overwrite=True)
    assert (tmp_path / "outside.txt").read_text() == "mine"


def test_what_appears_during_the_build_is_not_overwritten(tmp_path):
    def raced():
        with publish.staged(tmp_path / "out") as work:
            fill(work, NEW)
            fill(tmp_path / "out", {"theirs.txt": "theirs"})

    with pytest.raises(OutputError, match="not empty"):
        raced()
    assert contents(tmp_path / "out") == {"theirs.txt": "theirs"}
    assert os.listdir(tmp_path) == ["out"]


def test_the_working_folder_can_be_the_destination(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with publish.staged(type(tmp_path)(".")) as work:
        fill(work, NEW)
    assert contents(tmp_path / "here") == NEW


class TestFolders:
    def test_one_that_does_not_exist_or_is_empty_is_free(self, tmp_path):
        (tmp_path / "empty").mkdir()
        publish.check_folder(tmp_path / "empty", overwrite=False)
        publish.check_folder(tmp_path / "new/deep", overwrite=False)
        assert os.listdir(tmp_path) == ["empty"]

    def test_one_that_is_not_empty_needs_overwrite(self, tmp_path):
        fill(tmp_path / "out", {"a": "b"})
        with pytest.raises(OutputError, match=r"not empty(.|\n)*--overwrite") as caught:
            publish.check_folder(tmp_path / "out", overwrite=False)
        assert caught.value.status == 2
        publish.check_folder(tmp_path / "out", overwrite=True)

    def test_a_file_or_a_link_in_its_place_is_refused(self, tmp_path):
        fill(tmp_path, {"file": ""})
        (tmp_path / "link").symlink_to(tmp_path)
        for name in ("file", "link"):
            with pytest.raises(OutputError, match="not a folder"):
                publish.check_folder(tmp_path / name, overwrite=True)

    def test_a_file_as_its_parent_is_refused(self, tmp_path):
        fill(tmp_path, {"file": ""})
        with pytest.raises(OutputError, match="is not a folder"):
            publish.check_folder(tmp_path / "file/out", overwrite=True)


class TestFiles:
    @pytest.mark.parametrize(("ours", "overwrite"), [(True, False), (False, True)])
    def test_our_own_file_or_any_with_overwrite_may_be_replaced(self, tmp_path, ours, overwrite):
        fill(tmp_path, {"q.onnx": "x"})
        publish.check_file(tmp_path / "q.onnx", overwrite=overwrite, ours=ours)

    def test_a_foreign_file_is_refused(self, tmp_path):
        fill(tmp_path, {"q.onnx": "x"})
        with pytest.raises(OutputError, match="intact did not write it"):
            publish.check_file(tmp_path / "q.onnx", overwrite=False, ours=False)

    def test_a_pipe_is_refused_with_overwrite_too(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OutputError, match="not an ordinary file"):
            publish.check_file(tmp_path / "pipe", overwrite=True, ours=False)

    def test_a_folder_is_refused(self, tmp_path):
        with pytest.raises(OutputError, match="is a folder"):
            publish.check_file(tmp_path, overwrite=True, ours=False)


def test_artifacts_are_listed_with_size_and_digest(tmp_path):
    fill(tmp_path, {"a.onnx": "abc", "b.bin": ""})
    first, second = publish.artifacts(tmp_path, {"b.bin": "binary", "a.onnx": "model"})
    assert (first.path, first.kind, first.bytes) == ("b.bin", "binary", 0)
    assert (second.bytes, second.sha256) == (3, hashlib.sha256(b"abc").hexdigest())
