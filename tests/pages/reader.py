"""A reader who does what a page says, in a folder of their own, and sees whether it is so."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intact.cli import main
from tests.pages.blocks import ROOT, Block, Command, agrees, blocks, commands
from tests.pages.interpreter import Interpreter

# What only a shell does; all else runs in this process, for to start another takes longer than most commands do.
SHELL = ("|", ">", "&&", ";", "$(")
# The command of these sources, wherever it is installed from.
INTACT = f"intact() {{ {shlex.quote(sys.executable)} -c 'from intact.cli.main import main; main()' \"$@\"; }}; "
IMAGES = 32


@dataclass(frozen=True, slots=True)
class Reader:
    """Someone with a trained model, inputs and labels for it, in `folder`, and the examples beside them."""

    folder: Path
    exceptions: frozenset[str]

    def equip(self) -> None:
        """Give the reader the files that pages take for granted."""
        example = ROOT / "examples/digits_cnn"
        (self.folder / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
        for source, name in (("model.onnx", "model.onnx"), ("calibration.npz", "inputs.npz")):
            shutil.copyfile(example / source, self.folder / name)
        for name in ("test.npz", "labels.npy"):
            shutil.copyfile(example / name, self.folder / name)
        (self.folder / "images").mkdir()
        for number, digit in enumerate(np.load(example / "test.npz")["image"][:IMAGES, 0]):
            Image.fromarray((digit * 255).astype(np.uint8)).save(self.folder / f"images/{number}.png")

    def follow(self, page: str) -> int:
        """Do everything that a page says; return the number of commands that ran."""
        found = list(blocks(page))
        if not any(block.language == "python" and not block.title for block in found):
            return sum(self._do(block, None) for block in found)
        with Interpreter(self.folder) as python:
            return sum(self._do(block, python) for block in found)

    def _do(self, block: Block, python: Interpreter | None) -> int:
        if block.title:
            (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and python is not None and block.lines[0] not in self.exceptions:
            python.run(block.text)
        elif block.language in ("sh", "console"):
            asked = [command for command in commands(block) if command.text not in self.exceptions]
            for command in asked:
                self._try(command)
            return len(asked)
        return 0

    def _try(self, command: Command) -> None:
        by_shell = not command.text.startswith("intact ") or any(
            sign in command.text.partition(" #")[0] for sign in SHELL
        )
        status, printed = self._in_shell(command.text) if by_shell else _here(command.text)
        assert status == command.status, f"line {command.line}: {command.text}\n{printed}"
        assert "command not found" not in printed and "Traceback" not in printed, printed
        lines = [line for line in printed.splitlines() if line.strip()]
        if command.shown is not None:
            assert agrees(command.shown, lines), f"line {command.line}: {command.text}\nprints\n{printed}"

    def _in_shell(self, text: str) -> tuple[int, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        sources = os.pathsep.join(filter(os.path.isabs, sys.path))
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", INTACT + text],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "PYTHONPATH": sources},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout


def _here(text: str) -> tuple[int, str]:
    """The status of a command and all that it writes, in the order that a terminal shows it."""
    both = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        patch.setattr("sys.argv", shlex.split(text, comments=True))
        with pytest.raises(SystemExit) as end:
            main.main()
    return int(end.value.code or 0), both.getvalue()
