"""People, for admins: who there is, what they may do and where, whether they may come in."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from console.access import RIGHTS
from console.models import Role
from console.services import people as services
from console.services.definitions import require_admin
from console.services.people import InvalidPerson, LastAdmin
from console.sign_ins import note_again
from console.stores import list_stores
from console.texts import take_texts
from console.views.gate import signed_in, user_of

SAYS = {
    Role.VIEWER: "reads actions and the history",
    Role.OPERATOR: "reads, settles, claims and asks resolvers",
    Role.APPROVER: "is the second person",
    Role.AUDITOR: "reads, exports and reveals",
    Role.ADMIN: "edits policies, resolvers and people; settles nothing",
}


@never_cache
@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def people(request: HttpRequest) -> HttpResponse:
    """Everybody; a POST adds somebody and shows where they choose a password."""
    require_admin(user_of(request))
    context: dict[str, Any] = {"name": "", "email": "", "problem": ""}
    status = 200
    if request.method == "POST":
        odd = take_texts(request)
        name, email = request.POST.get("username", ""), request.POST.get("email", "")
        try:
            if odd:
                raise InvalidPerson("", next(iter(odd.values())))
            added = services.add_person(name, email, by=user_of(request))
        except InvalidPerson as exc:
            context, status = {"name": name, "email": email, "problem": str(exc)}, 422
        else:
            context |= {"added": added, "link": services.first_password_link(added)}
    context |= {"people": services.list_people(by=user_of(request)), "most": services.MOST_SHOWN}
    return render(request, "people/people.html", context, status=status)


@never_cache
@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def person(request: HttpRequest, number: int) -> HttpResponse:
    """One of them; a POST changes one thing."""
    by = user_of(request)
    require_admin(by)
    found = services.get_person(number, by=by)
    if found is None:
        raise Http404("there is nobody of that number")
    context: dict[str, Any] = {"problem": ""}
    status = 200
    if request.method == "POST":
        odd = take_texts(request)
        try:
            if odd:
                raise InvalidPerson("", next(iter(odd.values())))
            context |= _do(request, found.user, by)
        except InvalidPerson as exc:
            context["problem"], status = str(exc), 422
        except LastAdmin as exc:
            context["problem"], status = str(exc), 409
        else:
            if "link" not in context:
                return redirect(reverse("person", args=[number]))
        found = services.get_person(number, by=by) or found
    context |= {
        "person": found,
        "is_self": found.user.pk == by.pk,
        "roles": [(role.value, SAYS[role]) for role in Role],
        "stores": [store.name for store in list_stores()],
        "devices": services.list_devices(found.user, None),
    }
    return render(request, "people/person.html", context, status=status)


def _do(request: HttpRequest, user: User, by: User) -> dict[str, Any]:
    """Raises InvalidPerson, LastAdmin: nothing was changed."""
    what = request.POST.get("do", "")
    role, store, tool = (request.POST.get(name, "").strip() for name in ("role", "store", "tool"))
    if what == "give":
        services.give_role(user, role, store=store, tool=tool, by=by)
    elif what == "take":
        services.take_role(user, role, store=store, tool=tool, by=by)
    elif what == "email":
        services.set_email(user, request.POST.get("email", ""), by=by)
    elif what in ("activate", "deactivate"):
        services.set_active(user, what == "activate", by=by)
    elif what == "reset":
        services.reset_second_factor(user, by=by)
    elif what == "end":
        services.end_sessions_of(user, request.session.session_key, by=by)
    elif what == "link":
        return {"link": services.make_password_link(user, by=by)}
    else:
        raise InvalidPerson("do", "nothing that can be done here; nothing was changed")
    if user.pk == by.pk and what in ("give", "take"):
        request.session.cycle_key()  # more rights or fewer: a new key
        services.drop_other_sessions(user, None)
        note_again(request)
    return {}


assert set(SAYS) == set(RIGHTS)  # noqa: S101 - a new role needs its words
