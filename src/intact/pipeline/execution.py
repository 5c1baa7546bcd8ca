"""Running any form of a model: in ONNX Runtime, and compiled, where its device or a simulator of it is."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, tee
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intact import data
from intact.backends import compiling, installed
from intact.backends.base import Timer
from intact.errors import ModelError, SettingsError
from intact.events import nothing
from intact.model import detect, io, upgrade
from intact.model.copying import copied
from intact.quantization import boundary
from intact.results import Form
from intact.runtime import ort_cpu, pieces
from intact.settings.config import CompileConfig
from intact.targets.registry import load_target
from intact.targets.spec import Target
from intact.verification import sequences
from intact.verification.compare import Runner

Outputs = Mapping[str, np.ndarray]

PLAIN = "onnxruntime, no optimizations"

# Rows that are in memory at a time; a pool of simulators shares them. Of small ones there are more, as many as fit:
# a simulator that starts anew for every few of them spends more time on starting than on running.
LEAST_AT_ONCE, MOST_AT_ONCE = 64, 192
BYTES_AT_ONCE = 16 << 20
# The inside of a long graph on a few rows is kept if it is smaller: to open its pieces once more takes longer.
BYTES_KEPT = 128 << 20


def runner(path: Path, config: CompileConfig, *, in_turn: bool = False, done: Callable[[], None] = nothing) -> Runner:
    """Choose where a model file runs, many rows at once or each in turn. This is the one place that does.

    What a build deployed (its manifest lies beside it) runs as the build ran it; another EPContext model on the
    backend that made it, for the architecture in `config`; any other model on the CPU, as it is written. A device that
    runs many rows at once calls `done` for each.
    """
    # Here and below: stages that run no file load nothing for it.
    from intact.reports import manifest

    built = manifest.of_deployed(path)
    if built is not None:
        return _deployed(path, built, config, in_turn=in_turn, done=done)
    _refuse_alone(path)
    model = io.load(path)
    if not compiling.is_compiled(model):
        form: Form = "float" if detect.detect(model) is None else "quantized"
        return Runner(form, PLAIN, lambda rows: stream(path, rows))
    target = load_target(installed.maker_of(model), arch=config.arch, soc=config.soc)
    runtime = f"simulator of {target.name}"
    device = device_of(target, config, done)
    return Runner("compiled", runtime, lambda rows: stream_compiled(path, rows, device, in_turn=in_turn))


def _deployed(
    path: Path, built: Mapping[str, Any], config: CompileConfig, *, in_turn: bool, done: Callable[[], None]
) -> Runner:
    made = CompileConfig.from_dict(built["config"]["compile"])
    for name, asked, found in (("arch", config.arch, made.arch), ("soc", config.soc, made.soc)):
        if asked is not None and found is not None and asked.lower() != found.lower():
            raise SettingsError("S135", f"--{name} {asked}: {path} was compiled for {found}", fix="leave it out")
    target = load_target(made.device, arch=made.arch, soc=made.soc)
    inputs, results = (boundary.grids(built["io"], direction) for direction in ("input", "output"))
    fixed = built["config"].get("fixed_inputs", {})
    runtime = next((stage["runtime"] for stage in built["stages"] if stage["name"] == "compile"), target.name)

    def outputs(rows: Iterable[data.Feeds]) -> Iterator[Outputs]:
        taken = ({name: array for name, array in row.items() if name not in fixed} for row in rows)
        integers = (boundary.to_integers(row, inputs) for row in taken)
        found = stream_compiled(path, integers, device_of(target, made, done), in_turn=in_turn)
        return (boundary.to_floats(one, results) for one in found)

    return Runner("compiled", runtime, outputs)


def described(path: Path) -> ir.Model:
    """The model in a file; of one that only its backend reads, the model that it was made from."""
    backend = installed.of_file(path)
    return io.load(path if backend is None else backend.origin(path))


def plugins(paths: Iterable[Path]) -> dict[Path, Timer]:
    """The runtimes that these files are timed in, where that is not ONNX Runtime's CPU provider."""
    from intact.profiling.measure import untimed
    from intact.reports import manifest

    found = {}
    for path in paths:
        backend, built = installed.of_file(path), manifest.of_deployed(path)
        if backend is None:
            continue
        if built is None:
            _refuse_alone(path)
        elif backend.untimed is not None:
            raise untimed(path, backend.untimed)
        elif (timer := backend.timer(built["config"]["compile"]["ep_options"])) is not None:
            found[path] = timer
    return found


def _refuse_alone(path: Path) -> None:
    if path.is_file() and installed.of_file(path) is not None:
        raise ModelError(
            "M162",
            f"{path}: no manifest of the build that made it lies beside it, so its device and options are not known",
            fix="keep the files of a build together",
        )


def session(
    model_or_path: ir.Model | Path,
    outputs: Sequence[str] | None = None,
    *,
    content: ir.Model | None = None,
    threads: int = 0,
) -> ort_cpu.Session:
    """A model on the CPU; what ONNX Runtime refuses in it is computed in another way, with the same integers.

    `outputs` may name tensors of its inside. `content` is what is in the file, where somebody has read it already.
    """
    from intact.rules.proof import reference

    model = content or (io.load(model_or_path) if isinstance(model_or_path, Path) else model_or_path)
    if (model.ir_version or 0) > upgrade.IR_VERSION:
        # ONNX Runtime refuses a file that names a newer format than it knows, although nothing in it may be new.
        model_or_path = model = copied(model)
        model.ir_version = upgrade.ir_version_for(model.opset_imports)
    known = reference.runnable(model)
    # ONNX Runtime maps the weights of a file so that it could write to them, which a limit on memory counts in full.
    is_read_here = pieces.is_long(model) or ort_cpu.is_large(model)
    if known is not model or not isinstance(model_or_path, Path) or is_read_here:
        return pieces.opened(known, outputs, threads=threads)
    return ort_cpu.Session(model_or_path, outputs=outputs, threads=threads)


def stream(model_or_path: ir.Model | Path, rows: Iterable[Outputs], *, together: bool = False) -> Iterator[Outputs]:
    """Outputs of a model for each row on the CPU, as it is written: without optimizations.

    Rows that do not depend on the outputs of others may go through the pieces of a long graph `together`.
    """
    opened = session(model_or_path)
    return opened.stream(rows) if together else (opened.run(row) for row in rows)


def inside(model: ir.Model, names: Sequence[str], rows: Iterable[data.Feeds]) -> Iterator[Outputs]:
    """The values of these tensors, inputs among them, for each row on the CPU."""
    inputs = {value.name for value in model.graph.inputs}
    computed = [name for name in names if name not in inputs]
    if not computed:
        return iter(rows)
    first, again = tee(rows)
    return ({**row, **values} for values, row in zip(session(model, computed).stream(first), again, strict=True))


class WatchedModel:
    """A model on the CPU, as it is written, and some tensors of its inside: one session for all that runs it.

    It runs the first rows once, for all who ask for them later; the tensors of so many of them as `rows_inside` says.
    """

    def __init__(self, model: ir.Model, names: Sequence[str], rows_inside: int = pieces.ROWS) -> None:
        self.rows_inside = rows_inside
        inputs = {value.name for value in model.graph.inputs}
        self._model = model
        self._outputs = [value.name or "" for value in model.graph.outputs]
        self._computed = [name for name in names if name not in inputs]
        # Of rows, by their digests: the outputs, and the tensors until somebody has seen them.
        self._known: dict[bytes, Outputs] = {}
        self._seen: dict[bytes, Outputs] = {}

    @functools.cached_property
    def _session(self) -> ort_cpu.Session:
        return session(self._model, list(dict.fromkeys([*self._outputs, *self._computed])))

    def stream(self, rows: Iterable[Outputs], *, together: bool = False) -> Iterator[Outputs]:
        """Outputs of the model for each row; `together` as for the function of this name."""
        return self._remembered(rows) if together else (self._session.run(row, self._outputs) for row in rows)

    def close(self) -> None:
        """Let go of the session, which takes more memory than the model; whoever runs it again opens another."""
        self.__dict__.pop("_session", None)

    @property
    def keeps_inside(self) -> bool:
        """True if the inside is there until somebody has seen it."""
        return bool(self._seen)

    def inside(self, rows: Sequence[data.Feeds]) -> Iterator[tuple[int, Outputs]]:
        """The values of the tensors, inputs among them, in parts, each with the number of its row.

        The next part is written over them.
        """
        found = [self._seen.get(_digest(row)) if self._seen else None for row in rows]
        self._seen = {}
        known = {number: values for number, values in enumerate(found) if values is not None}
        inputs = dict(enumerate(rows))
        for number, values in known.items() if len(known) == len(rows) else self._session.parts(rows):
            yield number, {**inputs.pop(number, {}), **values}

    def _remembered(self, rows: Iterable[Outputs]) -> Iterator[Outputs]:
        left = iter(rows)
        while block := list(islice(left, pieces.ROWS)):
            keys = list(map(_digest, block))
            fresh = {key: row for key, row in zip(keys, block, strict=True) if key not in self._known}
            found = dict(zip(fresh, self._run(fresh), strict=True))
            yield from ({**self._known.get(key, {}), **found.get(key, {})} for key in keys)

    def _run(self, rows: Mapping[bytes, Outputs]) -> list[dict[str, np.ndarray]]:
        """Outputs for each row; of the first rows those, and the tensors, are kept if they are small."""
        if not rows:
            return []
        if self._known:
            return list(self._session.stream(rows.values(), self._outputs))
        outputs: list[dict[str, np.ndarray]] = [{} for _ in rows]
        inside: list[dict[str, np.ndarray]] = [{} for _ in islice(rows, self.rows_inside)]
        size, asked = 0, frozenset(self._outputs)
        for number, values in self._fresh(list(rows.values())):
            outputs[number] |= {name: array for name, array in values.items() if name in asked}
            if number >= len(inside):
                continue
            size += _bytes(values)
            if size <= BYTES_KEPT:
                # An array of a session holds on to all the memory that the session had.
                inside[number] |= {name: array.copy() for name, array in values.items()}
            else:
                inside = [{} for _ in inside]
        if sum(map(_bytes, outputs)) <= BYTES_KEPT:
            self._known = dict(zip(rows, outputs, strict=True))
        if all(len(one) == len(self._session.outputs) for one in inside):
            self._seen = dict(zip(rows, inside, strict=False))
        return outputs

    def _fresh(self, rows: Sequence[Outputs]) -> Iterator[tuple[int, Outputs]]:
        """The tensors for each row, in arrays that nothing is written over, while those of all rows may be kept.

        They are outputs of the session, which computes them in any case; only memory for them is saved.
        """
        if isinstance(self._session, pieces.SessionInPieces):
            yield from self._session.some_parts(rows, lambda row: None if row < self.rows_inside else self._outputs)
            return
        names = None
        for number, row in enumerate(rows):
            names = names if number < self.rows_inside else self._outputs
            values = self._session.run(row, names)
            names = self._outputs if _bytes(values) * len(rows) > BYTES_KEPT else names
            yield number, values


def _bytes(values: Outputs) -> int:
    """The memory that tensors take; sequences and what else is no array are more than anybody keeps."""
    return sum(array.nbytes if isinstance(array, np.ndarray) else BYTES_KEPT + 1 for array in values.values())


def _digest(row: Outputs) -> bytes:
    """A row in short."""
    found = hashlib.sha256()
    for name, array in sorted(row.items()):
        found.update(f"{name} {array.dtype} {array.shape} ".encode())
        # Of texts, an array holds no more than the places.
        found.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return found.digest()


def run(model_or_path: ir.Model | Path, rows: Iterable[data.Feeds]) -> list[Outputs]:
    """All that `stream` gives."""
    return list(stream(model_or_path, rows))


def stream_compiled(
    path: Path, rows: Iterable[data.Feeds], device: compiling.Device, *, in_turn: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """Outputs of a compiled model for each row, on its device or a simulator of it.

    A block of rows is read at a time; `in_turn`, a row is read when the outputs of the one before were taken.
    """
    waiting = iter(rows)
    if in_turn:
        with compiling.opened(path, device) as step:
            yield from map(step, waiting)
    while block := list(islice(waiting, LEAST_AT_ONCE)):
        more = islice(waiting, max(0, _rows_that_fit(block[0]) - len(block)))
        yield from compiling.run(path, [*block, *more], device)


def _rows_that_fit(row: data.Feeds) -> int:
    size = sum(array.nbytes for array in row.values())
    return min(MOST_AT_ONCE, BYTES_AT_ONCE // max(1, size))


class Furthest:
    """Counts rows by whoever is ahead: a device, which runs many at once, or the comparison that follows it."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance
        self._told = 0

    def counter(self) -> Callable[[], None]:
        """A function for one of those who count, to call after each row."""
        own = 0

        def step() -> None:
            nonlocal own
            own += 1
            if own > self._told:
                self._told = own
                self._advance()

        return step


def counted(runner: Runner, advance: Callable[[], None]) -> Runner:
    """`runner`, which tells when each of its outputs has been compared."""

    def outputs(rows: Iterable[data.Feeds]) -> Iterator[Outputs]:
        for found in runner.outputs(rows):
            yield found
            advance()

    return replace(runner, outputs=outputs)


def states_of(
    asked: Mapping[str, str] | None, model: ir.Model, rows: Iterable[Outputs], original: Runner
) -> dict[str, str]:
    """The inputs that are states, each with the output that is fed back to it; one run tells their shapes."""
    names = ([value.name or "" for value in values] for values in (model.graph.inputs, model.graph.outputs))
    row = next(iter(rows), None) if asked or (asked is None and sequences.namesakes(*names)) else None
    if row is None:
        return {}
    return sequences.states_of(asked, row, next(iter(original.outputs([dict(row)]))))


def device_of(target: Target, config: CompileConfig, done: Callable[[], None] = nothing) -> compiling.Device:
    """The device to compile for and to run on, as the target's table and the settings say; `done` counts samples."""
    return replace(compiling.Device.of(target, config.timeout, config.ep_options, config.toolchain), done=done)
