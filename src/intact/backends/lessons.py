"""Lessons of builds: operators that a library computed wrongly, and the form that it computed rightly, as a file.

The file is the user's, and holds nothing of a model but operators, types and shapes, so that it can be sent to others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from intact import scratch
from intact.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Lesson:
    """An operator that one version of a library gets wrong, and what makes it right.

    `operator` is what the library sees of it. `behind` are the operators whose results it reads, where it is wrong
    only together with them. The figures are those of the simulator against the CPU; None stands for no error.
    """

    operator: str
    behind: str
    remedy: str
    wrong_db: float | None
    right_db: float | None
    library: str
    arch: int | None

    @property
    def condition(self) -> tuple[str, str, str, int | None]:
        """The part that says where the lesson holds."""
        return self.operator, self.behind, self.library, self.arch


def default_place() -> Path:
    """The file of lessons among the user's settings."""
    import platformdirs

    return Path(platformdirs.user_config_dir("intact", appauthor=False)) / "learnt.json"


def read(path: Path) -> tuple[Lesson, ...]:
    """The lessons of a file, none where there is no file yet."""
    if not path.exists():
        return ()
    names = {field.name for field in fields(Lesson)}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["lessons"]
        return tuple(Lesson(**{name: row[name] for name in names}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "repair it, or move it away: a build with --learn begins a new one"
        raise SettingsError("S207", f"{path}: it holds no lessons of builds ({error})", fix=fix) from error


def keep(lessons: Sequence[Lesson], path: Path) -> None:
    """Add lessons to a file; a later one about the same condition takes the place of an earlier one."""
    known = {lesson.condition: lesson for lesson in (*read(path), *lessons)}
    lines = ",\n".join(f"  {json.dumps(asdict(lesson), ensure_ascii=False)}" for lesson in known.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(path, f'{{"lessons": [\n{lines}\n]}}\n')
