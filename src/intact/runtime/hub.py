"""Hugging Face repositories: folders on this machine, or models of the hub. Needs the `hf` extra.

What loads from them runs in the worker, where transformers may print what it likes; `resolved` and `require` are for
the process that asks.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np

from intact.errors import ModelError, NotAvailable, SettingsError, ToolchainError
from intact.records import dataclass

# Names in the messages of transformers and of what it downloads with, by what they mean.
_REMOTE_CODE = "trust_remote_code"
_UNREACHABLE = ("Offline", "Connect", "Network", "Timeout", "Proxy", "LocalEntryNotFound")


@dataclass(frozen=True, slots=True)
class Repository:
    """A folder in the form that `save_pretrained` writes, or a model of the hub, at a revision if one is named."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def is_folder(self) -> bool:
        return Path(self.name).is_dir()

    def arguments(self) -> dict[str, str]:
        """The arguments that every `from_pretrained` takes."""
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision or "main"}


def resolved(text: str) -> Repository:
    """The repository that a user means by FOLDER, ID or ID@REVISION; a child process has another working directory."""
    if Path(text).is_dir():
        return Repository(str(Path(text).resolve()))
    name, _, revision = text.partition("@")
    if Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            "M183",
            f"{text} is neither a folder nor an id of the Hugging Face hub",
            allowed="a folder that holds config.json, or an id such as organisation/model, or id@revision",
        )
    return Repository(name, revision or None)


def require(*packages: str) -> None:
    """Raise unless these packages of the `hf` extra are installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise NotAvailable(
            "E150", f"Hugging Face models need {', '.join(missing)}, not installed", fix="pip install 'intact[hf]'"
        )


@contextmanager
def loading(repository: Repository, what: str) -> Iterator[None]:
    """Around calls that load from a repository: what goes wrong is told as ours."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise _told(repository, what, error) from None


def _told(repository: Repository, what: str, error: Exception) -> Exception:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    causes = {type(cause).__name__ for cause in _causes(error)}
    if _REMOTE_CODE in str(error):
        return SettingsError(
            "S185",
            f"{repository} brings Python code of its own, which would run on this machine",
            fix="read that code; --trust-remote-code runs it",
        )
    if any(mark in cause for cause in causes for mark in _UNREACHABLE):
        return ToolchainError(
            "E151",
            f"{repository}: the {what} cannot be fetched from the hub: {said}",
            fix="check the network (HF_ENDPOINT, proxies, HF_HUB_OFFLINE), or give a folder with the model",
        )
    if isinstance(error, OSError) and not repository.is_folder:
        return ToolchainError(
            "E152",
            f"{repository}: the hub does not give the {what}: {said}",
            fix="check the id and the revision; a gated or private model needs a login (huggingface-cli login)",
        )
    return ModelError("M184", f"{repository}: the {what} cannot be loaded: {type(error).__name__}: {said}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def file_of(repository: Repository, name: str) -> Path | None:
    """A file of the repository on this machine, fetched if need be, or None if the repository has none of that name."""
    from transformers.utils import cached_file

    with loading(repository, name):
        found = cached_file(
            repository.name,
            name,
            revision=repository.revision or "main",
            _raise_exceptions_for_missing_entries=False,
        )
    return None if found is None else Path(found)


class Tokenizing(TypedDict):
    """The request of `tokenize`: a file with the lines as JSON, the file to write, and the arrays that are wanted."""

    repository: dict[str, str]
    lines: str
    output: str
    length: int | None
    inputs: list[str]


def tokenize(request: Tokenizing) -> dict[str, int]:
    """Turn the lines of a file into arrays of ids, all of one length, and save those that `inputs` names as .npz.

    Longer lines are cut, shorter ones padded: to `length`, or to the longest line where that is None.
    """
    from transformers import AutoTokenizer

    repository = Repository(**request["repository"])
    with loading(repository, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(**repository.arguments(), trust_remote_code=False)
    if tokenizer.pad_token is None:
        raise ModelError("M185", f"{repository}: the tokenizer has no token to pad with", fix="give inputs as .npz")
    lines = json.loads(Path(request["lines"]).read_text(encoding="utf-8"))
    length = request["length"]
    encoded = tokenizer(
        lines,
        padding="longest" if length is None else "max_length",
        truncation=True,
        max_length=length,
        return_tensors="np",
        return_attention_mask=True,
        return_token_type_ids="token_type_ids" in request["inputs"],
    )
    arrays = {name: np.asarray(values) for name, values in encoded.items() if name in request["inputs"]}
    # mypy takes the keyword arguments of numpy's stub for its flags.
    np.savez(request["output"], **arrays)  # type: ignore[arg-type]
    cut = 0 if length is None else sum(len(ids) > length for ids in tokenizer(lines)["input_ids"])
    return {"cut": cut}
