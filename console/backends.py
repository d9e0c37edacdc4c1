"""How a request finds its person: with what they prefer and when the sweep last ran, in the one statement that it needs anyway."""

from __future__ import annotations

from functools import cache

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.db.models import QuerySet, Subquery
from django.db.models.functions import Now

from console.models import Sweep
from console.services.sweeps import SWEEP


class People(ModelBackend):
    """Django's, with what every page asks for read along: the preferences, and when the sweep last ran.

    Who was deactivated is nobody, whatever their session says.
    """

    def get_user(self, user_id: int) -> User | None:
        user = _people().filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None


@cache
def _people() -> QuerySet[User]:
    """Made once, and asked by none: each request narrows it to one person."""
    swept = Sweep.objects.filter(name=SWEEP).values("ran_at")
    return User.objects.select_related("preferences").annotate(swept_at=Subquery(swept), asked_at=Now())
