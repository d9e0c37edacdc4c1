"""Plays Recall on polign_db: records over HTTP as recall-records 2.4 has them, not with our own codec.

Leases are read and set where the server keeps them, in files of its store: over HTTP they can only be asked for.
"""

from __future__ import annotations

import json
import shutil
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from local.polign import RunningPolign
from tests.recall_writer import DIMENSION, LeaseState, Metadata, RecordWriter, turn_metadata

_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Its server is asked without TLS; httpx would load everybody's certificates for each client all the same."""


class PolignWriter(RecordWriter):
    """Writes into one collection as Recall does. Its vectors are zero, as Recall's are there."""

    def __init__(self, server: RunningPolign, collection: str, *, store: str = "main") -> None:
        self.collection = f"{collection}_agents"
        self.store = store
        self.server = server
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        path = f"{server.base}/v1/collections/{quote(self.collection, safe='')}"
        self.client = httpx.Client(base_url=path, headers=headers, trust_env=False, timeout=60, verify=_NOBODY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def put(self, record_id: str, metadata: Mapping[str, Any]) -> None:
        body = json.dumps({"metadata": metadata, "values": [0] * DIMENSION})
        self.client.put(f"/vectors/{quote(record_id, safe='')}", content=body).raise_for_status()

    def put_many(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """As after many writes, in a few requests."""
        vectors = [{"id": key, "metadata": metadata, "values": [0] * DIMENSION} for key, metadata in records.items()]
        for start in range(0, len(vectors), 1000):
            self.client.post("/vectors:batch", json={"vectors": vectors[start : start + 1000]}).raise_for_status()

    def turn_records(self, agent: str, first: int, last: int) -> dict[str, Metadata]:
        return {f"{agent}:turn:{seq}": turn_metadata(agent, seq, f"turn {seq}") for seq in range(first, last + 1)}

    def lease(
        self,
        agent: str,
        holder: str = "pod-a:1:aaaa",
        epoch: int = 1,
        state: LeaseState = "expired",
        *,
        ttl: timedelta = timedelta(seconds=60),
    ) -> None:
        now = datetime.now(UTC)
        ends = now + ttl if state == "live" else now - ttl
        shutil.rmtree(self._leases(agent), ignore_errors=True)
        self._leases(agent).mkdir(parents=True)
        file = self._leases(agent) / f"{epoch:020d}"
        row = {"epoch": epoch, "holder": holder, "expires": ends.isoformat().replace("+00:00", "Z")}
        file.write_text(json.dumps(row | ({"released": True} if state == "released" else {})))

    def acquire(self, agent: str, holder: str, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        body = {"holder": holder, "ttl_ms": ttl // timedelta(milliseconds=1)}
        answer = self.client.post(f"/leases/{agent}/acquire", json=body)
        return answer.raise_for_status().json()["epoch"] if answer.status_code != httpx.codes.CONFLICT else None

    def write_fenced(self, agent: str, holder: str, epoch: int, record_id: str, metadata: Mapping[str, Any]) -> bool:
        """Always written: the server ignores the lease that a write names."""
        lease = {"Polign-Lease-Name": agent, "Polign-Lease-Holder": holder, "Polign-Lease-Epoch": str(epoch)}
        body = json.dumps({"metadata": metadata, "values": [0] * DIMENSION})
        self.client.put(f"/vectors/{quote(record_id, safe='')}", content=body, headers=lease).raise_for_status()
        return True

    def metadata_of(self, record_id: str) -> Metadata | None:
        answer = self.client.get(f"/vectors/{quote(record_id, safe='')}", params={"typed": "true"})
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return answer.raise_for_status().json().get("metadata", {})

    def values_of(self, record_id: str) -> list[float]:
        return self.client.get(f"/vectors/{quote(record_id, safe='')}").raise_for_status().json()["values"]

    def record_ids(self) -> list[str]:
        found: list[str] = []
        while True:
            page = self.client.get("/vectors", params={"limit": 1000, "offset": len(found)}).raise_for_status().json()
            found += [vector["id"] for vector in page["vectors"]]
            if len(found) >= page["total"]:
                return found

    def revision(self) -> int:
        """There is none."""
        return 0

    def lease_of(self, agent: str) -> tuple[str, int, LeaseState] | None:
        files = sorted(self._leases(agent).glob("*"))
        if not files:
            return None
        lease = json.loads(files[-1].read_text())
        ends = datetime.fromisoformat(lease["expires"])
        state: LeaseState = "live" if ends > datetime.now(UTC) else "expired"
        return lease["holder"], lease["epoch"], "released" if lease.get("released") else state

    def _leases(self, agent: str) -> Path:
        return self.server.leases / self.collection / ".lease" / agent
