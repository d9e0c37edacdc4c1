"""How a request finds its person: with what they prefer, in the one statement that it needs anyway."""

from __future__ import annotations

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User


class People(ModelBackend):
    """Django's, with the preferences read along. Who was deactivated is nobody, whatever their session says."""

    def get_user(self, user_id: int) -> User | None:
        user = User.objects.select_related("preferences").filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None
