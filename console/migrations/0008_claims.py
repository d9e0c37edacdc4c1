"""Claims, hand-overs, notes to look at again, corrections; an incident may come from a correction."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0007_gates"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Claim",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("store", models.CharField(max_length=63)),
                ("agent", models.CharField(max_length=255)),
                ("seq", models.BigIntegerField()),
                ("tool", models.TextField()),
                ("username", models.CharField(max_length=150)),
                ("claimed_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("taken_from", models.CharField(blank=True, max_length=150)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "ended",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "Not"),
                            ("released", "Released"),
                            ("timed_out", "Timed Out"),
                            ("taken_over", "Taken Over"),
                            ("handed_over", "Handed Over"),
                            ("closed", "Closed"),
                        ],
                        max_length=16,
                    ),
                ),
                ("ended_by", models.CharField(blank=True, max_length=150)),
            ],
            options={
                "db_table": "console_claim",
            },
        ),
        migrations.CreateModel(
            name="Correction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("correction_id", models.CharField(max_length=64, unique=True)),
                ("store", models.CharField(max_length=63)),
                ("agent", models.CharField(max_length=255)),
                ("seq", models.BigIntegerField()),
                ("tool", models.TextField()),
                ("told", models.CharField(max_length=16)),
                ("told_entry", models.BigIntegerField()),
                ("outcome", models.CharField(max_length=16)),
                ("reason", models.TextField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("written", "Written"),
                            ("withdrawn", "Withdrawn"),
                            ("refused", "Refused"),
                        ],
                        max_length=16,
                    ),
                ),
                ("why", models.TextField(blank=True)),
                ("username", models.CharField(max_length=150)),
                ("actor", models.CharField(max_length=200)),
                ("content_digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("next_try_at", models.DateTimeField(null=True)),
                ("attempts", models.IntegerField(default=0)),
                ("entry_number", models.BigIntegerField(null=True)),
                ("turn_seq", models.BigIntegerField(null=True)),
                ("was_read", models.CharField(blank=True, max_length=8)),
            ],
            options={
                "db_table": "console_correction",
            },
        ),
        migrations.CreateModel(
            name="HandOver",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("handover_id", models.CharField(max_length=64, unique=True)),
                ("username", models.CharField(max_length=150)),
                ("text", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("dismissed_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "console_hand_over",
            },
        ),
        migrations.AlterField(
            model_name="incident",
            name="verdict",
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, to="console.storedverdict"),
        ),
        migrations.AddIndex(
            model_name="note",
            index=models.Index(
                condition=models.Q(("look_again_at__isnull", False)), fields=["look_again_at"], name="note_look_again"
            ),
        ),
        migrations.AddField(
            model_name="claim",
            name="by",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name="correction",
            name="by",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name="incident",
            name="correction",
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, to="console.correction"),
        ),
        migrations.AddConstraint(
            model_name="incident",
            constraint=models.CheckConstraint(
                condition=models.Q(("verdict__isnull", False), ("correction__isnull", False), _connector="XOR"),
                name="incident_has_one_cause",
            ),
        ),
        migrations.AddField(
            model_name="handover",
            name="by",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name="handover",
            name="to",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name="claim",
            name="hand_over",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="claims", to="console.handover"
            ),
        ),
        migrations.AddIndex(
            model_name="correction",
            index=models.Index(fields=["store", "agent", "seq", "-id"], name="correction_by_action"),
        ),
        migrations.AddIndex(
            model_name="correction",
            index=models.Index(condition=models.Q(("state", "waiting")), fields=["next_try_at"], name="correction_due"),
        ),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "waiting")),
                fields=("store", "agent", "seq"),
                name="correction_one_waiting_per_action",
            ),
        ),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["waiting", "written", "withdrawn", "refused"])), name="correction_state_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="correction",
            constraint=models.CheckConstraint(
                condition=models.Q(("outcome__in", ["done", "failed", "unknown"])), name="correction_outcome_known"
            ),
        ),
        migrations.AddIndex(
            model_name="handover",
            index=models.Index(condition=models.Q(("dismissed_at__isnull", True)), fields=["to"], name="hand_over_undismissed"),
        ),
        migrations.AddIndex(
            model_name="claim",
            index=models.Index(condition=models.Q(("ended_at__isnull", True)), fields=["by"], name="claim_by_person"),
        ),
        migrations.AddConstraint(
            model_name="claim",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at__isnull", True)), fields=("store", "agent", "seq"), name="claim_one_per_action"
            ),
        ),
        migrations.AddConstraint(
            model_name="claim",
            constraint=models.CheckConstraint(
                condition=models.Q(("ended__in", ["", "released", "timed_out", "taken_over", "handed_over", "closed"])),
                name="claim_end_known",
            ),
        ),
    ]
