"""What every test leaves as it was."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def same_import_path() -> Iterator[None]:
    """A loader named by its file puts that folder on the path of this process, for the next test to trip over."""
    before = list(sys.path)
    yield
    sys.path[:] = before
