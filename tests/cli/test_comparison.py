"""What `perf` shows of measurements that no run here can order: the table's width may not hang on who was slower."""

import pytest

from intact.cli.comparison import show_performance
from intact.profiling.measure import Measurement, Performance
from intact.profiling.profile import Blame, OpTime
from intact.profiling.timing import Latency

BLOCK = ("QLinearConv", "QLinearGlobalAveragePool", "QLinearSigmoid", "QLinearMul", "DequantizeLinear", "Transpose")


def _model(low: float, high: float, *blame: Blame, seconds: float = 0.01) -> Performance:
    latency = Latency(seconds, 1.1 * seconds, 1.2 * seconds, (low + high) / 2, low, high)
    ops = (OpTime("QLinearConv", 12, seconds, 1.0),)
    return Performance("model.onnx", "onnxruntime", 123_456, latency, 10**9, 10**8, ops, (), blame)


def _shown(capsys: pytest.CaptureFixture[str], second: Performance) -> str:
    show_performance(Measurement("onnxruntime 1.31.1 on cpu", 0, 1, 3, (_model(1, 1), second)))
    return capsys.readouterr().out


SECONDS = {
    "faster": _model(0.4, 0.5),
    "as fast": _model(0.9, 1.1),
    "slower": _model(2, 3),
    "slower by long blocks": _model(2, 3, *[Blame(BLOCK, BLOCK[::-1], 12.3, 4.5)] * 2, Blame(("Where",), (), 0.1, 0)),
    "slow": _model(1000, 4000, seconds=500),
}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("second", SECONDS)
def test_every_line_fits_into_the_terminal_and_no_figure_is_cut(second, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = _shown(capsys, SECONDS[second])
    assert max(map(len, shown.splitlines())) <= width and "…" not in shown


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("faster", "B is 2.22 times as fast as A."),
        ("as fast", "B and A are as fast as each other"),
        ("slower", "B is SLOWER than A: it takes 2.50 times as long; no operator alone is to blame"),
        ("slower by long blocks", "B is SLOWER than A: it takes 2.50 times as long."),
    ],
)
def test_the_verdict_follows_the_interval(second, said, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    assert said in _shown(capsys, SECONDS[second])


def test_who_is_to_blame_stands_beside_what_it_was(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    blame = (Blame(("Conv", "Relu"), ("QLinearConv",), 0.02, 0.005), Blame(("Where",), (), 0.0015, 0))
    lines = [" ".join(line.split()) for line in _shown(capsys, _model(2, 3, *blame)).splitlines()]
    assert "Conv, Relu 20.000 5.000 QLinearConv" in lines
    assert any(line.startswith("Where 1.500") and line.endswith("nothing like it") for line in lines)
