"""The command `gateway`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from inference_fleet.gateway.logs import KindOnlyFormatter
from inference_fleet.gateway.settings import Settings

LOG_LEVELS = ("debug", "info", "warning", "error")


# argparse makes its own kind of subparsers generic, but only for type checkers.
def add_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers `gateway`."""
    parser = subparsers.add_parser("gateway", help="serve one policy's models on an OpenAI-compatible API")
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = Settings("", "")
    parser.add_argument("--policy", required=True, help="name of the InferencePolicy")
    parser.add_argument("--namespace", default="default", help="its namespace")
    parser.add_argument(
        "--keys-directory", type=Path, help="mounted Secret with API keys; without it nobody has to authenticate"
    )
    parser.add_argument("--tls-directory", type=Path, help="mounted Secret with tls.crt and tls.key")
    parser.add_argument("--routes-file", type=Path, help="routes from a file instead of the cluster")
    parser.add_argument("--host", help="address to listen on; every one without it")
    parser.add_argument("--port", type=int, default=defaults.port, help="port of the API")
    parser.add_argument("--admin-port", type=int, default=defaults.admin_port, help="port of metrics and readiness")
    for name, text in (
        ("connect-seconds", "time to connect to an engine"),
        ("read-seconds", "longest silence of an engine"),
        ("heartbeat-seconds", "silence after which a stream gets a comment"),
        ("stall-seconds", "longest time a client may leave its body unsent or its stream untaken"),
        ("accept-seconds", "after SIGTERM, how long new connections are still taken"),
        ("drain-seconds", "after that, how long requests in flight may take to end"),
        ("retry-seconds", "longest wait between tries while the API server is away"),
        ("poll-seconds", "how often files are looked at"),
    ):
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{text} ({default:g})")
    parser.add_argument(
        "--relist-seconds", type=int, default=defaults.relist_seconds, help="how often the cluster is listed anew"
    )
    parser.add_argument("--held-limit", type=int, default=defaults.held_limit, help="most requests that are held")
    parser.add_argument("--held-bytes", type=int, default=defaults.held_bytes, help="most bytes of their bodies")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="least weight of what is logged (info)")


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM. 0 after an orderly stop."""
    # Not at the top: `inference-fleet --help` need not load a web server.
    import uvloop

    from inference_fleet.gateway.server import Gateway

    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(KindOnlyFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=arguments.log_level.upper(), handlers=[output])
    fields = {name: getattr(arguments, name) for name in Settings.__dataclass_fields__}

    async def serve() -> None:
        await Gateway(Settings(**fields)).run()

    uvloop.run(serve())
    return 0
