"""Rules are found where they are written, and stand in a defined order."""

from __future__ import annotations

import importlib
import sys

import pytest

from intact.matching.rewriter import Rule
from intact.rules import discovery, quantized
from intact.rules import float as float_rules
from intact.rules.float import optimization
from intact.rules.quantized import families

RULE = """
from intact.matching.rewriter import EXACT, Rule

class _Shared(Rule):
    exactness = EXACT
    def pattern(self, op, x):
        return op.Neg(op.Neg(x))
    def rewrite(self, op, x):
        return x

class Unclaimed(Rule):
    def pattern(self, op, x):
        return op.Neg(x)
    def rewrite(self, op, x):
        return x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package with rules in three files, one of which belongs to the family of another."""
    package = tmp_path / "folder_of_rules"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "alpha.py").write_text(f"{RULE}\nclass DropB(_Shared): pass\nclass DropA(_Shared): pass\n")
    (package / "beta.py").write_text(f"FAMILY = 'alpha'\n{RULE}\nclass DropC(_Shared): pass\n")
    (package / "gamma.py").write_text(f"from folder_of_rules.alpha import DropA\n{RULE}\nclass DropD(DropA): pass\n")
    (package / "no_rules.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("folder_of_rules")
    for name in [name for name in sys.modules if name.startswith("folder_of_rules")]:
        del sys.modules[name]


def names(found):
    return {family: [rule.name for rule in rules] for family, rules in found.items()}


def test_a_class_in_a_file_is_a_rule_and_those_of_a_file_stand_as_they_are_written(folder):
    assert names(discovery.families_of(folder)) == {"alpha": ["drop_b", "drop_a", "drop_c"], "gamma": ["drop_d"]}


def test_files_that_are_named_come_first_in_that_order(folder):
    found = discovery.families_of(folder, ("gamma", "beta"))
    assert names(found) == {"gamma": ["drop_d"], "alpha": ["drop_c", "drop_b", "drop_a"]}


def test_an_order_of_files_that_are_not_there_is_a_mistake(folder):
    with pytest.raises(AssertionError, match="folder_of_rules has no delta"):
        discovery.families_of(folder, ("delta",))


def every_rule(package):
    """Every rule class of a folder that has a claim, a pattern and a rewrite, whatever its place."""
    modules = {module.__name__ for module in discovery.files_of(package)}
    waiting, found = [Rule], set()
    while waiting:
        kinds = waiting.pop().__subclasses__()
        waiting += kinds
        found.update(kind for kind in kinds if kind.__module__ in modules and discovery.is_complete(kind))
    return found


def test_no_rule_is_forgotten_and_no_name_is_used_twice():
    quantized_rules, of_floats = families.RULES, (*optimization.RULES, *optimization.RARE)
    assert {type(rule) for rule in quantized_rules} == every_rule(quantized)
    assert {type(rule) for rule in of_floats} == every_rule(float_rules)
    for rules in (quantized_rules, of_floats):
        assert len({rule.name for rule in rules}) == len(rules) > 20


def test_every_rule_has_an_equation_of_its_own():
    said = [rule.__doc__ for rule in families.RULES]
    assert all(said) and len(set(said)) == len(said)


def test_a_rule_that_spares_a_node_says_why_and_leaves_the_rule_itself_as_it_was():
    rule = families.RULES[0]
    sparing = rule.sparing({"one": "because"}).sparing({"two": "so"})
    assert sparing.spared == {"one": "because", "two": "so"} and not rule.spared
    assert (sparing.name, sparing.exactness, type(sparing)) == (rule.name, rule.exactness, type(rule))
