"""SpaceToDepth and DepthToSpace, recognised by their shapes."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import space
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(space)

CASES = {
    "SpaceToDepth": ((1, 3, 4, 6), (1, 3, 2, 2, 3, 2), (0, 3, 5, 1, 2, 4), (1, 12, 2, 3)),
    "DepthToSpace": ((1, 12, 2, 3), (1, 2, 2, 3, 2, 3), (0, 3, 4, 1, 5, 2), (1, 3, 4, 6)),
    "DepthToSpace of PixelShuffle": ((1, 12, 2, 3), (1, 3, 2, 2, 2, 3), (0, 1, 4, 2, 5, 3), (1, 3, 4, 6)),
}


def parts(before, inside, perm, after):
    body = f"a = Reshape(x, p)\n t = Transpose <perm = {list(perm)}> (a)\n y = Reshape(t, q)"
    signature = f"(float{list(before)} x) => (float{list(after)} y)"
    return body, signature, {"p": np.array(inside), "q": np.array(after)}


@pytest.mark.parametrize("case", CASES)
def test_it_fires_and_keeps_the_numbers(case):
    body, signature, arrays = parts(*CASES[case])
    result = rewritten(RULES, body, signature, **arrays)
    assert ops(result.model) == [case.split()[0]]
    assert difference(given(body, signature, **arrays), result.model) == 0


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            ((1, 3, 4, 6), (1, 3, 2, 2, 2, 3), (0, 3, 5, 1, 2, 4), (1, 18, 2, 2)),
            "[1, 3, 2, 2, 2, 3] does not cut [1, 3, 4, 6] into blocks",
        ),
        (
            ((1, 12, 2, 3), (1, 4, 1, 3, 2, 3), (0, 3, 4, 1, 5, 2), (1, 3, 8, 3)),
            "[1, 4, 1, 3, 2, 3] does not spread [1, 12, 2, 3] into blocks",
        ),
        (
            ((1, 3, 4, 6), (1, 3, 2, 2, 3, 2), (0, 3, 5, 1, 2, 4), (12, 2, 3)),
            "a shape is unknown, or not of rank 4, 6 and 4",
        ),
    ],
)
def test_it_refuses_with_a_reason(case, reason):
    body, signature, arrays = parts(*case)
    result = rewritten(RULES, body, signature, **arrays)
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()
