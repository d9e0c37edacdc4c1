"""Where providers call us. No login and no CSRF: the signature is what counts. Answers tell nothing about what was found."""

from __future__ import annotations

import logging

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from console.services.hooks import HEADERS, MAX_BYTES, BadSignature, NoHook, TooManyCalls, receive
from console.services.sealing import CannotUnseal
from console.tasks import send_asking

log = logging.getLogger(__name__)


@csrf_exempt
@never_cache
def call(request: HttpRequest, provider: str, token: str) -> HttpResponse:
    """204 for every good signature, whatever the body says; 404, 400, 413 and 429 for what is none, is stale, is too long or too often."""
    if request.method != "POST":
        return _refused(405, "only POST", Allow="POST")
    body = request.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        return _refused(413, f"at most {MAX_BYTES} bytes")
    try:
        pks = receive(provider, token, request.headers.get(HEADERS.get(provider, ""), ""), body)
    except NoHook:
        return _refused(404, "there is no such address")
    except BadSignature as exc:
        return _refused(400, str(exc))
    except TooManyCalls as exc:
        return _refused(429, str(exc), **{"Retry-After": "60"})
    except CannotUnseal:
        log.error("a hook of %s cannot be checked: no key of SECRETS_KEY opens its secret", provider)
        return _refused(503, "the signature cannot be checked now")
    send_asking(pks)
    return HttpResponse(status=204)


def _refused(status: int, why: str, **headers: str) -> HttpResponse:
    answer = HttpResponse(f"{why}\n", status=status, content_type="text/plain", headers=headers)
    # Django would write the address into the log, and the address holds the token.
    answer._has_been_logged = True  # type: ignore[attr-defined]
    log.warning("a call of a hook was refused: %s %s", status, why)
    return answer
