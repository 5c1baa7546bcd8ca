"""What the table says of a whole model is what the vendor's library says: for every shipped model, nothing differs."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from intact.backends.live import place_live
from intact.events import Log
from intact.model import shapes
from intact.pipeline import stages
from intact.rules.quantized import families
from intact.settings.config import BuildConfig
from intact.targets.placement import place
from intact.targets.registry import known_archs
from intact.targets.validate import validate
from tests.zoo import ZOO

EXAMPLES = {path.parent.name: path for path in Path(__file__).parents[2].glob("examples/*/model.onnx")}
PRECISIONS = ("uint8", "w8a16", "w4a16")
# Types and forms do not depend on how many rows are seen.
ROWS = 8
SAMPLE = 10

EVERY = list(itertools.product([*ZOO, *sorted(EXAMPLES)], PRECISIONS, known_archs("qnn")))
CHOSEN = set(random.Random(0).sample(EVERY, SAMPLE))
MATRIX = [pytest.param(*case, marks=[] if case in CHOSEN else [pytest.mark.slow]) for case in EVERY]


@pytest.fixture
def compiled_form(zoo):
    """What the compiler would be given for a model at a precision on an architecture, and the target."""

    def form(name, precision, arch, **quant):
        path = EXAMPLES[name] if name in EXAMPLES else zoo.model(name)
        rows = path.with_name("calibration.npz") if name in EXAMPLES else zoo.data(name)
        settings = {
            "precision": precision,
            "quant": {"load_path": str(rows), "samples": ROWS, **quant},
            "compile": {"device": "qnn", "arch": f"v{arch}"},
        }
        prepared = stages.prepare(path, BuildConfig.from_dict(settings), Log())
        model = families.rewrite(prepared.model, prepared.target).model
        shapes.infer_shapes(model)
        return model, prepared.target

    return form


def names(nodes):
    return {node.name for node in nodes}


@pytest.mark.qnn
@pytest.mark.parametrize(("name", "precision", "arch"), MATRIX)
def test_table_and_library_agree(compiled_form, name, precision, arch):
    model, target = compiled_form(name, precision, arch)
    static, live = place(model, target), place_live(model, target, timeout=600)
    assert names(static.cpu_nodes) == names(live.cpu_nodes)
    assert static.partitions == live.partitions
    refused = {violation.node for violation in validate(model, target, strict=False)}
    assert refused == names(static.cpu_nodes)
    assert refused or live.partitions == 1
