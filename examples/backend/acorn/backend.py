"""Compiles models for the Acorn and runs them: what a vendor's toolchain would do, ONNX Runtime does here."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.backends.base import Backend, Compiled, Device, Snippet
from intact.errors import SettingsError, ToolchainError
from intact.model import io, normalize
from intact.results import PlacedNode, Placement
from intact.runtime import ort_cpu
from intact.targets.provider_placement import node_ops

MODEL = "model.onnx"
ARCHIVE = "model.acorn"
# Archives say when their files were written; the same model gives the same bytes on any day.
EPOCH = (1980, 1, 1, 0, 0, 0)


class Acorn(Backend):
    """The Acorn. It cannot be timed, for it does not exist."""

    title = "Acorn NPU (an example)"
    table = Path(__file__).with_name("table.toml")
    suffix = ".acorn"
    untimed = "there is no Acorn to time it on"

    def __init__(self) -> None:
        self.simulator = Squirrel()

    def check(self, ep_options: Mapping[str, str]) -> None:
        """Refuse every option."""
        if ep_options:
            raise SettingsError("S901", f"option {next(iter(ep_options))}: the Acorn has none")

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Write the model into an archive; nodes in `on_cpu` are not for the Acorn."""
        named = model.clone()
        normalize.name_nodes(named)
        made_from = io.save(named, folder / MODEL)
        _pack(made_from, folder / ARCHIVE)
        nodes = [PlacedNode(name, op, on_cpu.get(name, "")) for name, op in node_ops(named).items()]
        taken, left = ([node for node in nodes if bool(node.reason) is wanted] for wanted in (False, True))
        placement = Placement(tuple(taken), tuple(left), partitions=1)
        files = (folder / ARCHIVE, *made_from)
        return Compiled(folder / ARCHIVE, files, placement, (), "acorn 1.0, simulated", made_from=made_from)

    def load(self, path: Path, device: Device) -> None:
        """Refuse an archive that holds no model."""
        self.run(path, [], device)

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Take the model out of the archive and compute it."""
        with _unpacked(path) as model:
            session = ort_cpu.Session(model)
            return [session.run(sample) for sample in samples]

    def origin(self, path: Path) -> Path:
        """The ONNX model that lies beside the archive."""
        return path.with_name(MODEL)

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet:
        """The Acorn's own runtime, if there were one."""
        return Snippet(("import acorn_runtime", "", f'model = acorn_runtime.load("{ARCHIVE}")'), "model(inputs)")


class Squirrel:
    """The simulator of the Acorn, for `intact debug`."""

    def run(
        self, path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device
    ) -> list[dict[str, np.ndarray]]:
        """Compute a piece of a model."""
        session = ort_cpu.Session(path)
        return [session.run(sample) for sample in samples]

    def failure(self, path: Path, device: Device) -> str | None:
        """The Acorn's compiler takes everything."""
        return None


def _pack(files: Sequence[Path], archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as target:
        for file in files:
            target.writestr(zipfile.ZipInfo(file.name, EPOCH), file.read_bytes())


@contextmanager
def _unpacked(archive: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="acorn-") as folder:
        try:
            with zipfile.ZipFile(archive) as source:
                source.extractall(folder)
        except (OSError, zipfile.BadZipFile) as error:
            raise ToolchainError("E901", f"{archive}: the Acorn does not load it: {error}") from error
        yield Path(folder, MODEL)


BACKEND = Acorn()
