"""A model file in the form that stages take, compared with the file as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import data
from intact.errors import DataError, ModelError, some
from intact.events import Log
from intact.exporting import origin
from intact.linting import kernels
from intact.matching import rewriter
from intact.model import detect, fixed_inputs, footprint, io, normalize, query, randomness, same_nodes, upgrade
from intact.pipeline import execution, seen_types, trial
from intact.pipeline.execution import Outputs
from intact.records import dataclass
from intact.results import Origin
from intact.rules.float import constant_folding
from intact.rules.quantized.operator_signs import MatchWeightSign
from intact.runtime import ort_cpu, pieces
from intact.settings.config import BuildConfig
from intact.verification.compare import Runner, compare

# Rounding in another order may move float32 results this little; an upgrade that changes the function moves them more.
LEAST_UPGRADE_SQNR = 60.0
# Between integer operators it decides what becomes of ties, so that whole steps change.
LEAST_INTEGER_UPGRADE_SQNR = 20.0
UPGRADE_ROWS = 2
# With more bytes of weights than this, both forms run in turn and nothing else beside them: each session has copies.
MOST_COPIED_BESIDE = 1 << 27
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as it was given, and the same function in the form that stages take."""

    path: Path
    sha256: str
    opset: int
    model: ir.Model
    quantized: detect.Quantized | None
    origin: Origin | None = None
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Inputs of the file that are constants of `model`."""
    unchanged: bool = False
    """True if `model` is long and has the nodes and constants of the file, in operators that mean the same."""

    def as_given(self) -> Runner:
        """The model as it was given, on the CPU; beside each row it is fed what is fixed."""
        return self._runner(together=False)

    def as_given_together(self) -> Runner:
        """`as_given` for rows that do not depend on the outputs of others."""
        return self._runner(together=True)

    def _runner(self, *, together: bool) -> Runner:
        def outputs(rows: Iterable[data.Feeds]) -> Iterator[Outputs]:
            # A long graph runs in pieces that are cut from what was read: from what is in memory as well as anew.
            return execution.stream(self.model if self.unchanged else self.path, self.rows(rows), together=together)

        return Runner("original", execution.PLAIN, outputs)

    def rows(self, rows: Iterable[data.Feeds]) -> Iterator[data.Feeds]:
        """Rows for the model as it was given."""
        return ({**row, **self.fixed} for row in rows)


@dataclass(frozen=True, slots=True)
class UpgradeCheck:
    """The comparison of an upgraded model with its file, which runs beside later stages."""

    found: Future[tuple[float | None, tuple[str, ...]]] | None
    details: dict[str, object]
    is_heavy: bool = False
    """True if it copies so many weights that nothing else should copy any meanwhile."""

    def make_way(self) -> None:
        """Wait for a comparison that is heavy."""
        if self.found is not None and self.is_heavy:
            wait([self.found])

    def confirm(self, log: Log) -> None:
        """Wait for the comparison and record it; raise if the upgrade changed the function."""
        if self.found is not None:
            self.details["upgrade_sqnr_db"], warnings = self.found.result()
            log.warn(*warnings)


def load(path: Path, config: BuildConfig, log: Log) -> LoadedModel:
    """Load the model at `path`, upgraded and normalised, and compare it with the file as it is."""
    source, check = start_loading(path, config, log)
    check.confirm(log)
    return source


def start_loading(path: Path, config: BuildConfig, log: Log) -> tuple[LoadedModel, UpgradeCheck]:
    """Load the model at `path` as `load` does, but leave it to the caller to confirm the upgrade in the end."""
    aside = ThreadPoolExecutor(1)
    with log.stage("load") as (_, details):
        digest = aside.submit(io.sha256_of, path)
        given = io.load(path)
        upgraded = upgrade.upgrade(given)
        fixed = fixed_inputs.arrays(given, config.fixed_inputs, config.dims)
        model = normalize.normalize_own(upgraded.model, dims=config.dims, fixed=fixed)
        log.warn(*_repeated(given), *upgraded.notes)
        details.update(opset_from=upgraded.from_opset, opset_to=upgraded.to_opset)
        found = origin.of_model(given)
        log.warn(*(() if found is None else origin.warnings(found)))
        opset = given.opset_imports.get("", 0)
        quantized = detect.detect(model)
        if quantized is not None:
            # A float model gets that with the rest of optimizing. Rules and checks want grids and weights constant.
            constant_folding.fold(model)
            model = _with_kernels(model, log)
            _refuse_what_kills(path, model)
        trial.refuse_bombs(path, model, config.dims, unclaimed=not footprint.claims_shapes(given))
        log.warn(*seen_types.complete(model))  # It runs the model: what would end the process is refused by now.
        differs = upgraded.from_opset != upgraded.to_opset
        # To run both forms shows nothing where they are the same by definition.
        are_same = (differs or pieces.is_long(model)) and same_nodes.are_same(given, model)
        details.update({"upgrade_sqnr_db": None} if are_same else {})
        unchanged = are_same and pieces.is_long(model)
        source = LoadedModel(path, digest.result(), opset, model, quantized, found, fixed, unchanged)
        details.update({"fixed_inputs": dict(config.fixed_inputs)} if fixed else {})
    for name, value in config.fixed_inputs.items():
        log.events.note(f"input {name} is a constant now, {json.dumps(value)}: the model does not take it any more")
    check = aside.submit(_check_upgrade, source, given) if differs and not are_same else None
    aside.shutdown(wait=False)
    return source, UpgradeCheck(check, details, _is_heavy(model))


def _is_heavy(model: ir.Model) -> bool:
    return io.size_of_weights(model) > MOST_COPIED_BESIDE


def _repeated(given: ir.Model) -> list[str]:
    """A warning where constants of a file share a name: whoever wrote it may have meant another."""
    names = given.meta.get(io.REPEATED, ())
    listed = some(list(names), _SHOWN)
    return [f"several constants are called {listed}: the last counts, as in ONNX Runtime"] if names else []


def _with_kernels(model: ir.Model, log: Log) -> ir.Model:
    """The same integers in products that ONNX Runtime has kernels for: it multiplies no int8 with uint8."""
    matched = rewriter.apply(model, [MatchWeightSign()])
    if matched.applications:
        log.events.note(f"{len(matched.applications)} products of int8 with uint8 are written with int8 weights")
    return matched.model


def _refuse_what_kills(path: Path, model: ir.Model) -> None:
    """Refuse a model that ends the process of ONNX Runtime, which is this one, when a session is made."""
    for finding in kernels.WHERE.kills(model):
        raise ModelError(
            "M132",
            f"{path}: {finding.op} {finding.node!r} crashes ONNX Runtime: {finding.message}",
            fix="intact lint --fix writes a model without it (intact explain Q121)",
        )


def _check_upgrade(source: LoadedModel, given: ir.Model) -> tuple[float | None, tuple[str, ...]]:
    """The least SQNR in dB between the file and the upgraded model, None if they are identical, and warnings."""
    path, model = source.path, source.model
    random = randomness.why_incomparable(given)
    if random is not None:
        return None, (f"{path}: the upgrade to a newer opset was not checked: {random}",)
    rows: list[data.Feeds] = []
    try:
        rows = list(source.rows(data.load(model, None, samples=UPGRADE_ROWS).calibration))
        found = least = _distance(rows, (path, given), (model, model))
    except (ModelError, DataError) as problem:
        if not isinstance(problem, DataError) and (problem.code != ort_cpu.STOPPED or _runs(rows, path, given)):
            raise
        # Neither form runs with made-up inputs, or none can be made up; real data may do better later.
        return None, (f"{path}: the upgrade to a newer opset was not checked: {problem.message}",)
    allowed = LEAST_UPGRADE_SQNR
    warnings: list[str] = []
    if least is not None and least < allowed and detect.detect(model) is not None and _adds_otherwise(given, model):
        # The mean of integers is often half-way between two of them.
        before, after = (_without_rounding(form) for form in (given, model))
        allowed = LEAST_INTEGER_UPGRADE_SQNR if _computes_integers(after) else allowed
        least = _distance(rows, (before, before), (after, after))
        warnings.append(f"{path}: newer kernels than its own round ties in other ways: {found:.1f} dB apart")
    if least is not None and least < allowed:
        raise ModelError(
            "M152",
            f"{path}: after the upgrade to a newer opset the outputs differ ({least:.1f} dB SQNR)",
            allowed=f"at least {allowed:.0f} dB",
            fix="export the model again with opset 21 or later",
        )
    return found, tuple(warnings)


def _adds_otherwise(given: ir.Model, model: ir.Model) -> bool:
    return upgrade.changes_kernels(model, given.opset_imports.get("", 0))


def _runs(rows: Sequence[Outputs], path: Path, given: ir.Model) -> bool:
    session = execution.session(path, content=given)
    try:
        return all(_run(session, row) for row in rows)
    except ModelError:
        return False


def _run(session: ort_cpu.Session, row: Outputs) -> Outputs:
    """The outputs for a row of the model as it was given, which may have inputs that another form does not take."""
    return session.run(_fed(session, row))


def _fed(session: ort_cpu.Session, row: Outputs) -> Outputs:
    return {port.name: row[port.name] for port in session.inputs}


def _distance(rows: Sequence[Outputs], *forms: tuple[ir.Model | Path, ir.Model]) -> float | None:
    """The least SQNR in dB between two forms of a model, each with what is in it; None if they are identical."""
    threads = max(1, ort_cpu.threads() // 2)

    def run(form: tuple[ir.Model | Path, ir.Model]) -> list[Outputs]:
        session = execution.session(form[0], content=form[1], threads=threads)
        return list(session.stream(_fed(session, row) for row in rows))

    with ThreadPoolExecutor(1 if any(_is_heavy(content) for _, content in forms) else 2) as pool:
        before, after = pool.map(run, forms)
    accuracy = compare("upgraded", "onnxruntime", before, after)
    return min((row.sqnr_db for row in accuracy if row.sqnr_db is not None), default=None)


def _without_rounding(model: ir.Model) -> ir.Model:
    """A copy in which what is quantized and dequantized at once stays as it is, as far as it is inside."""
    result = normalize.inline_functions(model.clone())
    for node in query.all_nodes(result):
        source = None if node.op_type != "DequantizeLinear" or node.inputs[0] is None else node.inputs[0].producer()
        if source is not None and source.op_type == "QuantizeLinear" and not node.outputs[0].is_graph_output():
            assert source.inputs[0] is not None, f"{source.name!r} quantizes something"
            node.outputs[0].replace_all_uses_with(source.inputs[0])
    return result


def _computes_integers(model: ir.Model) -> bool:
    """True if an operator on integers reads what is quantized, so that there is rounding that cannot be left out."""
    readers = (query.consumers(node.outputs[0]) for node in query.all_nodes(model) if node.op_type == "QuantizeLinear")
    return any(reader.op_type != "DequantizeLinear" for group in readers for reader in group)
