"""A table is refused for what it should not hold, with the line and the nearest right word."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from intact.cli import main
from intact.errors import SettingsError
from intact.settings import devices
from intact.targets.registry import load_target
from intact.targets.table import MOST_TOLD, parse
from tests.targets.test_registry import TABLE

HEAD = '[target]\nname = "mine"\nnpu = true\n'


def shipped(name):
    return (resources.files("intact") / "backends" / name / "table.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"{HEAD}npuu = 3", 4, r"\[target\] unknown key npuu; did you mean npu\?"),
        ('[target]\nname = "mine"', 1, r"\[target\] the key npu is missing"),
        (f"# first\n\n{HEAD.replace('npu = true', 'npu = 1')}", 5, "npu = 1: input should be a valid boolean"),
        ('[targt]\nname = "mine"', 1, r"unknown key targt; did you mean target\?"),
        (f"{HEAD}[op.Add]\ntakes = []", 5, r"\[op.Add\] unknown key takes; did you mean take\?"),
        (f'{HEAD}[op.Add]\n\ngrid = "onw"', 6, "grid = 'onw': input should be 'own', 'input' or 'common'"),
        (f'{HEAD}[group.all]\ngrid = "own"\n[op]\nAdd = {{ like = "al" }}', 7, "unknown group al; did you mean all"),
        (f'{HEAD}[op]\nAdd = {{}}\nMul = {{ gird = "own" }}', 6, r"\[op\] unknown key gird; did you mean grid"),
        (f'{HEAD}[precisions]\nuint8 = "seen"\nuint9 = "seen"', 6, "unknown precision uint9; did you mean uint8"),
        (f'{HEAD}[rewrite]\nmoves = {{ Pad = "uint8|uint9" }}', 5, "unknown type uint9; did you mean uint8"),
        (f"{HEAD}[weight_only]\nblocks = [16]", 4, r"\[weight_only\] the key (types|source) is missing"),
    ],
)
def test_a_wrong_or_missing_key_is_named_with_its_line(text, line, said):
    with pytest.raises(SettingsError, match=said) as caught:
        parse(text, "mine.toml")
    assert caught.value.status == 2 and f"mine.toml:{line}: " in str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{ in = ["uint8"], ot = ["uint8"] }', "unknown key ot; did you mean out"),
        ('{ in = ["uint8"] }', "the key out is missing"),
        ('{ in = [], out = ["uint8"] }', "in = \\[\\]"),
        ('{ in = ["uint8", "uint9"], out = ["uint8"] }', "unknown word 'uint9'"),
        ('{ in = ["uint8"], out = ["uint8"], runs = "integers" }', "runs = 'integers'"),
        ('{ in = ["uint8"], out = ["uint8"], require = [{ check = "rank_at_mst" }] }', "did you mean rank_at_most"),
        (
            '{ in = ["uint8"], out = ["uint8"], require = [{ check = "rank_at_most", indx = 1, rank = 4 }] }',
            "unknown key indx; did you mean index",
        ),
        (
            '{ in = ["uint8"], out = ["uint8"], require = [{ check = "rank_at_most", index = 1 }] }',
            "needs the key rank",
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_line(row, said):
    """The rows before and behind it are right, and another operator has as many."""
    right = '{ in = ["uint8"], out = ["uint8"] }'
    rows = f"take = [\n  {right},\n  {right},\n"
    text = f"{HEAD}[op.Mul]\n{rows}]\n\n[op.Add]\n{rows}  {row},\n  {right},\n]\n"
    with pytest.raises(SettingsError, match=said) as caught:
        parse(text, "mine.toml")
    assert f"mine.toml:{1 + text.splitlines().index(f'  {row},')}: [op.Add] " in str(caught.value)


def test_the_second_of_two_sections_of_one_name_is_told_apart():
    row = '[[disagreement]]\nwhat = "a"\ndocumented = "b"\nprobed = "c"\ncase = "d"\narch = 0\nverdict = "float"\n'
    with pytest.raises(SettingsError, match=r"mine.toml:17: .*unknown key verdikt; did you mean verdict"):
        parse(HEAD + row + row.replace("verdict", "verdikt"), "mine.toml")


def test_many_errors_are_told_and_the_rest_counted():
    wrong = "".join(f'[op.A{number}]\ngrid = "onw"\n' for number in range(MOST_TOLD + 2))
    with pytest.raises(SettingsError) as caught:
        parse(HEAD + wrong, "mine.toml")
    assert len(re.findall(r"mine.toml:\d+", str(caught.value))) == MOST_TOLD and "and 2 more" in str(caught.value)


def test_the_command_ends_with_status_2_and_names_the_key(tmp_path, monkeypatch, capsys):
    (tmp_path / "t.toml").write_text('[target]\nname = "mine"\nnpu = true\nnpuu = 3')
    monkeypatch.setattr("sys.argv", ["intact", "analyze", "model.onnx", "--device", str(tmp_path / "t.toml")])
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main.main()
    said = capsys.readouterr().err
    assert caught.value.code == 2 and "npuu" in said and "t.toml:4" in said


@pytest.mark.parametrize("name", devices.shipped())
def test_a_group_gives_what_an_operator_does_not_say(name):
    table = parse(shipped(name), name)
    grouped = [op for op, entry in table.op.items() if entry.like is not None]
    assert grouped
    for op in grouped:
        own, group, both = table.op[op], table.group[table.op[op].like], table.entry(op)
        for key in type(both).model_fields:
            assert getattr(both, key) == getattr(own if key in own.model_fields_set else group, key), (op, key)


@pytest.mark.parametrize("name", devices.shipped())
def test_a_misspelt_key_of_a_table_that_ships_is_found_wherever_it_stands(name):
    """Every key of every section, misspelt, is an error that names its own line."""
    text = shipped(name)
    lines = text.splitlines()
    keys = [(n, m[1]) for n, line in enumerate(lines) if (m := re.match(r"([a-z_]+) = ", line))]
    for number, key in keys[:: max(1, len(keys) // 12)]:
        changed = [*lines[:number], f"x{lines[number]}", *lines[number + 1 :]]
        section = next(line for line in reversed(lines[:number]) if line.startswith("["))
        with pytest.raises(SettingsError) as caught:
            parse("\n".join(changed), "t")
        assert f"x{key}" in str(caught.value) and f"t:{number + 1}: {section}" in str(caught.value), (section, key)


def test_an_entry_point_goes_by_the_name_of_its_table(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(TABLE)
    (tmp_path / "other_target.py").write_text(
        "from pathlib import Path\nTABLE = Path(__file__).with_name('mine.toml')\n"
    )
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (tmp_path / "other-1.dist-info" / "entry_points.txt").write_text("[intact.targets]\nother = other_target:TABLE\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"its name is 'mine', and its entry point's is 'other'"):
        load_target("other")
