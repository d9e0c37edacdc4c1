"""A throwaway project: Django's own admin over the records' table, as a team would have it that writes no console.

`python -m bench.admin_site` makes its tables and its user; as an ASGI application it serves. BENCH_ADMIN_URL is the database,
BENCH_ADMIN_PASSWORD the password of `admin`.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings

_parts = urlsplit(os.environ["BENCH_ADMIN_URL"])
settings.configure(
    DEBUG=False,
    SECRET_KEY=os.environ["BENCH_ADMIN_PASSWORD"] * 3,
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    STATIC_URL="static/",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(_parts.path[1:]),
            "USER": unquote(_parts.username or ""),
            "PASSWORD": unquote(_parts.password or ""),
            "HOST": _parts.hostname,
            "PORT": _parts.port,
            "OPTIONS": {"pool": {"min_size": 1, "max_size": 4}},
        }
    },
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
)
django.setup()

from django.contrib import admin  # noqa: E402 - only now there are settings
from django.core.asgi import get_asgi_application  # noqa: E402
from django.db import models  # noqa: E402
from django.urls import path  # noqa: E402


class Record(models.Model):
    """A row of Recall's, as it lies there."""

    id = models.TextField(primary_key=True)
    metadata = models.JSONField()

    class Meta:
        app_label = "admin"
        managed = False
        db_table = 'recall"."recall_lexical_v1_agents'


class OpenFilter(admin.SimpleListFilter):
    title = "open"
    parameter_name = "open"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "open")]

    def queryset(self, request: Any, queryset: Any) -> Any:
        if self.value() != "yes":
            return queryset
        return queryset.filter(metadata__record="action", metadata__status__in=["started", "unknown"])


@admin.register(Record)
class RecordAdmin(admin.ModelAdmin):
    list_display = ("id", "agent", "status", "body")
    list_per_page = 50
    ordering = ("id",)
    list_filter = (OpenFilter,)

    def agent(self, record: Record) -> str:
        return str(record.metadata.get("recall_agent", ""))

    def status(self, record: Record) -> str:
        return str(record.metadata.get("status", ""))

    def body(self, record: Record) -> str:
        return str(record.metadata.get("body", ""))[:200]


urlpatterns = [path("admin/", admin.site.urls)]
application = get_asgi_application()


def prepare() -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    User.objects.filter(username="admin").delete()
    User.objects.create_superuser("admin", password=os.environ["BENCH_ADMIN_PASSWORD"])


if __name__ == "__main__":
    prepare()
    sys.exit(0)
