"""sympy, which onnx-ir imports always, is run when it is used, and not before."""

from __future__ import annotations

import subprocess
import sys

FROM_HERE = "import sys; sys.path[:0] = {path!r}\n"


def said(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FROM_HERE.format(path=sys.path) + program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_command_loads_without_sympy():
    assert said("import intact; intact.quantize; print('sympy.core' in sys.modules)") == "False"


def test_formulas_of_dimensions_are_there_when_they_are_asked_for():
    program = "import intact; intact.load; import onnx_ir as ir; print((ir.SymbolicDim('N') + 2) * 3)"
    assert said(program) == said(program.replace("import intact; intact.load; ", "")) == "3*N + 6"


def test_programs_that_use_sympy_find_all_of_it():
    program = "import intact; intact.load; import sympy; from sympy.abc import x; print(sympy.expand((x + 1) ** 2))"
    assert said(program) == "x**2 + 2*x + 1"
