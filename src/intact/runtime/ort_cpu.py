"""Models on ONNX Runtime's CPU provider, in this process."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.errors import ModelError
from intact.model import external, io, query
from intact.model.copying import copied
from intact.model.hoisting import Hoist
from intact.runtime.cores import cores
from intact.runtime.ort_message import sentence

REFUSED = "M130"
"""The code of the error where ONNX Runtime does not load a model."""

STOPPED = "M131"
"""The code of the error where ONNX Runtime has loaded a model, and cannot run it."""

# A session keeps a copy of the weights in the order that its kernels like, which makes runs somewhat faster. With more
# bytes of weights than this no session of ours does, so that they are read from their files and need no memory.
LARGEST_COPIED = 1 << 30

# The optimizers of ONNX Runtime take time for a node that grows with the number of nodes. In a graph with more than
# this, no session of ours pays for them but that of the deployed model.
MOST_OPTIMIZED = 10_000

# A session of a long file of up to so many bytes keeps its constants: it is there sooner, and takes more memory. It
# writes them, in a format that holds 2 GiB, and holds them twice meanwhile.
MOST_KEPT = 1 << 28

_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"

# Of this process: how many threads a session uses that does not say itself; 0 is one for each core.
_threads = 0

# Of this process: True while its sessions ask for no more memory than they use.
_spares_memory = False


@dataclass(frozen=True, slots=True)
class SessionPort:
    """A graph input or output as the runtime sees it; a dimension is None or a name where it is free."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]

    @property
    def is_sequence(self) -> bool:
        """True for a sequence, an optional one included."""
        return self.type.removeprefix("optional(").startswith("seq(")


class Session:
    """A loaded model: `run` maps named inputs to named outputs.

    `outputs` may name any tensor, those of bodies as `model.hoisting` says; by default they are the graph's outputs.
    With `profile`, the path that a record's name begins with, the time of every node is recorded until `end_profile`.
    `prepack` says whether kernels may copy weights into an order that they like; those of a large model in memory are
    read where they are unless it says so. With names for `optimize`, all optimizers of a file run but these.
    """

    def __init__(
        self,
        model_or_path: ir.Model | str | Path,
        *,
        optimize: bool | tuple[str, ...] = False,
        outputs: Sequence[str] | None = None,
        threads: int = 0,
        profile: Path | None = None,
        prepack: bool | None = None,
    ) -> None:
        model = model_or_path
        options = _options(bool(optimize), threads, inside=outputs is not None)
        keeps_constants = isinstance(model, str | Path) and isinstance(optimize, tuple) and _size(model) <= MOST_KEPT
        if keeps_constants:
            # A session that has nothing to write takes each constant out of a list when it has read it, and looks for
            # it from the beginning of the list.
            options.optimized_model_filepath = os.devnull
            options.add_session_config_entry("session.save_model_format", "ORT")
        if prepack is None:
            # A long file keeps its constants, and copies of them for its kernels would come on top.
            prepack = not (keeps_constants or (isinstance(model, ir.Model) and is_large(model)))
        if not prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if not prepack or _spares_memory:
            # Both ask for memory that is never touched, which a limit counts all the same: the arena for twice as much
            # each time it grows, the pattern for a second place of every weight.
            options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
        if not isinstance(model, ir.Model) and outputs is not None:
            model = io.load(model)
        if isinstance(model, ir.Model):
            message, weights = io.without_weights(_with_outputs(model, outputs))
            # They have to last as long as the session.
            self._weights = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
            _hand_over(self._weights, options, shared=not optimize)
            self._session = _create(message, options)
        else:
            self._session = _create(str(model), options, () if isinstance(optimize, bool) else optimize)
        self.inputs = tuple(_port(node) for node in self._session.get_inputs())
        produced = {node.name: _port(node) for node in self._session.get_outputs()}
        self.outputs = tuple(produced[name] for name in (produced if outputs is None else outputs))
        self._kept: dict[str, np.ndarray] = {}
        self._binding: ort.IOBinding | None = None

    def run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """The outputs, all or these, by name, for one set of inputs."""
        names = [port.name for port in self.outputs] if names is None else names
        try:
            values = self._session.run(names, self._as_declared(feeds))
        # ORT's exception classes have no common base but Exception.
        except Exception as error:
            raise ModelError(STOPPED, f"ORT stopped while running the model: {sentence(error)}") from error
        return dict(zip(names, values, strict=True))

    def _as_declared(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | list[np.ndarray]]:
        """The feeds, those of sequences as lists: arrays hold their tensors along the first axis."""
        lists = {port.name for port in self.inputs if port.is_sequence}
        return {name: list(map(np.asarray, found)) if name in lists else found for name, found in feeds.items()}

    def run_over(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Like `run`, but the next call overwrites the arrays: for values that are looked at once.

        With many outputs this takes far less time, most of which would go into fresh memory.
        """
        if self._binding is None:
            self._kept = self.run(feeds)
            self._binding = self._bound() if self._have_declared_shapes() else None
            return dict(self._kept)
        try:
            for name, array in feeds.items():
                self._binding.bind_cpu_input(name, np.asarray(array, order="C"))
            self._session.run_with_iobinding(self._binding)
        # ORT's exception classes have no common base but Exception.
        except Exception as error:
            raise ModelError(STOPPED, f"ORT stopped while running the model: {sentence(error)}") from error
        return dict(self._kept)

    def stream(
        self, rows: Iterable[Mapping[str, np.ndarray]], names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """The outputs, all or these, for each row; several rows may be read before the outputs of the first come."""
        return (self.run(row, names) for row in rows)

    def parts(self, rows: Iterable[Mapping[str, np.ndarray]]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The outputs for each row in one or more parts, each with the number of its row: to be looked at at once."""
        return ((number, self.run_over(row)) for number, row in enumerate(rows))

    def twin(self) -> Session:
        """The same loaded model for another thread: the arrays that its `run_over` overwrites are its own."""
        result = copy.copy(self)
        result._kept, result._binding = {}, None
        return result

    def _have_declared_shapes(self) -> bool:
        """True if every output came in the size that the model declares: then it will the next time."""
        if any(port.is_sequence for port in (*self.inputs, *self.outputs)):
            return False
        # An optional output that a kernel leaves out is None.
        return all(getattr(self._kept[port.name], "shape", None) == port.shape for port in self.outputs)

    def _bound(self) -> ort.IOBinding:
        binding = self._session.io_binding()
        for name, array in self._kept.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return binding

    def end_profile(self) -> Path:
        """Stop recording; the file, JSON, has the time of every node that ran."""
        return Path(self._session.end_profiling())


def is_large(model: ir.Model) -> bool:
    """True if a copy of the weights of a model takes more memory than it saves time."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None) > LARGEST_COPIED


def is_worth_optimizing(model: ir.Model) -> bool:
    """True if ONNX Runtime optimizes a model in less time than some runs take without it, and may copy its weights."""
    return len(model.graph) <= MOST_OPTIMIZED and not is_large(model)


def use_threads(count: int) -> None:
    """Give sessions of this process this many threads each, unless they ask for a number themselves."""
    global _threads
    _threads = count


@contextmanager
def sparing_memory() -> Iterator[None]:
    """Let sessions that are made meanwhile ask for no more memory than they use."""
    global _spares_memory
    before, _spares_memory = _spares_memory, True
    try:
        yield
    finally:
        _spares_memory = before


def spares_memory() -> bool:
    """True while sessions ask for no more memory than they use."""
    return _spares_memory


def threads() -> int:
    """The number of threads for all sessions of this process that run at once, together."""
    return _threads or cores()


def version() -> str:
    """The version of ONNX Runtime."""
    return str(ort.__version__)


def run(
    model: ir.Model,
    feeds: Mapping[str, np.ndarray],
    *,
    optimize: bool = False,
    outputs: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of `model`, by name, for one set of inputs."""
    return Session(model, optimize=optimize, outputs=outputs).run(feeds)


def _options(optimize: bool, threads: int, *, inside: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    # A layout of its own for convolutions takes ORT time and memory, and is undone for every tensor of the inside.
    highest = levels.ORT_ENABLE_EXTENDED if inside else levels.ORT_ENABLE_ALL
    options.graph_optimization_level = highest if optimize else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4  # errors arrive as exceptions; the terminal belongs to the user
    options.intra_op_num_threads = threads or _threads
    options.inter_op_num_threads = 1
    # Idle threads that spin would slow down whatever else runs on a small machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimize:
        # A pass that gives each node a DequantizeLinear of its own, which only optimizers and other providers need.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def _size(path: str | Path) -> int:
    """The bytes of a model that was written here, with its weights."""
    files = Path(path), Path(f"{path}.data")
    return sum(file.stat().st_size for file in files if file.exists())


def _hand_over(weights: Mapping[str, ort.OrtValue], options: ort.SessionOptions, *, shared: bool) -> None:
    """Give a session the weights that its message leaves out: to be read where they are, or as copies of its own.

    A session that optimizes has to have copies: an optimizer may leave another tensor under the name of a weight, and
    the session would go on with what it shares.
    """
    if not shared:
        options.add_external_initializers(list(weights), list(weights.values()))
        return
    options.add_session_config_entry(_FOLDER_OF_WEIGHTS, str(external.NO_CONTENT.parent))
    for name, value in weights.items():
        options.add_initializer(name, value)


def _create(
    path_or_bytes: str | bytes, options: ort.SessionOptions, left_out: Sequence[str] = ()
) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(
            path_or_bytes,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(left_out) or None,
            enable_fallback=0,
            read_config_from_model=0,
        )
    # ORT's exception classes have no common base but Exception.
    except Exception as error:
        raise ModelError(REFUSED, f"ORT refuses the model: {sentence(error)}") from error


def _with_outputs(model: ir.Model, names: Sequence[str] | None) -> ir.Model:
    """`model` itself, or a copy that also returns the tensors in `names`."""
    present = {value.name for value in model.graph.outputs}
    missing = [name for name in names or () if name not in present]
    if not missing:
        return model
    result = copied(model)
    values, hoist = query.values(result), None
    for name in missing:
        assert name in values, f"no tensor of the graph is called {name!r}"
        value = values[name]
        if value.graph is not result.graph:
            hoist = hoist or Hoist(result)
            value = hoist.lift(value)
        result.graph.outputs.append(value)
    return result


def _port(node: ort.NodeArg) -> SessionPort:
    return SessionPort(node.name, node.type, tuple(node.shape))
