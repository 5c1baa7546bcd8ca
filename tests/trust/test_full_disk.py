"""A full disk is an error of the user's place, not of ours, and leaves neither halves of files nor empty ones."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import intact
from intact.cli import main
from tests.conftest import SavedZoo

COMMANDS = {
    "plan": "plan {model} -o {out}/plan.toml",
    "encodings": "encodings export {quantized} -o {out}/encodings.json",
    "matrix": "matrix {model} --devices cpu --precisions fp32 --workers 1 -o {out}",
    "build": "build {model} --device cpu --precision fp32 -o {out}/build",
}


@pytest.fixture(scope="module")
def quantized(zoo: SavedZoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "q.onnx"
    intact.quantize(zoo.model("residual_cnn"), precision="uint8", effort="fast", output=path)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_told_and_leaves_nothing(
    command: str,
    quantized: Path,
    zoo: SavedZoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    plain = Path.write_text

    def write(path: Path, *text: str, **how: str) -> int:
        if not path.is_relative_to(out):
            return plain(path, *text, **how)
        path.touch()  # as the system does, before the first byte has no room
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", write)
    words = COMMANDS[command].format(model=zoo.model("residual_cnn"), quantized=quantized, out=out).split()
    monkeypatch.setattr("sys.argv", ["intact", *words])
    with pytest.raises(SystemExit) as end:
        main.main()
    told = capsys.readouterr().err
    assert end.value.code == 2 and "error[O130]" in told and "No space left" in told, told
    assert [path for path in out.rglob("*") if path.is_file() and not path.stat().st_size] == []
    assert command == "matrix" or list(out.iterdir()) == []
