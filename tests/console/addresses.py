"""The addresses of machines alone, without any page."""

from __future__ import annotations

from django.urls import path

from console import health
from console.api import api

urlpatterns = [path("healthz", health.healthz), path("readyz", health.readyz), path("api/v1/", api.urls)]
