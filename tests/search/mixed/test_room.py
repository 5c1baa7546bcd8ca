"""What our form of a model saves against the vendor's own quantizer is spent on accuracy, and no more than that."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from intact.events import Log
from intact.model.census import types_of
from intact.pipeline import execution, preparation
from intact.results import PlacedLayer, Placement
from intact.search.mixed import room, spendable
from intact.search.mixed.groups import FLOAT, Group, GroupedTensor, Joins, Structure
from intact.search.mixed.room import LayerCycles
from intact.search.mixed.sensitivity import Noises
from intact.settings.config import BuildConfig, merge

INT8, HALF = 100, 200
MULTIPLYING = ("Conv", "Gemm")


class FakeCompiler:
    """Takes any model: 100 cycles for a layer in integers, and twice as many for one in float."""

    estimates = True

    def __init__(self, usual=None):
        self.usual, self.placed = usual, []

    def place(self, model, device):
        types = [row for row in types_of(model) if row.op in MULTIPLYING]
        cycles = [HALF if row.activations == FLOAT else INT8 for row in types]
        layers = tuple(PlacedLayer(row.op, "NPU", "", (row.node,), c) for row, c in zip(types, cycles, strict=True))
        self.placed.append(sum(cycles))
        return Placement((), (), 1, layers=layers)

    def usual_cycles(self, model, sample, device):
        return self.usual


def config(zoo, **more) -> BuildConfig:
    quant = {"load_path": str(zoo.data("residual_cnn"))}
    given = {"precision": "int8", "quant": quant, "compile": {"device": "rknn", "soc": "rk3588"}}
    return BuildConfig.from_dict(merge(given, more))


def optimized(zoo, **more):
    begun, upgrade = preparation.begin(zoo.model("residual_cnn"), config(zoo, **more), Log())
    upgrade.confirm(Log())
    return preparation.optimize(begun, Log())


@pytest.fixture(scope="module")
def given(zoo):
    return optimized(zoo)


def spent(given, monkeypatch, usual):
    """The model after spending what a compiler leaves, the compiler, and the record of it."""
    compiler, log = FakeCompiler(usual), Log()
    monkeypatch.setattr(room, "installed", SimpleNamespace(find=lambda _: compiler))
    return room.spend(given, log), compiler, log.stages[-1].details


def in_float(model):
    return [name for name, kind in model.config.quantization.types.items() if kind == FLOAT]


def sqnr_db(prepared):
    quantized = preparation.quantize(prepared, Log()).model
    rows = list(prepared.inputs.test)
    right, found = (
        np.stack([row["logits"] for row in execution.run(m, rows)]).astype(np.float64)
        for m in (prepared.source.model, quantized)
    )
    return 10 * np.log10((right**2).sum() / ((right - found) ** 2).sum())


def test_room_below_the_cycles_of_the_vendor_is_spent_and_makes_a_model_more_accurate(given, monkeypatch):
    _, compiler, details = spent(given, monkeypatch, None)
    plain = details["plain_cycles"]
    assert plain == compiler.placed[0] == INT8 * (plain // INT8)
    richer, compiler, details = spent(given, monkeypatch, plain + 3 * (HALF - INT8))
    assert details["groups_in_float"] >= 1 and in_float(richer)
    assert plain < details["cycles"] <= room.MOST_CYCLES * details["vendor_cycles"]
    assert details["cycles"] in compiler.placed
    assert sqnr_db(richer) > sqnr_db(given) + 0.5


def test_a_model_that_is_no_cheaper_than_that_of_the_vendor_stays_as_it_was(given, monkeypatch):
    same, _, details = spent(given, monkeypatch, 50)
    assert same.config == given.config and "cycles" not in details


def test_a_limit_of_the_user_on_cycles_is_a_limit_of_what_is_spent(zoo, monkeypatch):
    free = optimized(zoo)
    _, _, details = spent(free, monkeypatch, 10**6)
    assert details["cycles"] > details["plain_cycles"] + (HALF - INT8)
    bound = optimized(zoo, max_cycles=details["plain_cycles"] + (HALF - INT8))
    _, _, within = spent(bound, monkeypatch, 10**6)
    assert within.get("cycles", 0) <= bound.config.max_cycles


@pytest.mark.parametrize("enough", [room.ENOUGH, 0.0])
def test_with_room_for_everything_something_stays_in_integers_all_the_same(given, monkeypatch, enough):
    """At least what costs next to no accuracy does; a model with nothing in integers is another precision."""
    monkeypatch.setattr(room, "ENOUGH", enough)
    richer, _, details = spent(given, monkeypatch, 10**6)
    assert 0 < details["groups_in_float"] < details["groups"]
    assert sqnr_db(richer) > sqnr_db(given) + 0.5


def test_a_model_that_loses_next_to_nothing_stays_in_integers(given, monkeypatch):
    monkeypatch.setattr(room, "ENOUGH", 1.0)
    same, compiler, details = spent(given, monkeypatch, 10**6)
    assert same.config == given.config and "cycles" not in details and len(compiler.placed) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"quant": {"effort": "fast"}},
        {"quant": {"rescue": False}},
        {"quant": {"exclude_op_types": ["Gemm"]}},
        {"compile": {"soc": "rv1106"}},
        {"compile": {"device": "qnn", "soc": None}, "precision": "uint8"},
    ],
)
def test_nothing_is_spent_where_it_is_not_wanted_or_cannot_be_had(zoo, monkeypatch, more):
    before = optimized(zoo, **more)
    compiler = FakeCompiler(10**6)
    monkeypatch.setattr(spendable, "installed", SimpleNamespace(find=lambda _: compiler))
    assert spendable.may_spend(optimized(zoo)) and not spendable.may_spend(before)


def test_a_compiler_that_tells_no_layers_leaves_the_model_as_it_is(given, monkeypatch):
    monkeypatch.setattr(FakeCompiler, "place", lambda self, model, device: Placement((), (), 0))
    same, _, _ = spent(given, monkeypatch, 10**6)
    assert same.config == given.config


def test_the_cycles_of_layers_are_those_of_the_groups_whose_nodes_they_compute():
    joins = Joins(behind=True, before=True, between=True)
    groups = tuple(Group(names, (), (0, 1), joins) for names in (("a", "relu"), ("b",)))
    found = Structure(groups, (GroupedTensor("t", 0, (1,), rounded=True),), plan=None)
    names = [("a",), ("b",), ("b",), (), ("elsewhere",)]
    layers = [PlacedLayer("Conv", "NPU", "INT8", nodes, 10**place) for place, nodes in enumerate(names)]
    assert LayerCycles.of(layers, found) == LayerCycles((1, 110), 11000)
    assert LayerCycles.of(layers, found).total == 11111


def test_what_stays_within_a_layer_has_no_noise_and_everything_else_has():
    joins = Joins(behind=True, before=True, between=True)
    names = (("conv",), ("shortcut",), ("add", "relu"), ("next",))
    groups = tuple(Group(nodes, (), (0, 1), joins) for nodes in names)
    # The sum is computed with `conv`; what `branched` holds is read outside of that layer, too.
    tensors = (("inner", 0, (2,)), ("other", 1, (2,)), ("sum", 2, (3,)), ("branched", 0, (2, 3)), ("last", 3, ()))
    found = Structure(groups, tuple(GroupedTensor(*row, rounded=True) for row in tensors), plan=None)
    layers = [
        PlacedLayer("Conv", "NPU", "INT8", nodes, 1) for nodes in (("shortcut",), ("conv", "add", "relu"), ("next",))
    ]
    noise = Noises({row[0]: np.ones((3, 1)) for row in tensors}, {}, {}, 1)
    left = room.without_inner(noise, layers, found)
    assert [name for name, table in left.written.items() if not table.any()] == ["inner"]
    assert all(table.all() for name, table in left.written.items() if name != "inner")


def test_cycles_that_nobody_expected_are_shared_out_by_what_groups_in_float_take_more():
    chosen = SimpleNamespace(levels=(1, 1, 0))
    before, after = LayerCycles((10, 10, 10), 0), LayerCycles((10, 109, 500), 0)
    assert room.shared_out(202.0, chosen, before, after) == [2.0, 200.0, 0.0]


class DearCompiler(FakeCompiler):
    """Takes much more for one layer in float than anybody expects."""

    dear = ""

    def place(self, model, device):
        placed = super().place(model, device)
        dear = [self.dear in row.nodes and row.cycles == HALF for row in placed.layers]
        layers = tuple(
            replace(row, cycles=row.cycles + 10_000 * much) for row, much in zip(placed.layers, dear, strict=True)
        )
        self.placed[-1] = sum(row.cycles for row in layers)
        return Placement((), (), 1, layers=layers)


def test_what_is_dearer_than_expected_is_left_in_integers_and_the_room_spent_elsewhere(given, monkeypatch):
    usual = 10 * INT8 + 4 * (HALF - INT8)
    richer, compiler, _ = spent(given, monkeypatch, usual)
    dear = next(name for name in in_float(richer) if any(name in row.nodes for row in _layers(compiler, given)))
    monkeypatch.setattr(DearCompiler, "dear", dear)
    monkeypatch.setattr(f"{__name__}.FakeCompiler", DearCompiler)
    otherwise, compiler, details = spent(given, monkeypatch, usual)
    assert max(compiler.placed) > 10_000, "it was tried"
    assert dear not in in_float(otherwise) and in_float(otherwise)
    assert details["cycles"] <= room.MOST_CYCLES * usual


def _layers(compiler, given):
    return compiler.place(preparation.quantize(given, Log()).model, None).layers
