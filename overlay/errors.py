"""The errors of m4cast, by whose mistake they are.

`RemoteProtocolError` is the peer's mistake, `LocalProtocolError` the caller's, `ConfigError` the operator's;
`StoreError` is a problem with what is on disk, for the operator to resolve. A client gets `RefusedError` when a node
refused its request, and `UnreachableError` when no node could be reached. An `AssertionError` anywhere in m4cast is our
own mistake.
"""


class M4castError(Exception):
    """Every error that m4cast raises on purpose."""


class ConfigError(M4castError):
    """A setting that cannot be used: names the file, the key, the value and what is allowed."""


class RemoteProtocolError(M4castError):
    """A peer sent something that the protocol does not allow; its connection is closed, nothing else changes."""


class LocalProtocolError(M4castError):
    """The caller used the interface in a way it does not allow; nothing was changed."""


class StoreError(M4castError):
    """A store that cannot be used (any longer): names the folder, the reason and what to do."""


class RefusedError(M4castError):
    """A node refused a client's request. `code` is a stable word, `detail` names the thing and the fix."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)  # both in args, so that it survives pickling
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class UnreachableError(M4castError):
    """None of the nodes that the client knows could be reached: names each, and why. `is_sent`: a node may still have
    received the request, and performed it; False: certainly not."""

    def __init__(self, message: str, *, is_sent: bool = True) -> None:
        super().__init__(message)
        self.is_sent = is_sent
