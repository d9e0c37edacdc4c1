"""What is on this machine is reached without a proxy, whatever the environment says."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from local import processes


class _Yes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_waiting_for_an_address_asks_no_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with HTTPServer(("127.0.0.1", 0), _Yes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            processes.wait_for_http(f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join()
