"""The JSON API at /api/v1/."""

from __future__ import annotations

from ninja import NinjaAPI

api = NinjaAPI(title="Settle", version="1", urls_namespace="api", docs_url=None, openapi_url="/openapi.json")
