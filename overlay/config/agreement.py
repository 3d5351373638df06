"""Agreement between nodes: two nodes of a channel compare their cluster settings when they meet."""

from collections.abc import Mapping
from typing import NamedTuple

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.config.settings import shown


class Mismatch(NamedTuple):
    """A cluster setting on which two nodes differ; `theirs` is None when the other node did not send it."""

    name: str
    mine: str | int
    theirs: object

    def __str__(self) -> str:
        theirs = "not sent by the other" if self.theirs is None else f"{shown(str(self.theirs))} at the other"
        return f"{self.name} is {shown(str(self.mine))} here and {theirs}"


def check_agreement(mine: ClusterConfig, theirs: Mapping[str, object]) -> list[Mismatch]:
    """The settings on which another node differs, according to its hello.

    Values are compared as text, as they are on the wire. Settings that this node does not know are ignored: they belong
    to a newer version, and the node that knows them can judge what their absence here means.
    """
    return [
        Mismatch(name, value, theirs.get(name))
        for name, value in mine.settings().items()
        if name not in theirs or str(theirs[name]) != str(value)
    ]
