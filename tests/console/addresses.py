"""The addresses of machines alone, without any page."""

from __future__ import annotations

from django.urls import path

from console import health
from console.api import api
from console.views.metrics import metrics

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics),
    path("api/v1/", api.urls),
]
