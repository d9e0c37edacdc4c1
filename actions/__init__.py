"""What an action is, how it is kept and how it is settled. A library: no Django, no Celery."""
