"""Static files as browsers get them."""

from __future__ import annotations

import pytest
from django.test import Client

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
