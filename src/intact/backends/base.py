"""The Backend protocol: all that intact knows of a device beside its table.

A backend is a folder here, with `table.toml` and `backend.py`, whose `BACKEND` is the object; or a package of one's
own with an entry point of `intact.backends` that loads such an object. Nothing else names a backend: the rest of the
program asks `installed.find(name)` for the object and goes by what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from intact.errors import NotAvailable
from intact.events import nothing
from intact.records import dataclass
from intact.results import Cost, PlacedNode, Placement
from intact.runtime.toolchains import Recipe
from intact.targets.spec import Soc, Target

Arrays = Mapping[str, np.ndarray]
Step = Callable[[Arrays], dict[str, np.ndarray]]
ONNX = ".onnx"


@dataclass(frozen=True, slots=True)
class Device:
    """A device to compile for and to run on: a backend, its chip where that matters, and options of its toolchain.

    `timeout` is in seconds; toolchains that run in this process ignore it. `toolchain` is a version of the vendor's
    library, or a folder, where the usual one is not meant. `done` is called for each sample that ran, by backends that
    are told while they run many. `nodes` counts those of the model that it runs, where somebody knows. `halves` is
    False where the table says that it computes nothing in half precision.
    """

    backend: str
    timeout: float
    arch: int | None = None
    soc_id: int | None = None
    ep_options: Mapping[str, str] = field(default_factory=dict)
    soc: Soc | None = None
    toolchain: str | None = None
    done: Callable[[], None] = nothing
    nodes: int | None = None
    halves: bool = True

    @classmethod
    def of(
        cls,
        target: Target,
        timeout: float,
        ep_options: Mapping[str, str] | None = None,
        toolchain: str | None = None,
    ) -> Device:
        """The device that a target stands for."""
        soc_id = target.soc.id if target.soc is not None else None
        options = ep_options or {}
        return cls(target.backend, timeout, target.arch, soc_id, options, target.soc, toolchain, halves=target.halves)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model as it is deployed: `path` to load, `files` that belong together, and where its nodes run.

    `runs` is True if this machine can run it, on the device or on a simulator of it; `loaded`, if compiling has loaded
    it as the device will. `made_from` are those of the files that the compiler read: the device does not need them,
    other tools do. `cost` is the compiler's own estimate, where it gives one. `unforeseen` are nodes that the compiler
    left to the CPU by itself although the table has them on the NPU: a strict build refuses them.
    """

    path: Path
    files: tuple[Path, ...]
    placement: Placement
    warnings: tuple[str, ...]
    runtime: str
    runs: bool = True
    made_from: tuple[Path, ...] = ()
    loaded: bool = False
    cost: Cost | None = None
    unforeseen: tuple[PlacedNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Snippet:
    """Python that deploys a model: the lines that load it, and the call that runs it on a dictionary `inputs`.

    `{outputs}` in the call stands for the names of the outputs, quoted and separated by commas.
    """

    loading: tuple[str, ...]
    call: str


@dataclass(frozen=True, slots=True)
class NativeProvider:
    """The way that applications in other languages give ONNX Runtime this device; no name stands for the CPU.

    `java` is the method of its Java API that takes the options. `systems` say, for each system that has the device,
    what to install there and where to copy the files that `{files}` stands for.
    """

    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    java: str = ""
    systems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Library:
    """A vendor's library that tells what it takes, for `probe`: nothing of it is loaded in this process.

    `module` is imported in a child process, where its `ask(question)` gives a verdict (see `probing.probe_job`);
    `reasons` reads from the log of that process why questions were refused, by their number. Where it `joins`, the
    module's `ask_together(group)` answers many questions in one model. A library with an interpreter of its own is
    asked `apart`: `module` is imported in this process, and its `answers(folder, questions)` asks there and gives the
    answer to each question with its number. `types` are those of numbers that it is asked about; None stands for all.
    """

    package: str
    version: Callable[[], str]
    module: str
    reasons: Callable[[str], Mapping[int, str]] = lambda log: {}
    joins: bool = False
    apart: bool = False
    types: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.package} {self.version()}"


class Simulator(Protocol):
    """The vendor's compiler and simulator on pieces of a model with Q/DQ nodes, for `debug`."""

    def run(self, path: Path, samples: Sequence[Arrays], device: Device) -> list[dict[str, np.ndarray]]:
        """Outputs of the ONNX model at `path`, compiled as a build compiles it, one dictionary a sample."""
        ...

    def failure(self, path: Path, device: Device) -> str | None:
        """The compiler's error for the ONNX model at `path`, nodes on the CPU allowed; None where it compiles."""
        ...


class TimedModel(Protocol):
    """A deployed model, loaded in the child process that times it."""

    inputs: Mapping[str, np.dtype[Any]]

    def run(self, feeds: Arrays) -> object:
        """Run once."""
        ...

    def layer_times(self, feeds: Arrays, *, warm_up: int, runs: int) -> Mapping[tuple[str, str], list[float]]:
        """Seconds of each layer, by name and kind, in each of `runs`."""
        ...


class Timer(Protocol):
    """A runtime other than ONNX Runtime's CPU provider that a deployed model is timed in.

    `module` is imported in a child process; its `opened(path, order, profile)` gives a `TimedModel`.
    """

    @property
    def module(self) -> str: ...

    def order(self, threads: int) -> dict[str, object]:
        """JSON-compatible values for `opened`; 0 threads leave their number to the runtime."""
        ...

    def runtime(self, threads: int) -> str:
        """The runtime, its version and its options, for people."""
        ...


class Backend(Protocol):
    """A device and its toolchain. Derive from this class; what has a default here may be left out.

    `title` names the device in reports. `table` is the path of its table, with the answers of its library, if any,
    in a folder `probed` beside it. `packages` are the distributions that it needs beyond intact's own, and `install`
    is how to get them. `suffix` is that of the file to deploy. `untimed` says why its latency cannot be measured here;
    None where it can. `estimates` says that its compiler tells the cycles of what it makes. `simulator` and `library`
    are there where the vendor has one, `native` where ONNX Runtime runs what is deployed, `toolchain` where the
    vendor's packages live, or may live in other versions, in an environment of their own.
    """

    title: str
    table: Path
    packages: tuple[str, ...] = ()
    install: str | None = None
    suffix: str = ONNX
    untimed: str | None = "it is not timed here"
    estimates: bool = False
    simulator: Simulator | None = None
    library: Library | None = None
    native: NativeProvider | None = None
    toolchain: Recipe | None = None

    def compile(self, model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
        """Write what is deployed into `folder`; `on_cpu` names nodes that stay on the CPU, each with the reason."""
        ...

    def kept_off(self, model: ir.Model, names: Collection[str]) -> ir.Model:
        """A form of `model` for `compile` whose nodes with these names stay on the CPU, though the device takes them.

        The model itself where naming them to `compile` is enough.
        """
        return model

    def load(self, path: Path, device: Device) -> None:
        """Refuse a compiled model that the device's runtime does not load."""
        ...

    def run(self, path: Path, samples: Sequence[Arrays], device: Device) -> list[dict[str, np.ndarray]]:
        """Outputs of a compiled model on the device or its simulator, one dictionary a sample."""
        ...

    def opened(self, path: Path, device: Device) -> AbstractContextManager[Step]:
        """A compiled model that runs one sample after another, for those that need results of the one before."""
        return nullcontext(lambda sample: self.run(path, [sample], device)[0])

    def check(self, ep_options: Mapping[str, str]) -> None:
        """Refuse, before any work, options that the toolchain does not take, as far as it tells without a model."""
        return

    def on_host(self, ep_options: Mapping[str, str]) -> bool:
        """True if a model would run on kernels of an x86 CPU, so that its instructions matter (see `assume_vnni`)."""
        return True

    def place(self, model: ir.Model, device: Device) -> Placement:
        """Ask the vendor's library where the compute nodes of `model`, all of which have names, would run."""
        raise NotAvailable("E131", f"{device.backend} has no library to ask here", fix="leave out --live")

    def usual_cycles(self, model: ir.Model, sample: Arrays, device: Device) -> int | None:
        """The cycles of the float `model` as the vendor's own quantizer makes integers of it; None if nobody knows."""
        return None

    def made(self, model: ir.Model) -> bool:
        """True if `model` holds what this backend's compiler made: an EPContext node of its own."""
        return False

    def origin(self, path: Path) -> Path:
        """The ONNX model that says what the inputs and outputs of a deployed file are."""
        return path

    def repro_script(self, device: Device) -> str | None:
        """Python that shows, without intact, what `device` makes of model.onnx and inputs.npz beside it, if known."""
        return None

    def timer(self, ep_options: Mapping[str, str]) -> Timer | None:
        """The runtime to time a deployed model in; None stands for ONNX Runtime's CPU provider."""
        return None

    def snippet(self, ep_options: Mapping[str, str], *, whole: bool) -> Snippet | None:
        """Python that deploys a model, all of whose nodes are on the device if `whole`; None where it is not known."""
        return None

    def native_code(
        self, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
    ) -> tuple[str, str] | None:
        """A language of the vendor's own runtime, and a program in it for these ports of a manifest; None without."""
        return None
