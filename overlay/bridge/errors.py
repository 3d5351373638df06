"""Errors that end a bridge, or the write of a batch."""

from m4cast.overlay.errors import M4castError


class DataLossError(M4castError):
    """Records or rows are gone that were not carried."""


class FencedError(M4castError):
    """Another bridge of the same name has taken over."""


class StoppedError(M4castError):
    """The bridge was stopped while a write waited."""
