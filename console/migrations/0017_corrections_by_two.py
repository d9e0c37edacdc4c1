import django.db.models.deletion
import django.db.models.functions.text
from django.conf import settings
from django.db import migrations, models
from django.db.models import F, Q

# Whose name it was when the run was started; who took the name later did not start it.
_STARTERS = """
UPDATE console_run SET starter_id = auth_user.id FROM auth_user
WHERE auth_user.username = console_run.started_by AND auth_user.date_joined <= console_run.created_at
"""
# Webhooks of one name could not be told apart: the later ones get a number.
_NAMES = """
UPDATE console_channel SET name = left(console_channel.name, 50) || ' #' || console_channel.id
FROM console_channel AS first
WHERE console_channel.way = 'webhook' AND first.way = 'webhook'
  AND lower(first.name) = lower(console_channel.name) AND first.id < console_channel.id
"""


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0016_sweeps"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="correction", name="needs_second", field=models.BooleanField(db_default=False, default=False)
        ),
        migrations.AddField(
            model_name="correction", name="needs_step_up", field=models.BooleanField(db_default=False, default=False)
        ),
        migrations.AddField(model_name="correction", name="rule", field=models.TextField(blank=True, db_default="", default="")),
        migrations.AddField(
            model_name="correction",
            name="sentence",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AddField(
            model_name="correction",
            name="second_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="correction",
            name="second_username",
            field=models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
        migrations.AddField(
            model_name="correction", name="second_reason", field=models.TextField(blank=True, db_default="", default="")
        ),
        migrations.AddField(model_name="correction", name="second_at", field=models.DateTimeField(null=True)),
        migrations.AddField(
            model_name="correction", name="is_turned_down", field=models.BooleanField(db_default=False, default=False)
        ),
        migrations.AlterField(
            model_name="correction",
            name="state",
            field=models.CharField(
                choices=[
                    ("proposed", "Proposed"),
                    ("waiting", "Waiting"),
                    ("written", "Written"),
                    ("withdrawn", "Withdrawn"),
                    ("refused", "Refused"),
                ],
                max_length=16,
            ),
        ),
        migrations.RemoveConstraint(model_name="correction", name="correction_one_waiting_per_action"),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.UniqueConstraint(
                condition=Q(state__in=["proposed", "waiting"]),
                fields=("store", "agent", "seq"),
                name="correction_one_pending_per_action",
            ),
        ),
        migrations.RemoveConstraint(model_name="correction", name="correction_state_known"),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.CheckConstraint(
                condition=Q(state__in=["proposed", "waiting", "written", "withdrawn", "refused"]), name="correction_state_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.CheckConstraint(
                condition=Q(needs_second=False)
                | Q(is_turned_down=False, second_at__isnull=False)
                | Q(state__in=["proposed", "withdrawn", "refused"]),
                name="correction_second_person",
            ),
        ),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.CheckConstraint(
                condition=Q(second_by__isnull=True) | ~Q(second_by=F("by")), name="correction_second_is_another"
            ),
        ),
        migrations.AddField(model_name="batch", name="is_confirmed", field=models.BooleanField(db_default=False, default=False)),
        migrations.AddField(
            model_name="run",
            name="starter",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.RunSQL(_STARTERS, migrations.RunSQL.noop),
        migrations.RunSQL(_NAMES, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="channel",
            constraint=models.UniqueConstraint(
                django.db.models.functions.text.Lower("name"), condition=Q(way="webhook"), name="channel_one_webhook_of_a_name"
            ),
        ),
    ]
