"""Rows of a compiled model: in blocks that a simulator is worth starting for, and that memory has room for."""

from __future__ import annotations

import numpy as np
import pytest

from intact.pipeline import execution


@pytest.mark.parametrize(
    ("bytes_each", "blocks"),
    [(4, [192, 58]), (1 << 20, [64, 64, 64, 58]), (128 << 10, [128, 122])],
    ids=["small rows", "large rows", "rows between"],
)
def test_small_rows_come_in_larger_blocks(monkeypatch, bytes_each, blocks):
    seen = []

    def run(path, rows, device):
        seen.append(len(rows))
        return rows

    monkeypatch.setattr(execution.compiling, "run", run)
    row = np.broadcast_to(np.float32(0), (bytes_each // 4,))
    rows = ({"x": row, "n": np.int8([n % 100])[:0]} for n in range(250))
    found = list(execution.stream_compiled("m", rows, None))
    assert seen == blocks and len(found) == 250


def test_rows_are_counted_by_whoever_is_ahead():
    told = []
    rows = execution.Furthest(lambda: told.append(1))
    device, comparison = rows.counter(), rows.counter()
    for step in (device, device, device, comparison, comparison):
        step()
    assert len(told) == 3, "what the device has told is not told again"
    comparison()
    comparison()
    assert len(told) == 4, "a device that tells nothing leaves it to the comparison"
