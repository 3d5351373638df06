"""The limits of the web door. Each number is a guess unless it says otherwise."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    connections_max: int = 4_096
    """Connections that have sent a request, and as many that have not."""
    asking_ms: int = 30_000
    """The time that a connection may take to send the head of a request, or rest between two. Higher: idle ones
    stay."""
    handshake_ms: int = 5_000
    """The time that a TLS handshake may take."""
    head_bytes_max: int = 64 << 10
    """The head of a request. A position in a topic with 1,000 streams takes 40 KB of it."""
    body_bytes_max: int = 64 << 20
    """A posted body. Raising it costs that memory for each of them, within `bodies_bytes_max`."""
    bodies_bytes_max: int = 160 << 20
    """All bodies that are being received and parsed, and all unanswered publishes of WebSockets. One client gets half
    of it. Beyond it they are refused."""
    body_idle_ms: int = 30_000
    """The time that a body may take, in addition to `body_bytes_per_s`."""
    body_bytes_per_s: int = 64 << 10
    """The rate at which a client has to send. Lower: slow clients hold their bytes for longer."""
    taking_ms: int = 30_000
    """The time for which a client may accept nothing of an answer before it is cut off."""
    threads: int = 8
    """Threads that parse and read. One client uses half of them at most."""
    waiting_max: int = 256
    """Requests of one client that are in progress or wait for a thread."""
    streams_max: int = 2_048
    """Tails and WebSockets of one client. A hundred idle ones took 2 MB, with TLS 6 MB."""
    ping_ms: int = 15_000
    """The interval at which something is sent on a tail or WebSocket without rows, so that a lost client is noticed."""
    chunk_bytes: int = 256 << 10
    """The number of bytes of an answer that are read and written at a time."""
    frame_bytes_max: int = 4 << 20
    """One message of a WebSocket."""
    window_frames: int = 256
    """Unanswered publishes of one WebSocket. Beyond it, it is not read."""
    window_bytes: int = 8 << 20
    """The bytes of these, unless it is a single one. Beyond it, it is not read, either. Parsed rows take several times
    as much."""
