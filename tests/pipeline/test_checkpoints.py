"""A build that died goes on from its finished stages, to the same bytes; whatever changed, nothing old is used."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import intact
from intact import scratch
from intact.errors import OutputError, SettingsError
from intact.events import Silence
from intact.pipeline.checkpoints import Checkpoints
from tests.conftest import SavedZoo

# Where a build for the CPU is killed, and the stages that it has finished by then. What is said of "observe" and the
# like is part of quantizing; loading and the data are looked at each time, because they make the key.
MOMENTS = {
    "optimize": [],
    "observe": ["optimize"],
    "round the weights": ["optimize"],
    "rewrite": ["optimize", "quantize"],
    "compile": ["optimize", "quantize", "rewrite"],
    "verify": ["optimize", "quantize", "rewrite", "compile"],
}


class Killed(BaseException):
    """What ends a build in this process, as a signal would."""


class Watch(Silence):
    """Hears which stages run, and ends the build in one of them: where it begins, or at its first step."""

    def __init__(self, moment: str | None = None, end: Callable[[], None] | None = None) -> None:
        self.moment, self.end = moment, end
        self.ran: list[str] = []
        self.notes: list[str] = []

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        self.ran.append(name)
        if name == self.moment and total is None:
            self._end()
        yield self._end if name == self.moment else lambda: None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def _end(self) -> None:
        if self.end is not None:
            self.end()
        raise Killed


def build(zoo: SavedZoo, output: Path, watch: Watch, **more: object) -> intact.Build:
    given = {"data": zoo.data("residual_cnn"), "precision": "uint8", "resume": True, **more}
    return intact.build(zoo.model("residual_cnn"), output=output, events=watch, **given)


def digests(folder: Path) -> dict[str, str]:
    """The files of a build but those with times in them."""
    files = [path for path in sorted(folder.iterdir()) if path.name not in ("manifest.json", "report.html")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def told(folder: Path) -> object:
    """The manifest without times, and without what was resumed."""
    values = json.loads((folder / "manifest.json").read_text())
    stages = [
        {name: figure for name, figure in stage.items() if name != "resumed" and not name.endswith("seconds")}
        for stage in values["stages"]
    ]
    return {**values, "created": "", "stages": stages}


@pytest.fixture(scope="module")
def whole(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that nothing interrupted."""
    output = tmp_path_factory.mktemp("whole") / "out"
    build(zoo, output, Watch(), resume=False)
    assert [path.name for path in output.parent.iterdir()] == ["out"]
    return output


def check_resumed(zoo: SavedZoo, place: Path, finished: list[str], whole: Path) -> None:
    """Go on with a build that was ended: no finished stage runs, and all is as if nothing had happened."""
    assert [path.name for path in place.iterdir()] == [".out.intact-resume"]
    watch = Watch()
    built = build(zoo, place / "out", watch)
    assert set(finished).isdisjoint(watch.ran)
    assert [note for note in watch.notes if "resumed" in note] == [
        f"{name}: resumed, it was finished before" for name in finished
    ]
    assert [stage.name for stage in built.stages if stage.details.get("resumed")] == finished
    assert digests(place / "out") == digests(whole)
    assert told(place / "out") == told(whole)
    assert [path.name for path in place.iterdir()] == ["out"], "what was kept is gone"


@pytest.mark.parametrize("moment", ["observe", "verify"])
def test_a_build_that_ended_in_a_stage_goes_on_from_there(moment, zoo, tmp_path, whole):
    with pytest.raises(Killed):
        build(zoo, tmp_path / "out", Watch(moment))
    check_resumed(zoo, tmp_path, MOMENTS[moment], whole)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.conftest import SavedZoo
from tests.pipeline.test_checkpoints import Watch, build
build(SavedZoo(Path(sys.argv[1])), Path(sys.argv[2]), Watch(sys.argv[3], lambda: os.kill(os.getpid(), signal.SIGKILL)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_build_that_is_killed_in_any_stage_goes_on_from_there(moment, zoo, tmp_path, whole):
    zoo.model("residual_cnn"), zoo.data("residual_cnn")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}
    words = [sys.executable, "-c", KILLED, str(zoo.folder), str(tmp_path / "out"), moment]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    leftovers = [path for path in tmp_path.iterdir() if path.name != ".out.intact-resume"]
    assert all(scratch.is_ours(path.name) for path in leftovers), "the next command sweeps only what has such a name"
    watch = Watch()
    build(zoo, tmp_path / "out", watch)
    assert set(MOMENTS[moment]).isdisjoint(watch.ran)
    assert digests(tmp_path / "out") == digests(whole) and told(tmp_path / "out") == told(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_whatever_changed_nothing_old_is_used(zoo, tmp_path, monkeypatch):
    model, data, output = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "out"
    model.write_bytes(zoo.model("residual_cnn").read_bytes())
    data.write_bytes(zoo.data("residual_cnn").read_bytes())
    given = {"data": data, "precision": "uint8", "effort": "fast", "resume": True, "output": output}

    def notes(moment: str, **more: object) -> list[str]:
        """What is said about what was kept, until the build is ended in a stage."""
        watch = Watch(moment)
        with pytest.raises(Killed):
            intact.build(model, events=watch, **{**given, **more})
        return [note for note in watch.notes if "resumed" in note]

    def other_rows() -> None:
        with np.load(data) as file:
            arrays = {name: file[name].copy() for name in file}
        next(iter(arrays.values()))[0] += 0.001
        np.savez(data, **arrays)

    def other_weights() -> None:
        changed = intact.load(model)
        weight = next(value for value in changed.graph.initializers.values() if value.const_value.size > 100)
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.001), name=weight.name)
        intact.save(changed, model)

    assert notes("verify") == []
    same = "optimize: resumed, it was finished before"
    assert same in notes("verify")
    assert notes("verify", min_sqnr=10.0) == ["nothing is resumed, because of another setting"]
    assert notes("verify") == ["nothing is resumed, because of another setting"]
    other_rows()
    assert notes("verify") == ["nothing is resumed, because of another data"]
    other_weights()
    assert notes("verify") == ["nothing is resumed, because of another model or file that settings name"]
    monkeypatch.setattr("intact.environment.sources", lambda: "another")
    assert notes("verify") == ["nothing is resumed, because of another version"]
    assert same in notes("verify")


@pytest.mark.slow
@pytest.mark.qnn
@pytest.mark.parametrize("moment", ["compile", "verify"])
def test_a_compiled_build_goes_on_too(moment, zoo, tmp_path):
    given = {"device": "qnn", "effort": "fast"}
    build(zoo, tmp_path / "whole", Watch(), **given, resume=False)
    with pytest.raises(Killed):
        build(zoo, tmp_path / "out", Watch(moment), **given)
    watch = Watch()
    build(zoo, tmp_path / "out", watch, **given)
    assert {"optimize", "quantize", "rewrite", "analyze"}.isdisjoint(watch.ran)
    assert ("compile" in watch.ran) == (moment == "compile")
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_stage_that_was_kept_half_is_run_again(tmp_path):
    kept = Checkpoints(tmp_path)
    runs: list[int] = []

    def stage(name: str) -> int:
        return kept.stage(name, lambda: runs.append(1) or len(runs), lambda one, _: one, lambda one, _: one)

    assert (stage("a"), stage("a")) == (1, 2)
    (tmp_path / "a-2" / "value").unlink()
    (tmp_path / "a-2").rmdir()
    kept = Checkpoints(tmp_path)
    assert (stage("a"), stage("a"), len(runs)) == (1, 3, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="only there an open file tells its path")
def test_a_stage_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    """A machine that loses its power must not leave a stage that looks whole."""
    settled: set[str] = set()
    unsettled: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(file: int) -> None:
        settled.add(os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    def appear(source: Path, place: Path) -> None:
        unsettled.extend(str(path) for path in Path(source).rglob("*") if str(path) not in settled)
        replace(source, place)

    monkeypatch.setattr(os, "fsync", fsync)
    kept = Checkpoints(tmp_path)
    kept.under(lambda: {"data": 1})
    assert settled == {str(tmp_path), str(tmp_path / "key.json")}
    monkeypatch.setattr(os, "replace", appear)
    kept.stage("a", lambda: 1, lambda one, folder: (folder / "model.onnx").write_text("m") and one, lambda one, _: one)
    assert unsettled == [] and {Path(path).name for path in settled} >= {"model.onnx", "value"}
    assert sorted(path.name for path in (tmp_path / "a-1").iterdir()) == ["model.onnx", "value"]


def test_a_folder_of_others_is_not_read_and_a_search_is_not_resumed(zoo, tmp_path):
    folder = tmp_path / ".out.intact-resume"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OutputError, match="not ours alone"):
        build(zoo, tmp_path / "out", Watch())
    with pytest.raises(SettingsError, match="--precision auto makes many"):
        build(zoo, tmp_path / "out", Watch(), precision="auto", min_sqnr=20.0)


def test_two_at_once_are_refused(zoo, tmp_path):
    class Second(Watch):
        def note(self, text: str) -> None:
            with pytest.raises(OutputError, match="another process builds"):
                build(zoo, tmp_path / "out", Watch())
            raise Killed

    with pytest.raises(Killed):
        build(zoo, tmp_path / "out", Second())


def test_quantize_goes_on_too(zoo, tmp_path):
    given = {"data": zoo.data("residual_cnn"), "precision": "uint8", "effort": "fast"}
    intact.quantize(zoo.model("residual_cnn"), output=tmp_path / "a.onnx", **given)
    with pytest.raises(Killed):
        intact.quantize(
            zoo.model("residual_cnn"), output=tmp_path / "b.onnx", resume=True, events=Watch("observe"), **given
        )
    watch = Watch()
    intact.quantize(zoo.model("residual_cnn"), output=tmp_path / "b.onnx", resume=True, events=watch, **given)
    assert "optimize" not in watch.ran and sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
