"""Results at a glance: one line at a prompt, the head of the report in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# The colours of the words of a verdict, which read on light and dark ground alike.
_GOOD, _DOUBTFUL, _BAD, _NEUTRAL = "#1a7f4b", "#b7791f", "#c53030", "#6b7280"
_COLOURS = {
    **dict.fromkeys(("good", "passed"), _GOOD),
    **dict.fromkeys(("suspect", "unverified"), _DOUBTFUL),
    **dict.fromkeys(("failed", "broken"), _BAD),
}
_CARD = "border:1px solid #8884;border-radius:6px;padding:.5em .8em;min-width:9em"


@dataclass(frozen=True, slots=True)
class Sight:
    """The words that show a result: its verdict if it has one, a title, figures by name, and a table."""

    title: str
    word: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    reasons: tuple[str, ...] = ()


class Glimpse:
    """A result that is shown by its `sight`, not by every field that it has."""

    __slots__ = ()

    def sight(self) -> Sight:
        """The words that show this result."""
        raise NotImplementedError

    def __repr__(self) -> str:
        seen = self.sight()
        parts = [seen.title, *(f"{name} {value}" for name, value in seen.figures.items())]
        return f"<{type(self).__name__}{f' {seen.word}' if seen.word else ''}: {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        """The same as HTML, with the table, for a notebook; names in a model may be hostile and are escaped."""
        return "".join(_html(self.sight()))


def _html(seen: Sight) -> Iterator[str]:
    # Notebooks alone come here.
    from html import escape

    colour = _COLOURS.get(seen.word, _NEUTRAL)
    word = f'<b style="color:{colour};font-size:1.3em">{escape(seen.word)}</b> ' if seen.word else ""
    yield f'<div style="font-family:system-ui,sans-serif"><p>{word}{escape(seen.title)}</p>'
    yield from (f"<p>{escape(reason)}</p>" for reason in seen.reasons)
    yield '<div style="display:flex;flex-wrap:wrap;gap:.6em">'
    for name, value in seen.figures.items():
        yield f'<div style="{_CARD}"><small>{escape(name)}</small><br><b>{escape(value)}</b></div>'
    yield "</div>"
    if seen.rows:
        yield f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in seen.heads)}</tr>"
        yield from (f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in seen.rows)
        yield "</table>"
    yield "</div>"
