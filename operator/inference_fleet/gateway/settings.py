"""What a gateway is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Without `routes_file` the routes come from the cluster."""

    policy: str
    namespace: str
    keys_directory: Path | None = None
    """None: no authentication."""
    tls_directory: Path | None = None
    routes_file: Path | None = None
    host: str | None = None
    """None: every address, IPv4 and IPv6."""
    port: int = 8080
    admin_port: int = 9090
    connect_seconds: float = 5.0
    read_seconds: float = 600.0
    """The longest silence of an engine: an answer without a stream is silent until it is whole."""
    heartbeat_seconds: float = 15.0
    stall_seconds: float = 300.0
    """The longest a client may leave its body unsent or its stream untaken."""
    accept_seconds: float = 5.0
    """After SIGTERM: how long new connections are still taken, while the endpoint's removal spreads."""
    drain_seconds: float = 600.0
    """After that: how long requests in flight may take to end."""
    relist_seconds: int = 60
    retry_seconds: float = 30.0
    """The longest wait between two tries while the API server is away; the first waits are shorter."""
    poll_seconds: float = 2.0
    """How often files (routes, keys, certificate) are looked at."""
    held_limit: int = 1000
    """Most requests that wait for an engine together."""
    held_bytes: int = 256 << 20
    """Most bytes of their bodies together."""
