"""The price of being right is measured against a table that is the same but for where the device is wrong."""

from __future__ import annotations

from bench import price_on_device
from intact.targets.registry import load_target


def test_the_other_table_takes_the_same_and_knows_of_nothing_wrong(tmp_path):
    known = load_target("qnn", arch=73)
    bare = load_target(str(price_on_device.write_unknowing("qnn", tmp_path)), arch=73)
    assert bare.backend == known.backend and bare.costs is not None and known.costs is not None
    assert bare.costs.levels == known.costs.levels and bare.rewrite.form == known.rewrite.form
    assert {key: [str(row) for row in spec.signatures] for key, spec in bare.ops.items()} == {
        key: [str(row) for row in spec.signatures] for key, spec in known.ops.items()
    }
    assert any(spec.right for spec in known.ops.values()) and known.rewrite.requantizes_wrongly
    assert not any(spec.right for spec in bare.ops.values()) and not bare.rewrite.requantizes_wrongly
    softmax = ("", "Softmax")
    assert known.ops[softmax].least_scale(0, "uint16") > 0 == bare.ops[softmax].least_scale(0, "uint16")


def row(cost: float, time: float, *, wrong: bool) -> dict[str, object]:
    built = {"cpu_seconds": 1.0, "db": 40.0}
    return {"model": "m", "cost": cost, "time": time, "wrong": wrong, "usual": built, "bare": built}


def test_a_model_beyond_a_bar_is_counted_and_time_only_where_nothing_was_wrong(capsys):
    rows = [
        row(1.05, 1.3, wrong=False),
        row(1.06, 1.0, wrong=True),
        row(1.0, 1.31, wrong=False),
        row(1.0, 9, wrong=True),
    ]
    assert price_on_device.show(rows) == 2
    assert "4 models: cost at most 1.060; of 2 with nothing wrong" in capsys.readouterr().out
