"""Finds and reads target tables. A table is read only when its backend is asked for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from intact.errors import SettingsError
from intact.settings.config import TARGET_ENTRY_POINTS, nearest
from intact.targets.spec import Axis, Costs, Disagreement, Forms, Level, OpSpec, Packing, Signature, Slot, Soc, Target

_BACKENDS = resources.files("intact") / "backends"
_TABLE = "table.toml"
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
    chip = _soc(table, soc, name) if soc is not None else None
    number = _arch(table, arch, chip, name)
    return Target(
        backend=table["target"]["name"],
        arch=number,
        soc=chip or _soc_for(table, number),
        npu=table["target"]["npu"],
        precisions=table.get("precisions", {}),
        later=table.get("later", {}),
        ops=_ops(table, origin) if name.endswith(".toml") else _installed_ops(name),
        table=origin,
        rewrite=_forms(table.get("rewrite", {}), origin, vnni, ort),
        instead=table.get("instead", {}),
        halves=_from_arch(table["target"].get("halves_from"), number),
        packing=_packing(table.get("weight_only"), origin),
        costs=_costs(table.get("cost"), origin),
    )


def known_backends() -> list[str]:
    """Names that `load_target` takes without a path."""
    shipped = [folder.name for folder in _BACKENDS.iterdir() if (folder / _TABLE).is_file()]
    return sorted({*shipped, *(point.name for point in entry_points(group=TARGET_ENTRY_POINTS))})


def known_archs(name: str) -> list[int]:
    """The architectures of a backend, oldest first."""
    return list(_table(name)[0]["target"].get("archs", []))


def known_socs(name: str) -> list[Soc]:
    """The chips of a backend, in the order of its table."""
    return _socs(_table(name)[0])


def disagreements(name: str) -> list[Disagreement]:
    """Documented facts about a backend that probes contradict."""
    return [Disagreement(**row) for row in _table(name)[0].get("disagreement", ())]


def _table(name: str) -> tuple[dict[str, Any], str]:
    """A table and where it comes from; a file that a user may edit is read every time."""
    if name.endswith(".toml"):
        return _read(Path(name).read_text(encoding="utf-8") if Path(name).is_file() else None, name), name
    return _installed(name)


@cache
def _installed(name: str) -> tuple[dict[str, Any], str]:
    shipped = _BACKENDS / name / _TABLE
    if shipped.is_file():
        return _read(shipped.read_text(encoding="utf-8"), name), f"backends/{name}/{_TABLE}"
    for point in entry_points(group=TARGET_ENTRY_POINTS, name=name):
        path = Path(str(point.load()))
        return _read(path.read_text(encoding="utf-8"), name), str(path)
    raise SettingsError(
        "S121", f"unknown device {name!r}{nearest(name, known_backends())}", allowed=", ".join(known_backends())
    )


def _read(text: str | None, name: str) -> dict[str, Any]:
    if text is None:
        raise SettingsError("S122", f"{name}: no such target table")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError("S123", f"{name}: {error}") from None


@cache
def _installed_ops(name: str) -> Mapping[tuple[str, str], OpSpec]:
    return _ops(*_installed(name))


def _ops(table: dict[str, Any], origin: str) -> Mapping[tuple[str, str], OpSpec]:
    specs = [_op(key, entry, table, origin) for key, entry in table.get("op", {}).items()]
    return {(spec.domain, spec.op): spec for spec in specs}


def _op(key: str, entry: dict[str, Any], table: dict[str, Any], origin: str) -> OpSpec:
    domain, _, op = key.rpartition("::")
    entry = {**table.get("group", {}).get(entry.get("like", ""), {}), **entry}
    source = entry.get("source", "")
    return OpSpec(
        op=op,
        domain=domain,
        signatures=tuple(_signature(row, source, entry.get("float_arch", 0)) for row in _rows(entry)),
        grid=entry.get("grid", "own"),
        start=entry.get("start", True),
        weight_axis=_axis(entry.get("weight_axis", 0)),
        channel_rank=entry.get("channel_rank"),
        fixed={t: (float(v["scale"]), int(v["zero_point"])) for t, v in entry.get("fixed", {}).items()},
        require=(*table.get("every", {}).get("require", ()), *entry.get("require", ())),
        source=f"{origin} [op.{key}], {source}",
        must_share=entry.get("must_share", True),
        must_fix={t: v["must"] for t, v in entry.get("fixed", {}).items() if "must" in v},
        absorbed=entry.get("absorbed", False),
        group=entry.get("group", "all"),
    )


def _rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The signatures of an operator: its own or its group's, and those that it has beyond them."""
    return [*entry.get("take", ()), *entry.get("more", ())]


def _signature(row: dict[str, Any], source: str, float_arch: int) -> Signature:
    inputs = list(row["in"])
    least = float_arch if row.get("runs") == "float" else 0
    repeats = inputs[-1:] == ["..."]
    return Signature(
        inputs=tuple(map(Slot.parse, inputs[:-1] if repeats else inputs)),
        outputs=tuple(map(Slot.parse, row["out"])),
        repeats=repeats,
        arch=row.get("arch", least),
        source=row.get("source", source),
        require=tuple(row.get("require", ())),
        runs=row.get("runs", "integer"),
    )


def _axis(value: int | dict[str, Any]) -> Axis:
    if isinstance(value, int):
        return Axis(value)
    return Axis(value["default"], value["attribute"], {int(k): v for k, v in value["values"].items()})


def _forms(entry: dict[str, Any], origin: str, vnni: bool | None, ort: str | None) -> Forms:
    kernels = (key.rpartition("::") for key in entry.get("kernels", ()))
    direct = entry.get("direct_conv", {"inputs": 1, "outputs": 1, "positions": 1})
    distinct = _from_version(entry.get("distinct_zero_points", {}), ort)
    return Forms(
        form=entry.get("form", "qdq"),
        rules=tuple(entry.get("rules", ())),
        kernels=frozenset((domain, op) for domain, _, op in kernels),
        moves={op: frozenset(types.split("|")) for op, types in entry.get("moves", {}).items()},
        saturates=entry.get("saturates_without") == "vnni" and _lacks_vnni(vnni),
        makes_symmetric=frozenset(entry.get("makes_symmetric", ())),
        takes_distinct=distinct,
        refuses_distinct=frozenset(entry.get("distinct_zero_points", {})) - distinct,
        # A version that the user names is the one that runs the model: no other has to.
        portable_up_to=tuple(entry.get("portable_up_to", ())) if ort is None else (),
        weight_zero_points=entry.get("weight_zero_points", "any"),
        worth_converting=entry.get("worth_converting"),
        worth_flattening=entry.get("worth_flattening"),
        direct_conv=(direct["inputs"], direct["outputs"], direct["positions"]),
        source=f"{origin} [rewrite], {entry.get('source', '')}",
    )


def _from_version(first: Mapping[str, str], assumed: str | None) -> frozenset[str]:
    """The operators of a mapping to versions that the runtime, as old as the user says or as it is, has."""
    if not first:
        return frozenset()
    if assumed is None:
        from intact.runtime import ort_cpu as cpu

        assumed = cpu.version()
    return frozenset(op for op, since in first.items() if since != NEVER and _parts(since) <= _parts(assumed))


def _parts(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise SettingsError("S138", f"{version!r} is not a version of ONNX Runtime", allowed="for example 1.26")
    return int(found[1]), int(found[2])


def _lacks_vnni(assumed: bool | None) -> bool:
    """What the user says of the machine that will run the model, or what is true of this one."""
    if assumed is not None:
        return not assumed
    from intact.runtime import host_cpu as cpu

    return cpu.adds_pairs_in_16_bits()


def _arch(table: dict[str, Any], arch: str | int | None, soc: Soc | None, name: str) -> int | None:
    known: list[int] = table["target"].get("archs", [])
    text = ", ".join(f"v{a}" for a in known) or f"{name} has no architectures"
    if arch is None:
        return soc.arch if soc is not None else table["target"].get("default_arch")
    digits = str(arch).lower().removeprefix("v")
    if not digits.isdecimal() or int(digits) not in known:
        raise SettingsError("S124", f"unknown architecture {arch!r} of {name}", allowed=text)
    if soc is not None and soc.arch != int(digits):
        raise SettingsError("S125", f"{soc.name} is v{soc.arch}, not v{digits}", fix="give --soc or --arch, not both")
    return int(digits)


def _packing(entry: dict[str, Any] | None, origin: str) -> Packing | None:
    if entry is None:
        return None
    return Packing(tuple(entry["types"]), tuple(entry["blocks"]), f"{origin} [weight_only], {entry['source']}")


def _costs(entry: dict[str, Any] | None, origin: str) -> Costs | None:
    if entry is None:
        return None
    levels = tuple(Level(**{**row, "bytes": tuple(row["bytes"])}) for row in entry["levels"])
    return Costs(levels, entry["byte"], f"{origin} [cost], {entry['source']}")


def _from_arch(first: int | None, arch: int | None) -> bool:
    """Whether something that holds from the architecture `first` on holds for this one; never where it is unset."""
    return first is not None and arch is not None and arch >= first


def _socs(table: dict[str, Any]) -> list[Soc]:
    return [Soc(**row) for row in table.get("soc", {}).get("rows", ())]


def _soc(table: dict[str, Any], soc: str, name: str) -> Soc:
    chips = {chip.name: chip for chip in _socs(table)}
    if soc.upper() not in chips:
        hint = nearest(soc.upper(), list(chips))
        raise SettingsError("S126", f"unknown SoC {soc!r} of {name}{hint}", allowed=", ".join(chips) or "none")
    return chips[soc.upper()]


def _soc_for(table: dict[str, Any], arch: int | None) -> Soc | None:
    """A chip that stands for an architecture: the first one listed with it."""
    return next((chip for chip in _socs(table) if chip.arch == arch), None)
