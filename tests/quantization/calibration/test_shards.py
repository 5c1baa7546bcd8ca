"""Rows are summed up in shards of 16, joined in their order: the same bits here and on workers, with any threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

from intact.quantization.calibration import shards
from intact.quantization.calibration.observe import watch
from intact.quantization.improve.channel_ranges import Channels
from intact.quantization.improve.linear_layers import MatrixProduct, Moments
from intact.runtime import cluster
from tests.builder import from_text

ROWS, COLUMNS, WIDTH = 2 * shards.ROWS + 5, 40, 160
MODEL = from_text(f"(float[{COLUMNS}, {WIDTH}] x) => (float[{COLUMNS}, {WIDTH}] y)", "y = Relu(x)")


def rows() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(COLUMNS, WIDTH)).astype(np.float32)} for _ in range(ROWS)]


class Kept:
    """A watcher that takes its time and keeps what it has seen then."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        time.sleep(0.002)
        self.rows.append(values.copy())


def moments() -> Moments:
    return Moments.empty(MatrixProduct(False, False), np.zeros((1, 8, WIDTH)), most=COLUMNS, block=WIDTH)


def watched(given: list[dict[str, np.ndarray]]) -> tuple[Moments, Channels]:
    seen = moments(), Channels((-1,), "uint8")
    watch(MODEL, {"y": seen}, given)
    return seen


def by_hand(given: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Second moments with nothing but numpy, in the order that is promised."""
    total = np.zeros((1, WIDTH, WIDTH), np.float32)
    for start in range(0, ROWS, shards.ROWS):
        shard = np.zeros_like(total)
        for row in given[start : start + shards.ROWS]:
            part = np.maximum(row["x"], 0)[None]
            # Of an array and itself numpy computes half of the product: in another order, so with other last bits.
            shard += np.matmul(part.transpose(0, 2, 1).copy(), part)
        total += shard
    return total


def test_sums_of_shards_are_joined_in_their_order() -> None:
    given = rows()
    seen, channels = watched(given)
    assert np.array_equal(seen.products[0], by_hand(given)) and seen.rows == ROWS * COLUMNS
    values = np.maximum(np.stack([row["x"] for row in given]), 0)
    assert np.array_equal(channels.reach(), np.maximum(values.max(axis=(0, 1)), 1e-5)) and channels.samples == ROWS


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_row_that_runs_ahead_is_not_written_over_the_one_that_is_looked_at(threads: int) -> None:
    given, place, seen = rows(), np.empty((COLUMNS, WIDTH), np.float32), {"x": Kept(), "y": Kept()}

    def into_one_place() -> Iterator[dict[str, np.ndarray]]:
        for row in given:
            place[:] = row["x"]
            yield {"x": place}

    session = shards.watched_session(MODEL, seen, threads)
    shards.watch_rows(session, {name: [one] for name, one in seen.items()}, into_one_place(), threads, lambda: None)
    assert np.array_equal(seen["x"].rows, [row["x"] for row in given])
    assert np.array_equal(seen["y"].rows, [np.maximum(row["x"], 0) for row in given])


@pytest.mark.parametrize("where", ["threading", pytest.param("local:2", marks=pytest.mark.slow)])
def test_workers_give_the_same_bits(where: str, tmp_path: Path) -> None:
    given = rows()
    # Processes of joblib have one thread each on two cores; sums of two threads are others.
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        here = watched(given)
        with cluster.used(where, tmp_path):
            there = watched(given)
    assert np.array_equal(here[0].products[0], there[0].products[0])
    assert np.array_equal(here[0].total, there[0].total) and np.array_equal(here[1].squares, there[1].squares)
    assert all(np.array_equal(a, b) for a, b in zip(here[1].lows, there[1].lows, strict=True))


def test_the_split_depends_on_the_rows_alone() -> None:
    assert [len(list(shard)) for shard in shards.of_rows(rows())] == [16, 16, 5]
    assert [len(list(shard)) for shard in shards.of_rows(rows()[:16])] == [16]
    assert list(shards.of_rows([])) == []
