"""The choice between mixes and precisions throughout, on curves made up so that the cheapest answer is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest

from intact.search.mixed.hunt import MOST_BUILDS, MOST_TRIES, Hunt, Trial
from intact.search.mixed.ladder import Assignment

GOAL = 35.0


def point(number: int, cost: float, db: float, precision: str | None = None) -> Assignment:
    return Assignment((number,), cost, 10 ** (-db / 10), precision)


# A curve from 20 to 58 dB, at costs of 1.0 to 1.95.
CURVE = [point(number, 1.0 + number / 20, 20.0 + 2 * number) for number in range(20)]
UNIFORM = [
    point(100, 1.0, 20.0, "uint8"),
    point(100, 1.0, 20.0, "int8"),
    point(101, 1.7, 50.0, "w8a16"),
    point(102, 2.6, 55.0, "int16"),
    point(103, 2.6, 60.0, "fp16"),
]


@dataclass
class Made:
    """A workshop in which everything is known: decibels on the CPU, what compiling takes, true costs and sizes."""

    cpu: dict[Assignment, float] = field(default_factory=dict)
    loss: dict[Assignment, float] = field(default_factory=dict)
    usual_loss: float = 0.0
    costs: dict[Assignment, float] = field(default_factory=dict)
    sizes: dict[Assignment, int] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    goal: float = GOAL
    attempts: list[Assignment] = field(default_factory=list)
    compiles: list[Assignment] = field(default_factory=list)

    def attempt(self, chosen):
        self.attempts.append(chosen)
        return None if chosen.precision in self.refused else self._trial(chosen, 0.0)

    def build(self, chosen):
        self.compiles.append(chosen)
        return self._trial(chosen, self.loss.get(chosen, self.usual_loss))

    def below(self, start, allowed):
        return start

    def _trial(self, chosen, loss):
        db = self.cpu.get(chosen, chosen.predicted_db) - loss
        cost, size = self.costs.get(chosen, chosen.cost), self.sizes.get(chosen, 1000)
        return Trial(db + loss, db >= self.goal, self.goal - db, cost, {"x": 1}, size, db)

    def meets(self, chosen):
        """Whether an assignment meets the goal as built."""
        return self.cpu.get(chosen, chosen.predicted_db) - self.loss.get(chosen, self.usual_loss) >= self.goal

    def cost(self, chosen):
        return self.costs.get(chosen, chosen.cost)


def hunt(made, front=CURVE, uniform=UNIFORM):
    found = Hunt(front, uniform, made, made.goal)
    return found.find()


def named(assignment):
    return assignment.precision


def test_a_mix_that_costs_less_than_every_precision_throughout_is_taken():
    made = Made()
    found = hunt(made)
    assert named(found) is None and found.predicted_db >= GOAL and found.cost < 1.7 and made.compiles == [found]
    cheaper = [p for p in CURVE if p.cost < found.cost]
    assert all(p.predicted_db < GOAL for p in cheaper)


def test_a_precision_throughout_is_taken_where_the_mixes_that_meet_the_goal_cost_more():
    # The curve promises too much: as measured, only mixes dearer than w8a16 do.
    made = Made(cpu={p: p.predicted_db - 20 for p in CURVE})
    assert named(hunt(made)) == "w8a16" and [named(a) for a in made.compiles] == ["w8a16"]


def test_mixes_that_lose_in_the_compiler_end_at_the_precision_throughout_below_the_next_mix():
    made = Made(loss=dict.fromkeys(CURVE, 18.0))
    found = hunt(made)
    assert named(found) == "w8a16" and max(made.cost(a) for a in made.compiles) == 1.7


def test_a_precision_throughout_that_is_cheapest_of_all_is_built_at_once():
    made = Made(goal=15.0)
    assert named(hunt(made)) == "uint8"
    assert [named(a) for a in made.attempts] == ["uint8"] and len(made.compiles) == 1


def test_precisions_throughout_that_cost_more_than_one_that_meets_the_goal_are_not_tried():
    made = Made()
    hunt(made)
    assert [named(a) for a in made.attempts if a.precision] == ["uint8", "int8", "w8a16"]


def test_the_cost_that_counts_is_that_of_the_model_as_written():
    # Rescue made uint8 dearer than w8a16 is.
    made = Made(cpu={UNIFORM[0]: 40.0}, costs={UNIFORM[0]: 1.8})
    assert named(hunt(made, front=[point(0, 3.0, 60.0)])) == "w8a16"
    # And a mix that was to cost less turned out to cost more.
    made = Made(costs={p: p.cost + 1.0 for p in CURVE})
    assert named(hunt(made)) == "w8a16"


def test_of_equal_costs_the_smaller_model_is_taken():
    made = Made(goal=54.0, sizes={UNIFORM[4]: 900}, cpu=dict.fromkeys(CURVE, 0.0))
    assert named(hunt(made)) == "fp16"
    made = replace(made, sizes={UNIFORM[4]: 1100}, attempts=[], compiles=[])
    assert named(hunt(made)) == "int16"


def test_a_precision_throughout_that_fails_as_built_gives_way_to_the_next():
    made = Made(loss={UNIFORM[2]: 30.0}, cpu=dict.fromkeys(CURVE, 0.0))
    assert named(hunt(made)) == "int16" and [named(a) for a in made.compiles] == ["w8a16", "int16"]


def test_what_the_target_refuses_is_passed_over():
    made = Made(cpu=dict.fromkeys(CURVE, 0.0), refused=("w8a16",))
    assert named(hunt(made)) == "int16"


def test_mixes_that_the_compiler_does_not_take_are_given_up_after_as_many_builds_as_others():
    """A compiler that takes none of them is asked as often as one whose results fall short."""
    made = Made()
    made.build = lambda chosen: made.compiles.append(chosen) or (made._trial(chosen, 0.0) if chosen.precision else None)
    assert named(hunt(made)) == "w8a16"
    assert [named(a) for a in made.compiles] == [None] * MOST_BUILDS + ["w8a16"]
    assert sum(a.precision is None for a in made.attempts) <= MOST_TRIES


def test_a_goal_out_of_reach_builds_the_nearest_once():
    made = Made(goal=400.0)
    assert hunt(made) is None
    assert [named(a) for a in made.compiles] == ["fp16"]


@pytest.mark.parametrize("loss", [0.0, 0.4, 1.5, 4.0, 9.0])
@pytest.mark.parametrize("goal", [18.0, 25.0, 35.0, 45.0, 52.0, 57.0])
@pytest.mark.parametrize("wave", [0.0, 3.0, 8.0])
def test_nothing_dearer_than_a_precision_throughout_that_meets_the_goal_is_ever_returned(loss, goal, wave):
    """On curves that are not as predicted: they go up and down, and compiling takes more from some mixes."""
    cpu = {p: p.predicted_db + wave * math.sin(2.5 * i) for i, p in enumerate(CURVE)}
    losses = {p: loss * (1 + 0.5 * math.cos(1.7 * i)) for i, p in enumerate(CURVE)}
    made = Made(cpu=cpu, loss=losses, usual_loss=loss / 4, goal=goal)
    found = hunt(made)
    able = [u for u in UNIFORM if made.meets(u)]
    assert len(made.compiles) <= 12 and len([a for a in made.attempts if not a.precision]) <= MOST_TRIES + 1
    assert len([a for a in made.compiles if not a.precision]) <= MOST_BUILDS + 1
    if able:
        assert found is not None and made.meets(found)
        assert made.cost(found) <= min(map(made.cost, able))
