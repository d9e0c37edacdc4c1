"""Static files under ASGI: whitenoise's own answers, whole instead of streamed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile
from whitenoise.storage import CompressedManifestStaticFilesStorage


class CollectedFiles(CompressedManifestStaticFilesStorage):
    """The names that `collectstatic` made. What was never collected keeps its own, by which it is found beside the code: no page fails for it."""

    def stored_name(self, name: str) -> str:
        try:
            return str(super().stored_name(name))
        except ValueError:
            return name


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Django warns of every synchronous stream under ASGI; that warning is to be seen when an event stream is meant, not here."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        streamed = WhiteNoiseMiddleware.serve(static_file, request)
        whole = HttpResponse(streamed.getvalue(), status=streamed.status_code)
        del whole["Content-Type"]  # a 304 has none
        for name, value in streamed.items():
            whole[name] = value
        streamed.close()
        return whole
