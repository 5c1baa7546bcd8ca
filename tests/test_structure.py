"""Promises about the whole: quick help, no special names, stable codes, no torch."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import intact
from intact.cli import main
from intact.targets import registry
from tests.zoo import ZOO

ROOT = Path(intact.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
COMMANDS = typer.main.get_command(main.app).commands


def child(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_help_loads_nothing_heavy():
    code = """
import sys
sys.argv = ["intact", "--help"]
from intact.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = {"numpy", "onnx", "onnx_ir", "onnxruntime", "pydantic", "jinja2", "joblib", "torch"} & set(sys.modules)
print("loaded:", sorted(heavy))
"""
    assert child(code).endswith("loaded: []\n")


def test_the_package_and_its_pipeline_need_no_torch_and_no_vendor_library():
    vendors = "{'torch', 'onnxruntime_qnn', 'openvino'}"
    code = f"import sys, intact, intact.pipeline.stages; print(sorted({vendors} & set(sys.modules)))"
    assert child(code) == "[]\n"


@pytest.mark.parametrize("name", registry.known_backends())
def test_one_target_does_not_load_another(name):
    """A target is its table: of all tables only its own is opened, and no toolchain is loaded."""
    code = f"""
import json, pathlib, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import intact
intact.load_target({name!r})
root = pathlib.Path(intact.__file__).parent
tables = sorted({{str(pathlib.Path(path).relative_to(root)) for path in opened if path.endswith(".toml")}})
print(json.dumps([tables, sorted({{"onnxruntime_qnn", "openvino"}} & set(sys.modules))]))
"""
    (table,), toolchains = json.loads(child(code))
    assert name in table and toolchains == []


def test_importing_the_package_is_free():
    assert child("import sys, intact; print('numpy' in sys.modules, 'onnx' in sys.modules)") == "False False\n"


def test_every_public_name_is_there_and_no_other():
    assert all(hasattr(intact, name) for name in intact.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'banana'"):
        intact.banana  # noqa: B018


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_flag_has_help(name):
    found = COMMANDS[name]
    assert found.help and found.help[0].isupper()
    assert [p.name for p in found.params if not getattr(p, "help", None)] == []


@pytest.mark.parametrize("name", [n for n in COMMANDS if "model" in [p.name for p in COMMANDS[n].params]])
def test_the_model_is_the_first_argument_and_onnx_says_the_same(name):
    params = COMMANDS[name].params
    assert params[0].name == "model" and "--onnx" in [flag for p in params for flag in p.opts]


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of the syntax of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def strings(path: Path) -> list[str]:
    """The constants of a file, without its docstrings."""
    documented = [n for n in nodes(path) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docs = {id(n.body[0].value) for n in documented if n.body and isinstance(n.body[0], ast.Expr)}
    constants = [n for n in nodes(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [n.value for n in constants if id(n) not in docs]


ARCHITECTURES = r"resnet|mobilenet|efficientnet|bert|\bvit\b|whisper|yolo|ultraface|digits|squeezenet|swin|clip_vision"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_model_or_layer_name_is_special(path):
    special = re.compile("|".join([ARCHITECTURES, *ZOO]), re.IGNORECASE)
    assert [text for text in strings(path) if special.search(text)] == []


# Names of architectures and of the layers that exporters write, which no comment needs, either.
NAMES = (
    r"(?i:resnet|mobilenet|efficientnet|\bbert\b|distilbert|roberta|\bvit\b|whisper|yolo|ultraface|squeezenet|swin\b)"
    r"|encoder\.layer|/conv\d*/|\blayers?\.\d|\bfc\d\b|\b[qkv]_proj\b|lm_head|patch_embed|backbone"
)
TEXTS = sorted(path for kind in ("py", "toml", "j2") for path in ROOT.rglob(f"*.{kind}"))


def named(text):
    """The lines that name an architecture, or a layer as exporters write it."""
    return [line for line in text.splitlines() if re.search(NAMES, line)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_model_or_layer_name_is_written_anywhere(path):
    assert named(path.read_text(encoding="utf-8")) == []


def test_names_are_looked_for_in_code_tables_and_templates():
    assert {path.suffix for path in TEXTS} == {".py", ".toml", ".j2"}
    assert set(FILES) < set(TEXTS)


@pytest.mark.parametrize(
    "text", ["# of a ResNet-50", 'if "encoder.layer" in name:', "fc1 = 3", "name == '/conv1/Conv'"]
)
def test_a_name_would_be_found(text):
    assert named(f"x = 1\n{text}\n") == [text]


def test_a_code_means_one_thing():
    """A code is used by one part of the program only, and its letter is that of its kind."""
    users: dict[str, set[str]] = {}
    for path in FILES:
        part = path.relative_to(ROOT).parts[0]
        for text in strings(path):
            if re.fullmatch(r"[MSTEDOG]\d{3}", text):
                users.setdefault(text, set()).add(part)
    assert {code: parts for code, parts in users.items() if len(parts) > 1} == {}
    assert len(users) > 50


def test_library_code_never_prints():
    """But for jobs of a child process: what they print is read by the process that started them."""
    printing = []
    for path in FILES:
        calls = [n for n in nodes(path) if isinstance(n, ast.Call)]
        names = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
        if "print" in names and path.relative_to(ROOT).parts[0] != "cli" and path.parts[-2:] != ("qnn", "ask.py"):
            printing.append(path.name)
    assert printing == []


def test_no_file_is_named_after_nothing():
    assert not {"utils.py", "helpers.py", "common.py", "misc.py", "manager.py"} & {path.name for path in FILES}


# A docstring says what a thing does or is; an operator called Where is one.
ASKING = re.compile(r"(what|whether|where|how|why|when|if|in how)\b(?!\()", re.IGNORECASE)


def said(path: Path) -> list[str]:
    """The texts that stand by themselves in a file: docstrings, those of attributes included."""
    alone = [n.value for n in nodes(path) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return [constant.value for constant in alone if isinstance(constant.value, str)]


def test_docstrings_are_imperatives_or_nouns():
    assert sum(len(said(path)) for path in FILES) > 3000
    assert [text for path in FILES for text in said(path) if ASKING.match(text)] == []


@pytest.mark.parametrize(
    ("text", "asks"), [("Whether it fits.", True), ("Where(m, x, y) = x.", False), ("Howl at it.", False)]
)
def test_a_docstring_that_asks_is_known(text, asks):
    assert bool(ASKING.match(text)) == asks


MOST_PARAMETERS = 6
# Operators that functions mirror, and a command whose parameters are its flags.
MIRRORS = {"numbers/integer.py", "cli/encodings.py"}


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of a function's parameters, without the object or class that it belongs to."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_no_function_has_many_parameters():
    """But for the API, whose calls are typed by the settings, and patterns of rules, which name what they match."""
    many = []
    for path in FILES:
        where = path.relative_to(ROOT)
        for function in (n for n in nodes(path) if isinstance(n, ast.FunctionDef)):
            if len(parameters(function)) > MOST_PARAMETERS and function.name != "pattern":
                many.append((where.as_posix(), function.name))
    assert {"numbers/integer.py", "api/build.py"} <= {where for where, _ in many}, "those that may have many are seen"
    assert [one for one in many if one[0] not in MIRRORS and not one[0].startswith("api/")] == []


# A third of what there was before results had types of their own.
MOST_ANY, MOST_MAPPINGS_TO_ANY = 239, 93


def test_few_values_are_of_any_type():
    every = [node for path in FILES for node in nodes(path)]
    untyped = [node for node in every if isinstance(node, ast.Name) and node.id == "Any"]
    pairs = [node.slice for node in every if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)]
    mappings = [pair for pair in pairs if [ast.unparse(one) for one in pair.elts] == ["str", "Any"]]
    assert 0 < len(untyped) <= MOST_ANY and 0 < len(mappings) <= MOST_MAPPINGS_TO_ANY
