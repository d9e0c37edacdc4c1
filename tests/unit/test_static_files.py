"""Static files as browsers get them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.test import Client
from pytest_django import Settings

from console.static_files import CollectedFiles

pytestmark = (
    pytest.mark.django_db
)  # the end of a request looks after the connection that an earlier test of this worker left open
HTMX = "/static/vendor/htmx.min.js"


def test_a_static_file_comes_whole_and_may_be_kept(client: Client) -> None:
    answer = client.get(HTMX)

    assert answer.status_code == 200
    assert not answer.streaming
    assert int(answer["Content-Length"]) == len(answer.content) > 50_000
    assert client.get(HTMX, headers={"If-None-Match": answer["ETag"]}).status_code == 304


def test_a_static_file_is_for_this_origin_and_of_one_type(client: Client) -> None:
    answer = client.get(HTMX)

    assert "Access-Control-Allow-Origin" not in answer
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Type"].startswith("text/javascript")


def test_a_static_file_that_does_not_exist_is_not_found(client: Client) -> None:
    assert client.get("/static/vendor/nothing.js").status_code == 404


def test_what_was_collected_has_a_name_of_its_version_and_what_was_not_its_own(tmp_path: Path) -> None:
    files = CollectedFiles(location=str(tmp_path))
    assert files.url("settle.css") == "/static/settle.css"  # nobody ran collectstatic: no page fails for it

    files.save("settle.css", ContentFile(b"a {}"))
    list(files.post_process({"settle.css": (files, "settle.css")}))

    again = CollectedFiles(location=str(tmp_path))
    assert again.url("settle.css") != "/static/settle.css"
    assert again.url("newer.css") == "/static/newer.css"


def test_pages_of_an_installation_where_nothing_was_collected_are_whole(settings: Settings, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": "console.static_files.CollectedFiles"}}
    client = Client()

    page = client.get("/login/")

    assert page.status_code == 200
    named = re.findall(r'(?:href|src)="(/static/[^"#]+)', page.content.decode())
    assert {name.rpartition(".")[2] for name in named} >= {"css", "js"}
    assert [name for name in named if client.get(name).status_code != 200] == []
