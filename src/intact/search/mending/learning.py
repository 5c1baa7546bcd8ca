"""Builds that learn: what a mender found is kept, and done at once where the same operators come again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.backends import lessons
from intact.backends.lessons import Lesson
from intact.backends.other_version import installed_library, seen_as
from intact.model import edit, shapes
from intact.pipeline.mending import ENOUGH_DB, Mended, TakenForm
from intact.records import dataclass
from intact.search.debug.units import Units
from intact.search.mending import mender
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.other_forms import REMEDIES
from intact.search.mending.steering import steer
from intact.settings.config import CompileConfig
from intact.targets.spec import Target

Rows = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Learner:
    """A file of lessons, which `mend` adds to and `recall` applies."""

    place: Path

    def mend(
        self, model: ir.Model, rows: Rows, target: Target, config: CompileConfig, goal_db: float = ENOUGH_DB
    ) -> Mended | None:
        """Look for right forms, and keep what the simulator confirmed."""
        found = mender.mend(model, rows, target, config, goal_db)
        if found is not None and found.taken:
            library = installed_library(target.backend, config.toolchain) or ""
            lessons.keep([_lesson(model, taken, target, library) for taken in found.taken], self.place)
        return found

    def recall(self, model: ir.Model, rows: Rows, target: Target, config: CompileConfig) -> Mended | None:
        """Apply what the table and what builds learnt about the installed library; None where nothing fits."""
        library = installed_library(target.backend, config.toolchain)
        known = [one for one in lessons.read(self.place) if (one.library, one.arch) == (library, target.arch)]
        foreseen = steer(model, rows, target, config)
        model, done = (model, []) if foreseen is None else (foreseen.model, list(foreseen.done))
        for tensor, lesson in _sites(model, known, target):
            site = FaultSite(model.clone(), tensor, _seen(model, tensor, rows))
            told = {remedy.__name__: remedy for remedy in REMEDIES}[lesson.remedy](site)
            if told is not None:
                edit.prune(site.model)
                site.model.graph.sort()
                model = site.model
                done.append(f"{told}, as an earlier build learnt ({self.place})")
        return Mended(model, tuple(done)) if done else None


def _lesson(model: ir.Model, taken: TakenForm, target: Target, library: str) -> Lesson:
    site = FaultSite(_described(model), taken.tensor)
    operator, behind = _condition(site, target)
    figures = (taken.wrong_db, taken.right_db)
    return Lesson(operator, "" if taken.alone else behind, taken.remedy, *figures, library, target.arch)


def _sites(model: ir.Model, known: Sequence[Lesson], target: Target) -> list[tuple[str, Lesson]]:
    """The tensors that lessons are about, in the order of the model."""
    names = {remedy.__name__ for remedy in REMEDIES}
    usable = [lesson for lesson in known if lesson.remedy in names]
    described, found = _described(model), []
    for unit in Units(described).units if usable else ():
        site = FaultSite(described, unit.tensor)
        if not site.nodes:
            continue
        operator, behind = _condition(site, target)
        matching = (one for one in usable if one.operator == operator and one.behind in ("", behind))
        found += [(unit.tensor, lesson) for lesson in list(matching)[:1]]
    return found


def _described(model: ir.Model) -> ir.Model:
    described = model.clone()
    shapes.infer_shapes(described)
    return described


def _condition(site: FaultSite, target: Target) -> tuple[str, str]:
    """The operator that computes the tensor of a site as its library sees it, and those that it reads from."""
    written = [dequantize.inputs[0] for _, _, dequantize in site.reads()]
    sources = [quantize.inputs[0] for value in written if value and (quantize := value.producer()) is not None]
    behind = [source.producer() for source in sources if source is not None]
    return seen_as(site.nodes[0], target), ", ".join(sorted(node.op_type for node in behind if node is not None))


def _seen(model: ir.Model, tensor: str, rows: Rows) -> dict[str, tuple[float, float]]:
    unit = next(unit for unit in Units(model).units if unit.tensor == tensor)
    return mender.seen_ranges(model, unit.reads, rows)
