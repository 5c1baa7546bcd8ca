"""Python in a process of its own, block after block: a vendor's library is loaded once in a process, and may end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

MARK = "answer: "


class Interpreter:
    """A child that runs blocks of Python in `folder`, which share their names."""

    def __init__(self, folder: Path) -> None:
        sources = os.pathsep.join(filter(os.path.isabs, sys.path))
        self.child = subprocess.Popen(
            [sys.executable, __file__],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": sources},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def run(self, code: str) -> None:
        """Run a block; what it raises, or the death of the child, fails the test."""
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps(code) + "\n")
        self.child.stdin.flush()
        answer = next((line for line in self.child.stdout if line.startswith(MARK)), None)
        assert answer is not None, f"the interpreter died of\n{code}"
        problem = json.loads(answer.removeprefix(MARK))
        assert problem == "", problem

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.kill()
        self.child.communicate()


def main() -> None:
    """Run the blocks that come in, one a line, and answer each with what it raised."""
    names: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        problem = ""
        try:
            exec(compile(json.loads(line), "<page>", "exec"), names)
        except Exception:
            problem = traceback.format_exc()
        sys.stdout.write(f"\n{MARK}{json.dumps(problem)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
