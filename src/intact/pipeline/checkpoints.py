"""Finished stages of a build, kept beside its output until it ends well, so that one that died goes on from there.

All are kept under one key, which has everything that decides the bytes of a build. What was finished under another
key counts for nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from intact import scratch
from intact.errors import OutputError
from intact.events import Log
from intact.records import dataclass
from intact.reports import publish
from intact.results import Stage

T = TypeVar("T")

# Parts of a key, in words that a user reads: the model, the data, the settings …, each with its digest or value.
Key = Mapping[str, Any]

_KEY, _VALUE = "key.json", "value"


@dataclass(frozen=True, slots=True)
class _FinishedStage:
    """A finished stage: what it made, apart from files beside this, and what it left in the log."""

    value: object
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Checkpoints:
    """Finished stages in a folder; without one nothing is kept, and every stage runs."""

    folder: Path | None = None
    log: Log = field(default_factory=Log)
    _calls: dict[str, int] = field(default_factory=dict)

    def under(self, key: Callable[[], Key]) -> None:
        """Keep to what was finished under this key, and forget all else."""
        if self.folder is None:
            return
        # As it comes back from a file: tuples are lists there.
        wanted, found = json.loads(json.dumps(key())), self._known_key()
        if found == wanted:
            return
        if found is not None:
            changed = sorted(part for part in {*wanted, *found} if wanted.get(part) != found.get(part))
            self.log.events.note(f"nothing is resumed, because of another {' and another '.join(changed)}")
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        scratch.write_text(self.folder / _KEY, json.dumps(wanted, indent=2) + "\n")
        _reach_the_disk(self.folder)

    def stage(
        self, name: str, run: Callable[[], T], pack: Callable[[T, Path], object], unpack: Callable[[Any, Path], T]
    ) -> T:
        """The result of a stage, from where it was kept or by running it.

        `pack` gives what is pickled of a result, and writes the rest into a folder; `unpack` is its inverse. Stages run
        in the same order each time, so that the number of a call tells which it is.
        """
        if self.folder is None:
            return run()
        self._calls[name] = self._calls.get(name, 0) + 1
        place = self.folder / f"{name}-{self._calls[name]}"
        if (place / _VALUE).is_file():
            return unpack(self._resumed(place), place)
        stages, warnings = self.log.mark()
        result = run()
        with scratch.folder("stage", inside=self.folder) as draft:
            record = _FinishedStage(
                pack(result, draft), tuple(self.log.stages[stages:]), tuple(self.log.warnings[warnings:])
            )
            (draft / _VALUE).write_bytes(pickle.dumps(record))
            _reach_the_disk(draft)
            os.replace(draft, place)  # it appears whole
        return result

    def _resumed(self, place: Path) -> object:
        """Unpickle the result of a finished stage, and repeat its notes and warnings."""
        record: _FinishedStage = pickle.loads((place / _VALUE).read_bytes())
        for stage in record.stages:
            if stage.status == "skipped":
                self.log.skip(stage.name, stage.reason)
                continue
            self.log.stages.append(replace(stage, details={**stage.details, "resumed": True}))
            self.log.events.note(f"{stage.name}: resumed, it was finished before")
        self.log.warn(*record.warnings)
        return record.value

    def _known_key(self) -> dict[str, Any] | None:
        assert self.folder is not None, "stages are kept in a folder"
        try:
            found = json.loads((self.folder / _KEY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


@contextmanager
def kept(output: Path | None, log: Log) -> Iterator[Checkpoints]:
    """Checkpoints beside an output, which are gone when the block ends well; none where there is no output."""
    if output is None:
        yield Checkpoints(log=log)
        return
    folder = _folder(output)
    with scratch.locked(folder) as ours:
        if not ours:
            raise OutputError(
                "O141", f"--resume: another process builds {output} at this moment", fix="wait for it, or end it"
            )
        try:
            yield Checkpoints(folder, log)
        except BaseException:
            log.events.note(f"finished stages are kept in {folder}: --resume goes on from there")
            raise
        shutil.rmtree(folder)


def _reach_the_disk(folder: Path) -> None:
    """Wait until the files in a folder and their names are on the disk: a machine that dies keeps no half of them."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if sys.platform != "win32":
        names = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(names)
        finally:
            os.close(names)


def _folder(output: Path) -> Path:
    """The folder beside an output that its stages are kept in; nobody else may write there: it is unpickled."""
    place = output.resolve()
    if publish.is_fixed(place):
        raise OutputError(
            "O142",
            f"--resume: nothing can be kept beside {output}",
            fix="give -o a folder that is no mount point",
        )
    folder = place.parent / f".{place.name}.intact-resume"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    foreign = hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022)
    if foreign or folder.is_symlink():
        raise OutputError(
            "O143", f"--resume: {folder} is not ours alone, and is not read", fix="remove it, or choose another -o"
        )
    return folder
