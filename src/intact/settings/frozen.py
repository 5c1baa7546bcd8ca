"""The base of all settings: frozen, with no keys but their own, and errors that name what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from intact.errors import SettingsError
from intact.json_types import JsonObject
from intact.settings import hand_written
from intact.settings.hand_written import nearest


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys and round-trip through plain dictionaries."""

    # Validators are built when they are first used: most sections only ever within the whole.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, values: object) -> object:
        known = list(cls.model_fields)
        unknown = [key for key in values if key not in known] if isinstance(values, dict) else []
        if unknown:
            found = ", ".join(f"unknown key {key}{nearest(key, known)}" for key in unknown)
            raise ValueError(f"{found} (allowed: {', '.join(known)})")
        return values

    def to_dict(self) -> JsonObject:
        """These settings as JSON-compatible values."""
        return self.model_dump(mode="json")

    def line(self, usual: Self | None = None) -> str:
        """These settings as `key=value`, on one line, without what is unset, empty, or the same in `usual`."""
        known = set() if usual is None else set(_flat(usual.model_dump(mode="json")))
        found = _flat(self.model_dump(mode="json"))
        return " ".join(f"{key}={value}" for key, value in found if (key, value) not in known)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Settings from plain values; a SettingsError (a ValueError) names every key or value that is wrong."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _as_settings_error(error) from None


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        elif value is not None and value != []:
            found.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return found


def _as_settings_error(error: ValidationError) -> SettingsError:
    lines = [_problem(detail) for detail in error.errors(include_url=False)]
    return SettingsError("S104", "; ".join(lines))


def _problem(detail: ErrorDetails) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} = {detail['input']!r}: {message}{hand_written.hint(detail)}"
