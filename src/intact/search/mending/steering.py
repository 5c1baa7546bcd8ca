"""Steers a model around what its device is known to get wrong, before it is compiled.

Rules of the table name their remedy. Conditions of the atlas do not, and hold for operators that stand alone: a node
that meets one is asked about on the simulator, and gets another form only where it is wrong as it stands, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from intact.errors import IntactError
from intact.model import normalize, shapes
from intact.pipeline import execution
from intact.pipeline.mending import ENOUGH_DB, Mended
from intact.search.debug.device import SIMULATED_ROWS, DeviceComparison, UnitError, simulator_of
from intact.search.debug.units import Unit
from intact.search.mending.aim import Rows, aim_of
from intact.search.mending.foreseen import foresee
from intact.search.mending.mender import MOST_COST, right_form
from intact.settings.config import CompileConfig
from intact.targets import faults
from intact.targets.operands import use_of
from intact.targets.spec import Target
from intact.targets.validate import compute_nodes

# Nodes that are asked about: many conditions of one kind are met by all layers of a kind, and the first tell enough.
MOST_SUSPECTS = 24


def steer(model: ir.Model, rows: Rows, target: Target, config: CompileConfig) -> Mended | None:
    """Give nodes that a table or an atlas knows to be computed wrongly another form; None where none needs one."""
    by_table = foresee(model, rows, target, config)
    done = () if by_table is None else by_table.done
    avoided = avoid(model if by_table is None else by_table.model, rows, target, config)
    if avoided is None:
        return by_table
    return Mended(avoided.model, (*done, *avoided.done))


def avoid(model: ir.Model, rows: Rows, target: Target, config: CompileConfig) -> Mended | None:
    """Give each node that meets a condition of the atlas, and that the simulator shows to be wrong, a right form."""
    suspects = suspected(model, target)
    simulator = simulator_of(target) if suspects else None
    if simulator is None or not rows:
        return None
    named, done = model.clone(), list[str]()
    normalize.name_nodes(named)
    device = execution.device_of(target, config)
    aim = aim_of(named, rows, target, ENOUGH_DB, MOST_COST)
    comparison = DeviceComparison(named, rows[:SIMULATED_ROWS], simulator, device)
    for unit in _wrong_alone(comparison, [unit for unit in comparison.units.units if suspects & set(unit.nodes)]):
        try:
            there = comparison.behind_all(unit)
            form = right_form(comparison, there, aim) if there.parted else None
        except IntactError:
            continue  # the compiler does not take it so; the build says it
        if form is not None and not form.error.parted:
            comparison = DeviceComparison(form.model, rows[:SIMULATED_ROWS], simulator, device)
            done.append(f"{form.done}, in a region where the device is known to be wrong")
    return Mended(comparison.units.cutter.model, tuple(done)) if done else None


def suspected(model: ir.Model, target: Target) -> set[str]:
    """The names of nodes that meet a condition of the target's atlas, the first in the order of the model."""
    if target.wrong is None or not faults.faults_in(target.wrong):
        return set()
    described = model.clone()
    normalize.name_nodes(described)
    shapes.infer_shapes(described)
    uses = ((node, use_of(node, target.clipping)) for node in compute_nodes(described, target))
    found = [node.name or "" for node, use in uses if faults.met(use, target.wrong, target.arch) is not None]
    return set(found[:MOST_SUSPECTS])


def _wrong_alone(comparison: DeviceComparison, units: Sequence[Unit]) -> list[Unit]:
    """Those of some units that the device gets wrong by themselves, all asked about at once."""
    try:
        errors: list[UnitError] = comparison.by_themselves([(unit, comparison.units) for unit in units])
    except IntactError:
        return []
    return [error.unit for error in errors if error.parted]
