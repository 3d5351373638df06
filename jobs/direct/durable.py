"""Files and folders that are on the disk when a call returns, so that a loss of power does not undo them."""

import os
from pathlib import Path


def sync(place: Path) -> None:
    """Wait until the file is on the disk; of a folder, the names in it."""
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
