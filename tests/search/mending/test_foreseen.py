"""What the table says is wrong gets its other form before anything is compiled, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from intact.pipeline import execution
from intact.search.mending.foreseen import foresee, remedies_of
from intact.search.mending.other_forms import REMEDIES
from intact.settings.config import CompileConfig
from intact.targets.registry import load_target
from intact.targets.validate import doubts
from tests.targets.test_doubts import TWOS, deconvolution, pool, table

QNN, CONFIG = load_target("qnn"), CompileConfig(device="qnn")
MODELS = {
    "zeros in its kernel": (deconvolution([1, 0, 0, 1, 0, 0], TWOS), (1, 2, 4, 4, 4)),
    "is a Conv with its kernel turned round": (deconvolution([1, 0, 1, 1, 1, 1], [1, 1, 1]), (1, 2, 4, 4, 4)),
    "axes in another order": (deconvolution([0] * 6, [2, 2, 1]), (1, 2, 4, 4, 4)),
    "rows of 32 numbers": (table(16, 33), None),
    "no window along axes of one number": (pool(1, [1, 1, 1, 1]), (1, 2, 1, 4)),
}


@pytest.mark.parametrize("said", MODELS)
def test_the_form_that_the_table_names_is_taken_and_leaves_no_doubt(said):
    model, shape = MODELS[said]
    rng = np.random.default_rng(0)
    row = {"i": rng.integers(0, 8, (1, 33))} if shape is None else {"x": rng.normal(size=shape).astype(np.float32)}
    found = foresee(model, [row], QNN, CONFIG)
    assert len(found.done) == 1 and said in found.done[0] and "simulator" in found.done[0]
    assert doubts(found.model, QNN) == () and doubts(model, QNN)
    (before,), (after,) = execution.run(model, [row]), execution.run(found.model, [row])
    np.testing.assert_allclose(after["y"], before["y"], atol=0.002)


def test_a_sound_model_stays_and_so_does_one_of_another_target():
    assert foresee(pool(2, [1, 1, 1, 1]), [], QNN, CONFIG) is None
    assert foresee(pool(1, [1, 1, 1, 1]), [], load_target("cpu"), CONFIG) is None


def test_every_remedy_of_a_table_is_one_that_there_is():
    rules = [rule for spec in QNN.ops.values() for rule in spec.right if "remedy" in rule]
    named = {name for rule in rules for name in remedies_of(rule)}
    assert named and named <= {remedy.__name__ for remedy in REMEDIES}
