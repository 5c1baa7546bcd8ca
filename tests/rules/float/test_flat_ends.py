"""What operators read that are flat beyond a point is cut off there, so that grids need not hold it."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import query
from intact.rules.float import optimization
from intact.rules.float.flat_ends import CutHardSigmoid, CutHardSwish
from intact.targets.registry import load_target
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = (CutHardSwish(), CutHardSigmoid())
SIGNATURE = "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y)"
WEIGHT = {"w": np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)}
CASES = {
    "HardSwish (c)": [-3.0],
    "HardSigmoid (c)": [-2.5, 2.5],
    "HardSigmoid <alpha = 0.25, beta = 0.25> (c)": [-1.0, 3.0],
}


def limits(model):
    (clip,) = [node for node in model.graph if node.op_type == "Clip"]
    return [query.scalar(value) for value in clip.inputs[1:]]


@pytest.mark.parametrize(("flat", "ends"), CASES.items())
def test_a_clip_ends_where_the_operator_is_flat_and_changes_nothing(flat, ends):
    body = f"c = Conv (x, w) y = {flat}"
    done = rewritten(RULES, body, SIGNATURE, **WEIGHT)
    assert ops(done.model) == ["Conv", "Clip", flat.split()[0]]
    assert limits(done.model) == pytest.approx(ends)
    # Far beyond both ends, too.
    assert difference(given(body, SIGNATURE, **WEIGHT), done.model, scale=8.0) < 1e-6


@pytest.mark.parametrize(
    ("body", "signature", "reason"),
    [
        ("y = HardSwish (x)", SIGNATURE, "not computed by a layer or a sum"),
        ("c = Conv (x, w) m = MaxPool <kernel_shape = [1, 1]> (c) y = HardSwish (m)", SIGNATURE, "not computed by"),
        ("c = Conv (x, w) h = HardSwish (c) y = Add (h, c)", SIGNATURE, "is read elsewhere"),
        ("y = Conv (x, w) h = HardSwish (y)", f"{SIGNATURE[:-1]}, float[1, 4, 6, 6] h)", "is read elsewhere"),
        ("c = Conv (x, w) y = HardSigmoid <alpha = -0.5> (c)", SIGNATURE, "its slope -0.5"),
        ("c = Conv (x, w) y = HardSigmoid <beta = 1.5> (c)", SIGNATURE, "and offset 1.5"),
    ],
)
def test_it_refuses_what_a_clip_would_change_or_cost_something(body, signature, reason):
    used = WEIGHT if "w)" in body else {}
    done = rewritten(RULES, body, signature, **used)
    assert "Clip" not in ops(done.model)
    assert any(reason in refusal.reason for refusal in done.refusals)


def test_a_value_that_was_cut_is_not_cut_again():
    done = rewritten(RULES, "c = Conv (x, w) y = HardSwish (c)", SIGNATURE, **WEIGHT)
    again = optimization.optimize(done.model, ops=lambda *_: True, asked=RULES).model
    assert ops(again) == ops(done.model)


@pytest.mark.parametrize(("device", "anywhere", "asked"), [("rknn", True, 2), ("rknn", False, 0), ("qnn", True, 0)])
def test_a_target_is_asked_and_so_are_the_grids(device, anywhere, asked):
    rules = optimization.rules_of(load_target(device), in_integers=True, ends_anywhere=anywhere)
    assert sum(isinstance(rule, (CutHardSwish, CutHardSigmoid)) for rule in rules) == asked
