"""The memory that a build takes: estimated before any work, and kept within what the user allows.

Memory is what a program holds and no file backs: weights that are mapped from their files do not count.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import onnx_ir as ir

from intact.errors import IntactError, SettingsError, ToolchainError
from intact.model import footprint, io, query
from intact.numbers.integer_types import bits
from intact.records import dataclass
from intact.runtime import ort_cpu, pieces
from intact.settings.config import BuildConfig, QuantConfig
from intact.settings.memory_size import bytes_of, gigabytes

# Measured with bench/scale.py: Python with its libraries in this process and in one that loads the result, a node in
# all forms that are alive at once, and the rows that calibration runs at once, each with its tensors and a copy.
PROGRAM = 140_000_000
NODE = 72_000
# Of the nodes beyond so many, whose quantized form runs in pieces, one piece is a session at a time.
NODES_AT_ONCE = pieces.SHORTEST // 2
NODE_IN_PIECES = 35_000
ACTIVATIONS = 4
# The numbers on the way from a weight to its integers are two arrays of float64.
LARGEST_WEIGHT = 6
# Results of the largest layer's weight, dequantized: of two forms of the model that run side by side.
DEQUANTIZED = 4
# The copies of the session that runs a quantized model as it is deployed, which reads, holds and packs the weights.
QUANTIZED = 3
# Weights in the order that kernels like have gaps.
PACKED = 1.05

FLOAT_BITS = 32
_NO_MEMORY = re.compile(r"bad_alloc|[Ff]ailed to allocate|MemoryError|[Cc]annot allocate memory|bfc_arena")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes that a build holds at once, at most: the program with the graph, weights, and activations."""

    graph: int
    weights: int
    activations: int

    @property
    def total(self) -> int:
        return self.graph + self.weights + self.activations

    def __str__(self) -> str:
        return f"needs about {gigabytes(self.total)} of memory"


def needed(model: ir.Model, config: BuildConfig) -> MemoryNeed:
    """Estimate what building `model` takes, from its nodes, weights and shapes alone."""
    tensors = list(io.tensors_of(model))
    sizes = [tensor.nbytes for tensor in tensors]
    every, largest = sum(sizes), max(sizes, default=0)
    inside = sum(tensor.nbytes for tensor in tensors if not isinstance(tensor, ir.ExternalTensor))
    quant = config.quantization
    # The session of the model as given packs the weights, unless there are many, and reads those in the file itself.
    given = 0 if ort_cpu.is_large(model) else int(PACKED * every) + inside
    has_grids = quant is not None and quant.activation_type != "float"
    dequantized = DEQUANTIZED * largest if has_grids else 0
    verified = given + int(QUANTIZED * _share(quant) * every) + dequantized
    effort = "fast" if quant is None else quant.effort
    studied = sum([_moments(tuple(tensor.shape.numpy()), effort) for tensor in tensors])
    nodes = sum(1 for _ in query.all_nodes(model))
    return MemoryNeed(
        PROGRAM + NODE * min(nodes, NODES_AT_ONCE) + NODE_IN_PIECES * max(0, nodes - NODES_AT_ONCE),
        # Weights are rounded before any session of the result is made.
        inside + studied + max(LARGEST_WEIGHT * largest, verified),
        ACTIVATIONS * footprint.activations(model),
    )


def _share(quant: QuantConfig | None) -> float:
    """The size of weights on their grid, with the scales of blocks, as a share of what they have in float32."""
    if quant is None:
        return 1.0
    if quant.weight_type == "float16":
        return 16 / FLOAT_BITS
    return bits(quant.weight_type) / FLOAT_BITS + (1 / quant.block_size if quant.block_size else 0)


def _moments(shape: tuple[int, ...], effort: str) -> int:
    """Bytes of the second moments of a layer's inputs, which the normal effort takes."""
    if effort == "fast" or len(shape) < 2:
        return 0
    # Loaded where it is needed, since a fast effort does without.
    from intact.quantization.improve.effort import NORMAL

    inputs = shape[0] if len(shape) == 2 else math.prod(shape[1:])
    return 4 * inputs * min(inputs, NORMAL.together)


def refuse_beyond(need: MemoryNeed, config: BuildConfig) -> None:
    """Refuse, before any work, a build that is not likely to stay within `--max-memory`."""
    if config.max_memory is None or need.total <= bytes_of(config.max_memory):
        return
    raise SettingsError(
        "S240",
        f"--max-memory {config.max_memory}: the build {need}: {gigabytes(need.graph)} for the program and the graph, "
        f"{gigabytes(need.weights)} for weights, {gigabytes(need.activations)} for activations",
        allowed=f"{gigabytes(need.total)} or more",
        fix="allow that much, or build on a machine that has it; weights outside the model file need the least",
    )


@contextmanager
def kept_within(config: BuildConfig) -> Iterator[None]:
    """Keep this process, and each that it starts, within `--max-memory` for as long as the block lasts."""
    if config.max_memory is None or sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = bytes_of(config.max_memory)
    with suppress(ValueError):  # a stricter limit of the system stays
        resource.setrlimit(resource.RLIMIT_DATA, (most + _untouched(), before[1]))
    try:
        with ort_cpu.sparing_memory():
            yield
    except MemoryError as problem:
        raise _beyond(config.max_memory) from problem
    except IntactError as problem:
        if not _NO_MEMORY.search(problem.message):
            raise
        raise _beyond(config.max_memory) from problem
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _untouched() -> int:
    """Bytes that this process has asked for and not used, as for stacks of threads: a limit counts them, too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    found = dict(line.partition(":")[::2] for line in lines)
    asked, used = (1024 * int(found[name].split()[0]) for name in ("VmData", "RssAnon"))
    return max(0, asked - used)


def _beyond(limit: str) -> ToolchainError:
    return ToolchainError(
        "E180",
        f"--max-memory {limit}: the build needs more than was estimated, and was stopped",
        fix="allow more; fewer --samples, or weights outside the model file, need less",
    )
