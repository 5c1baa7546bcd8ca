"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from intact.errors import SettingsError
from intact.settings.config import BuildConfig
from intact.settings.memory_size import bytes_of, gigabytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 * 10**9), ("512m", 512 * 10**6), ("1.5GiB", 3 * 2**29), ("2 TB", 2 * 10**12), ("7", 7), ("8k", 8000)],
)
def test_units_are_decimal_unless_they_say_otherwise(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "4Q", "G", "-1G", "0", "1e9"])
def test_another_text_is_refused_with_what_is_allowed(text):
    with pytest.raises(SettingsError, match="4G is 4 GB"):
        BuildConfig.from_dict({"max_memory": text})


def test_figures_are_in_gigabytes():
    assert (gigabytes(4_100_000_000), gigabytes(3_000_000)) == ("4.1 GB", "3 MB")
