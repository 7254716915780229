"""What a gateway pod shows on its own side, for pods of KWOK that run nothing: routes revision and counters."""

from __future__ import annotations

import http.server
import threading
from typing import Any


class FakeGateway:
    """Listens on a loopback address that is then given to a pod as its own. Shows `revision` and `metrics` as they are set."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.revision = ""
        self.metrics = ""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/ready":
                    self._send(f'{{"ready": true, "revision": "{outer.revision}", "models": {{}}}}')
                elif self.path == "/metrics":
                    self._send(
                        f'inference_fleet_gateway_routes_info{{revision="{outer.revision}"}} 1\n' + outer.metrics
                    )
                else:
                    self.send_error(404)

            def _send(self, text: str) -> None:
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((address, 9090), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeGateway:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
