"""Token files of tests, and what their holders show."""

from pyarrow import flight

from m4cast.overlay.client import Channel
from tests.overlay.door.served import Served


def secret_of(name: str) -> str:
    return f"the secret of {name}"


def token_file(**rights: str) -> str:
    """A token file: for each name of a token, the lines of its rights."""
    written = (f'[[token]]\nname = "{name}"\nsecret = "{secret_of(name)}"\n{its}\n' for name, its in rights.items())
    return "\n".join(written)


def channel_of(served: Served, name: str) -> Channel:
    return Channel(served.addresses, token=secret_of(name))


def call_options_of(name: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret_of(name)}".encode())])
