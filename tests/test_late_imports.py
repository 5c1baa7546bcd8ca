"""What takes long to load is loaded when it is used, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

FROM_HERE = "import sys; sys.path[:0] = {path!r}\n"


def said(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FROM_HERE.format(path=sys.path) + program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "package",
    [
        *("sympy.core", "joblib", "jinja2", "rich", "threadpoolctl", "intact.reports.manifest"),
        *("intact.pipeline.deployment", "intact.pipeline.verifying", "intact.rules.quantized.families"),
        *("intact.quantization.improve", "intact.quantization.float16", "intact.profiling.measure"),
    ],
)
def test_quantize_loads_without_what_it_does_not_use(package):
    assert said(f"import intact; intact.quantize; print({package!r} in sys.modules)") == "False"


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_loading_leaves_the_collector_as_it_was(before):
    program = f"import gc; gc.{before}(); import intact; intact.quantize; print(gc.isenabled())"
    assert said(program) == str(before == "enable")


def test_modules_are_kept_out_of_the_collector():
    counted = "print(gc.get_freeze_count() > 10 * len(gc.get_objects()) / 2)"
    assert said(f"import gc; import intact; intact.quantize; {counted}") == "True"


@pytest.mark.parametrize("when", ["before", "after"])
def test_objects_of_the_program_are_collected_as_ever(when):
    """Those that were there before modules were imported, too, and at the end of the program those that are left."""
    cycles = """
class Cycle:
    def __init__(self): self.me = self
    def __del__(self, say=os.write): say(1, b"gone ")
one, other = Cycle(), Cycle()
"""
    load = "import intact; intact.quantize\n"
    order = cycles + load if when == "before" else load + cycles
    ended = "del one; gc.collect(); os.write(1, b'collected ')"
    assert said(f"import gc, os\n{order}{ended}") == "gone collected gone"


def test_a_program_that_keeps_objects_out_of_the_collector_keeps_no_others_out():
    program = "import gc; gc.freeze(); kept = gc.get_freeze_count(); import intact; intact.quantize"
    assert said(f"{program}; print(gc.get_freeze_count() <= kept)") == "True"


def test_a_command_ends_without_a_look_for_cycles_in_all_that_it_imported():
    told = "atexit.register(lambda: print(gc.get_freeze_count() > 1000))"
    program = f"import atexit, gc; from intact.cli.main import main; {told}; sys.argv = ['intact', '--version']; main()"
    assert said(program).splitlines()[-1] == "True"


def test_formulas_of_dimensions_are_there_when_they_are_asked_for():
    program = "import intact; intact.load; import onnx_ir as ir; print((ir.SymbolicDim('N') + 2) * 3)"
    assert said(program) == said(program.replace("import intact; intact.load; ", "")) == "3*N + 6"


def test_programs_that_use_sympy_find_all_of_it():
    program = "import intact; intact.load; import sympy; from sympy.abc import x; print(sympy.expand((x + 1) ** 2))"
    assert said(program) == "x**2 + 2*x + 1"
