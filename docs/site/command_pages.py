"""The page about the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from intact.cli import main, panels

HEAD = """\
# Commands

Made from the program itself; `intact COMMAND --help` prints the same. The model is the first argument of every command
that takes one, and `--onnx` says the same.
"""


def commands_page() -> str:
    """Every command with its help and its flags."""
    group = typer.main.get_command(main.app)
    context = typer.Context(group, info_name="intact")
    parts = [HEAD]
    for name, command in sorted(group.commands.items()):
        parts += _command(context, name, command)
    return "\n".join(parts) + "\n"


def _command(above: Any, name: str, command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=name, parent=above)
    yield f"\n## intact {name}\n"
    yield _escaped(command.help or command.short_help or "")
    below = getattr(command, "commands", {})
    if not below:
        yield from _flags(context, command)
    for inner, found in below.items():
        yield f"\n### intact {name} {inner}\n"
        yield _escaped(found.help or "")
        yield from _flags(typer.Context(found, info_name=inner, parent=context), found)


def _flags(context: Any, command: Any) -> Iterator[str]:
    """A table for each heading of flags."""
    headings: dict[str, list[str]] = {}
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None:
            words, meaning = (" ".join(text.split()) for text in record)
            row = f"| `{words}` | {_escaped(meaning)} |"
            headings.setdefault(panels._HEADING.get(param.name or "", "Options"), []).append(row)
    for heading, rows in headings.items():
        yield f"\n**{heading}**\n\n| flag | meaning |\n| --- | --- |\n" + "\n".join(rows)


def _escaped(text: str) -> str:
    """Help as Markdown: what stands in angle brackets would be taken for a tag, and brackets for a link."""
    return text.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*").replace("|", "&#124;")
