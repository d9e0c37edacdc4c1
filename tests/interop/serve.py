"""A real `recall serve` on one database, and clients of its tenants over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import httpx

from local import processes
from tests.interop.driver import PATIENCE, backend_of

BINARY = Path(sys.executable).with_name("recall")


class Refused(Exception):
    """A tool said no; the text is the server's."""


class Serve:
    """One server; `keys` are namespaces that get a key in its keys file, which is not in the database."""

    def __init__(self, url: str, folder: Path, *, keys: Collection[str] = (), prefix: str = "recall_lexical_v1") -> None:
        self._options = ["-backend", backend_of(url), "-url", url, "-collection", prefix]
        self._folder = folder
        self._keys = {namespace: f"filekey-{number}-aaaaaaaaaaaaaaaaaaaaaaaa" for number, namespace in enumerate(keys)}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        file, log = self._folder / "keys", self._folder / "serve.log"
        file.write_text("".join(f"{key} {namespace}\n" for namespace, key in self._keys.items()))
        self.port = self.port or processes.free_port()
        command = [BINARY, "serve", *self._options, "-listen", f"127.0.0.1:{self.port}", "-keys-file", file]
        self._process = processes.spawn(command, env=self._environment(), log=log)
        processes.wait_for_port(self.port, process=self._process, log=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def create_key(self, namespace: str) -> str:
        """A key whose record stands in the database, as `recall key create` makes it."""
        command = [BINARY, "key", "create", *self._options, "-namespace", namespace]
        said = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=True).stdout
        return self._keys.setdefault(namespace, said.split()[1])

    def key(self, namespace: str) -> str:
        return self._keys[namespace]

    def call(self, namespace: str, name: str, /, **arguments: Any) -> Any:
        """What an agent's process of this tenant asks, and what it is told."""
        answer = httpx.post(
            self.address,
            headers={"Authorization": f"Bearer {self._keys[namespace]}"},
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}},
            timeout=PATIENCE.total_seconds(),
            trust_env=False,
        )
        result = answer.raise_for_status().json()["result"]
        text = result["content"][0]["text"]
        if result["isError"]:
            raise Refused(text)
        return json.loads(text)

    def _environment(self) -> dict[str, str]:
        return os.environ | {"HOME": str(self._folder)}
