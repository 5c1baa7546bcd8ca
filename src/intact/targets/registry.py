"""Finds target tables and makes targets of them. A table is read only when its backend is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from intact.errors import SettingsError
from intact.settings import devices
from intact.targets.offer import arch_of, soc_of, socs, source_of, version_parts
from intact.targets.spec import Axis, Costs, Forms, Level, OpSpec, Packing, Signature, Soc, Target
from intact.targets.table import (
    AxisRow,
    CostSection,
    Disagreement,
    OpEntry,
    RewriteSection,
    SignatureRow,
    TargetTable,
    WeightOnlySection,
    parse,
    slot_of,
)

NEVER = "never"
"""The version from which on a runtime does what no version does."""


def load_target(
    name: str,
    *,
    arch: str | int | None = None,
    soc: str | None = None,
    vnni: bool | None = None,
    ort: str | None = None,
) -> Target:
    """The target `name`: a backend that ships with intact, an installed one, or the path of a table.

    `vnni` says whether the machine that will run the model has VNNI, `ort` which version of ONNX Runtime it has; None
    stands for the machine at hand.
    """
    table, origin = _table(name)
    chip = soc_of(table, soc, name) if soc is not None else None
    number = arch_of(table, arch, chip, name)
    return Target(
        backend=table.target.name,
        arch=number,
        soc=chip or _soc_for(table, number),
        npu=table.target.npu,
        runs_float=table.target.runs_float or not table.target.npu,
        precisions=table.precisions,
        usual_precision=table.target.usual_precision,
        later=table.later,
        ops=_ops(table, origin) if name.endswith(".toml") else _installed_ops(name),
        table=origin,
        rewrite=_forms(table.rewrite, origin, vnni, ort),
        instead=table.instead,
        halves=_from_arch(table.target.halves_from, number),
        packing=_packing(table.weight_only, origin),
        costs=_costs(table.cost, origin),
        ort_fuses=table.target.ort_fuses,
        opset=table.target.opset,
        by_chip=table.target.by_chip,
        halves_alone=table.target.halves_alone,
        longest_stride=table.target.longest_stride,
        most_in_mean=table.target.most_in_mean,
        channels_at_once=table.target.channels_at_once,
        cuts_flat_ends=table.target.cuts_flat_ends,
        wrong=_wrong_folder(name, origin),
    )


def _wrong_folder(name: str, origin: str) -> Path:
    """The folder beside a table that says where the device computes wrongly, if there is one."""
    if name in devices.shipped():
        return Path(str(resources.files("intact"))) / "backends" / name / devices.WRONG
    return Path(origin).with_name(devices.WRONG)


def known_backends() -> list[str]:
    """Names that `load_target` takes without a path."""
    return devices.known()


def running_float() -> list[str]:
    """Names of the devices among those that ship with intact that run a model in float."""
    sections = {name: _table(name)[0].target for name in devices.shipped()}
    return [name for name, section in sections.items() if section.runs_float or not section.npu]


def known_archs(name: str) -> list[int]:
    """The architectures of a backend, oldest first."""
    return list(_table(name)[0].target.archs)


def known_socs(name: str) -> list[Soc]:
    """The chips of a backend, in the order of its table."""
    return socs(_table(name)[0])


def disagreements(name: str) -> list[Disagreement]:
    """Documented facts about a backend that probes contradict."""
    return _table(name)[0].disagreement


def _table(name: str) -> tuple[TargetTable, str]:
    """A table and where it comes from; a file that a user may edit is read every time."""
    if not name.endswith(".toml"):
        return _installed(name)
    text, origin = source_of(name)
    return parse(text, origin), origin


@cache
def _installed(name: str) -> tuple[TargetTable, str]:
    text, origin = source_of(name)
    return _of_this_name(parse(text, origin), name, origin), origin


def _of_this_name(table: TargetTable, name: str, origin: str) -> TargetTable:
    """The table of an installed package, which goes by one name: what is built for it is looked up by that."""
    if table.target.name != name:
        raise SettingsError("S194", f"{origin}: its name is {table.target.name!r}, and its entry point's is {name!r}")
    return table


@cache
def _installed_ops(name: str) -> Mapping[tuple[str, str], OpSpec]:
    return _ops(*_installed(name))


def _ops(table: TargetTable, origin: str) -> Mapping[tuple[str, str], OpSpec]:
    specs = [_op(key, table, origin) for key in table.op]
    return {(spec.domain, spec.op): spec for spec in specs}


def _op(key: str, table: TargetTable, origin: str) -> OpSpec:
    domain, _, op = key.rpartition("::")
    entry = table.entry(key)
    return OpSpec(
        op=op,
        domain=domain,
        signatures=tuple(_signature(row, entry) for row in (*entry.take, *entry.more)),
        grid=entry.grid,
        start=entry.start,
        weight_axis=_axis(entry.weight_axis),
        channel_rank=entry.channel_rank,
        fixed={dtype: (row.scale, row.zero_point) for dtype, row in entry.fixed.items()},
        require=(*table.every.require, *entry.require),
        right=tuple(entry.right),
        source=f"{origin} [op.{key}], {entry.source}",
        must_share=entry.must_share,
        must_fix={dtype: row.must for dtype, row in entry.fixed.items() if row.must is not None},
        absorbed=entry.absorbed,
        group=entry.group,
        joined_alone=entry.joined_alone,
    )


def _signature(row: SignatureRow, entry: OpEntry) -> Signature:
    least = entry.float_arch if row.runs == "float" else 0
    return Signature(
        inputs=tuple(map(slot_of, row.inputs[:-1] if row.repeats else row.inputs)),
        outputs=tuple(map(slot_of, row.outputs)),
        repeats=row.repeats,
        arch=least if row.arch is None else row.arch,
        source=entry.source if row.source is None else row.source,
        require=tuple(row.require),
        runs=row.runs,
    )


def _axis(value: int | AxisRow) -> Axis:
    if isinstance(value, int):
        return Axis(value)
    return Axis(value.default, value.attribute, {int(key): axis for key, axis in value.values.items()})


def _forms(entry: RewriteSection, origin: str, vnni: bool | None, ort: str | None) -> Forms:
    kernels = (key.rpartition("::") for key in entry.kernels)
    distinct = _from_version(entry.distinct_zero_points, ort)
    return Forms(
        form=entry.form,
        rules=tuple(entry.rules),
        kernels=frozenset((domain, op) for domain, _, op in kernels),
        moves={op: frozenset(types.split("|")) for op, types in entry.moves.items()},
        saturates=entry.saturates_without is not None and _lacks_vnni(vnni),
        makes_symmetric=frozenset(entry.makes_symmetric),
        takes_distinct=distinct,
        refuses_distinct=frozenset(entry.distinct_zero_points) - distinct,
        # A version that the user names is the one that runs the model: no other has to.
        portable_up_to=tuple(entry.portable_up_to) if ort is None else (),
        weight_zero_points=entry.weight_zero_points,
        requantizes_wrongly=frozenset(entry.requantizes_wrongly),
        worth_converting=entry.worth_converting,
        worth_flattening=entry.worth_flattening,
        direct_conv=(entry.direct_conv.inputs, entry.direct_conv.outputs, entry.direct_conv.positions),
        source=f"{origin} [rewrite], {entry.source}",
    )


def _from_version(first: Mapping[str, str], assumed: str | None) -> frozenset[str]:
    """The operators of a mapping to versions that the runtime, as old as the user says or as it is, has."""
    if not first:
        return frozenset()
    if assumed is None:
        from intact.runtime import ort_cpu as cpu

        assumed = cpu.version()
    here = version_parts(assumed)
    return frozenset(op for op, since in first.items() if since != NEVER and version_parts(since) <= here)


def _lacks_vnni(assumed: bool | None) -> bool:
    """True if kernels without VNNI will run the model: as the user says, or else as on this machine."""
    if assumed is not None:
        return not assumed
    from intact.runtime import host_cpu as cpu

    return cpu.adds_pairs_in_16_bits()


def _packing(entry: WeightOnlySection | None, origin: str) -> Packing | None:
    if entry is None:
        return None
    return Packing(tuple(entry.types), tuple(entry.blocks), f"{origin} [weight_only], {entry.source}")


def _costs(entry: CostSection | None, origin: str) -> Costs | None:
    if entry is None:
        return None
    levels = tuple(Level(r.name, r.activation, r.weight, r.multiply, (r.bytes[0], r.bytes[1])) for r in entry.levels)
    return Costs(levels, entry.byte, f"{origin} [cost], {entry.source}", entry.cycle)


def _from_arch(first: int | None, arch: int | None) -> bool:
    """True if something that holds from the architecture `first` on holds for this one; never where it is unset."""
    return first is not None and arch is not None and arch >= first


def _soc_for(table: TargetTable, arch: int | None) -> Soc | None:
    """A chip that stands for an architecture: the first one listed with it."""
    return next((chip for chip in socs(table) if chip.arch == arch), None)
