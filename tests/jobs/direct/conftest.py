"""A fixture that notes which files and folders are on the disk."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The files and folders that were synced, with the names that they had then."""
    fsync = os.fsync
    found: set[Path] = set()

    def noted(opened: int) -> None:
        fsync(opened)
        found.add(Path(f"/proc/self/fd/{opened}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    return found
