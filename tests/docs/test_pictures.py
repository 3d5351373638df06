"""The pictures are what their script draws; after a change, `python docs/pictures/draw.py` writes them again."""

import runpy

from tests.docs.pages import DOCS

PICTURES = DOCS / "pictures"


def test_the_script_draws_the_committed_pictures() -> None:
    drawn = {name: draw() for name, draw in runpy.run_path(str(PICTURES / "draw.py"))["PICTURES"].items()}
    assert {path.name for path in PICTURES.glob("*.svg")} == set(drawn)
    for name, picture in drawn.items():
        assert (PICTURES / name).read_bytes() == picture.encode(), f"{name}: run python docs/pictures/draw.py"
