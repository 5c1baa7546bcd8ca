"""A library of another version than the one that a table was probed with: it is asked about the nodes of the model.

A table's probed facts hold for the version that gave them. Answers are kept in the user's cache, by version,
architecture and what a node looks like, so that the next model asks only about what is new in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
import platformdirs

from intact import scratch
from intact.backends import installed
from intact.backends.live import place_live
from intact.backends.probing.answers import shipped
from intact.errors import IntactError, OutputError
from intact.model import query
from intact.results import Violation
from intact.targets.operands import describe, use_of
from intact.targets.spec import Target
from intact.targets.validate import compute_nodes

REFUSED = "T117"
_NOT_ON_NPU = "it is not placed on the NPU"
# What the sources of documented facts begin with, where others name the library that was probed.
_DOCUMENTED = "documented:"


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Violations as the installed library has them, and what is to be said about that."""

    violations: tuple[Violation, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Answers:
    """Answers of one version of a library for one architecture: the reason of a refusal, or None, by node."""

    path: Path
    rows: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, library: str, target: Target) -> _Answers:
        """The answers so far; a file that cannot be read counts for nothing, and is written anew."""
        chip = target.soc.id if target.by_chip and target.soc is not None else target.arch
        name = f"{library.replace(' ', '-')}-{chip or 'any'}.json"
        path = Path(platformdirs.user_cache_dir("intact", appauthor=False)) / "answers" / name
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls(path)
        texts = rows.items() if isinstance(rows, dict) else ()
        return cls(path, {key: row for key, row in texts if row is None or isinstance(row, str)})

    def write(self) -> str | None:
        """Keep the answers; the reason where that is impossible."""
        text = json.dumps(self.rows, indent=1, sort_keys=True, ensure_ascii=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(self.path, text)
        except (OSError, OutputError) as error:
            return f"answers are not kept in {self.path.parent}: {error}"
        return None


def installed_library(backend: str, toolchain: str | None = None) -> str | None:
    """The library of a backend, installed or chosen, with its version; None where it has none."""
    library = installed.find(backend).library if installed.is_backend(backend) else None
    if library is None:
        return None
    chain = installed.toolchain(backend, toolchain)
    return str(library) if chain is None else f"{library.package} {chain.version}"


def library_drift(backend: str, toolchain: str | None = None) -> tuple[str, str] | None:
    """The library that a table was probed with and the one that is installed, or chosen, where they differ."""
    here = installed_library(backend, toolchain)
    probed = None if here is None else shipped(backend)
    return None if here is None or probed is None or probed.library == here else (probed.library, here)


def of_this_version(
    model: ir.Model, target: Target, violations: Sequence[Violation], *, timeout: float, toolchain: str | None = None
) -> VersionFacts:
    """The violations of a model whose nodes have names, as the installed library, or the chosen one, sees them."""
    drift = library_drift(target.backend, toolchain)
    if drift is None:
        return VersionFacts(tuple(violations))
    probed, library = drift
    nodes = {node.name or "": node for node in compute_nodes(model, target)}
    answers = _Answers.read(library, target)
    keys = {name: seen_as(node, target) for name, node in nodes.items()}
    told = f"the table of {target.backend} was probed with {probed}; {library} is what compiles"
    unanswered = [name for name, key in keys.items() if key not in answers.rows]
    kept: str | None = None
    if unanswered:
        try:
            placed = place_live(model, target, timeout=timeout, toolchain=toolchain)
        except IntactError as error:
            documented = tuple(violation for violation in violations if _outlives_a_version(violation, nodes))
            note = f"{told} and cannot be asked ({error.message.splitlines()[0]}): only documented facts count"
            return VersionFacts(documented, (note, *_left_to_compiler(violations, documented, probed)))
        if not placed.npu_nodes:
            # One error of the compiler for all nodes says nothing about any of them, and must not be remembered.
            why = next((node.reason for node in placed.cpu_nodes if node.reason), _NOT_ON_NPU)
            note = f"{told} and takes nothing of the model ({why}): the table is used as it is"
            return VersionFacts(tuple(violations), (note,))
        reasons = {node.name: node.reason or _NOT_ON_NPU for node in placed.cpu_nodes}
        answers.rows |= {keys[name]: reasons.get(name) for name in unanswered}
        kept = answers.write()
    refused = {name: reason for name, key in keys.items() if (reason := answers.rows[key]) is not None}
    found = _corrected(nodes, refused, violations, library)
    taken = {violation.node for violation in violations} - {violation.node for violation in found}
    known = ", the others are in the user's cache" if len(unanswered) < len(nodes) else ""
    asked = f"{told}: it was asked about {len(unanswered)} of {len(nodes)} nodes{known}"
    more = [f"{library} takes {', '.join(sorted(taken))}, which the table refuses"] if taken else []
    return VersionFacts(found, (asked, *more, *([kept] if kept else [])))


def _outlives_a_version(violation: Violation, nodes: dict[str, ir.Node]) -> bool:
    """True if a violation holds for every version: a document says so, or it is not the library's matter."""
    return _DOCUMENTED in violation.source or violation.node not in nodes


def _left_to_compiler(violations: Sequence[Violation], documented: Sequence[Violation], probed: str) -> Iterator[str]:
    """Name the nodes that the table refuses because of a probe alone."""
    left = dict.fromkeys(f"{one.node} ({one.op})" for one in violations if one not in documented)
    if left:
        yield f"refused by {probed} when it was probed, in no document, and so left to the compiler: {', '.join(left)}"


def _corrected(
    nodes: dict[str, ir.Node], refused: dict[str, str], violations: Sequence[Violation], library: str
) -> tuple[Violation, ...]:
    """Violations of nodes that the library refuses: those of the table, or the library's own words."""
    known = {violation.node for violation in violations}
    # What is no node of its own, such as a tensor that leaves the range of half precision, is not the library's matter.
    stay = [violation for violation in violations if violation.node in refused or violation.node not in nodes]
    fix = "choose another precision, or the version of the library that the table knows; --no-strict goes on"
    more = [
        Violation(name, nodes[name].op_type, f"{library} takes it", f"it does not: {reason}", library, fix, REFUSED)
        for name, reason in refused.items()
        if name not in known
    ]
    return (*stay, *more)


def seen_as(node: ir.Node, target: Target) -> str:
    """A node as a library sees it: its operator, types, grids in the words of a table, shapes and attributes."""
    use = use_of(node, target.clipping)
    values = [*(value for value in node.inputs if value is not None), *node.outputs]
    shapes = "; ".join("x".join(map(str, query.static_shape(value) or ["?"])) for value in values)
    attributes = ", ".join(f"{name}={attribute.value}" for name, attribute in sorted(node.attributes.items()))
    return f"{use.domain}::{use.op}({describe(use.inputs)}) -> {describe(use.outputs)} [{shapes}] {attributes}"
