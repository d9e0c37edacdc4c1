"""Policies of tools, resolvers and their secrets, what was asked and found, incidents; a decision may be a resolver's."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0003_known_counts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Pace",
            fields=[
                ("name", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("next_at", models.DateTimeField()),
            ],
            options={
                "db_table": "console_pace",
            },
        ),
        migrations.AddField(
            model_name="decision",
            name="evidence_id",
            field=models.CharField(blank=True, db_default="", default="", max_length=40),
        ),
        migrations.AlterField(
            model_name="decision",
            name="by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.CreateModel(
            name="Inquiry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("store", models.CharField(max_length=63)),
                ("agent", models.CharField(max_length=255)),
                ("seq", models.BigIntegerField()),
                ("tool", models.TextField()),
                ("due_at", models.DateTimeField(null=True)),
                ("queued_until", models.DateTimeField(null=True)),
                ("asking_until", models.DateTimeField(null=True)),
                ("asking_token", models.CharField(blank=True, max_length=32)),
                ("resolver", models.CharField(blank=True, max_length=63)),
                ("asked_for", models.CharField(blank=True, max_length=150)),
                ("first_asked_at", models.DateTimeField(null=True)),
                ("asked", models.PositiveIntegerField(default=0)),
                ("misses", models.PositiveIntegerField(default=0)),
                ("problem", models.TextField(blank=True)),
                ("first_holder", models.TextField(blank=True)),
                ("lost_at", models.DateTimeField(null=True)),
                ("given_up_at", models.DateTimeField(null=True)),
                ("recheck_done", models.CharField(blank=True, max_length=64)),
                ("recheck_of", models.CharField(blank=True, max_length=64)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "db_table": "console_inquiry",
                "indexes": [
                    models.Index(condition=models.Q(("due_at__isnull", False)), fields=["due_at"], name="inquiry_due"),
                    models.Index(condition=models.Q(("asking_until__isnull", False)), fields=["resolver"], name="inquiry_asking"),
                ],
                "constraints": [models.UniqueConstraint(fields=("store", "agent", "seq"), name="inquiry_once")],
            },
        ),
        migrations.CreateModel(
            name="Secret",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63)),
                ("field", models.CharField(max_length=63)),
                ("ciphertext", models.BinaryField()),
                ("username", models.CharField(max_length=150)),
                ("set_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "db_table": "console_secret",
                "constraints": [models.UniqueConstraint(fields=("name", "field"), name="secret_once")],
            },
        ),
        migrations.CreateModel(
            name="StoredVerdict",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("resolver", models.CharField(max_length=63)),
                ("version", models.PositiveIntegerField()),
                ("policy_version", models.PositiveIntegerField()),
                ("outcome", models.CharField(max_length=8)),
                ("grade", models.CharField(blank=True, max_length=8)),
                ("resolution", models.TextField()),
                ("evidence", models.TextField()),
                ("is_answered", models.BooleanField(default=True)),
                ("is_negative", models.BooleanField(default=False)),
                ("asked_at", models.DateTimeField()),
                ("check_again_at", models.DateTimeField(null=True)),
                ("has_given_up", models.BooleanField(default=False)),
                ("asked_for", models.CharField(blank=True, max_length=150)),
                ("claim", models.CharField(max_length=64)),
                (
                    "inquiry",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="verdicts", to="console.inquiry"),
                ),
            ],
            options={
                "db_table": "console_verdict",
            },
        ),
        migrations.CreateModel(
            name="Incident",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("store", models.CharField(max_length=63)),
                ("agent", models.CharField(max_length=255)),
                ("seq", models.BigIntegerField()),
                ("tool", models.TextField()),
                ("text", models.TextField()),
                ("opened_at", models.DateTimeField(auto_now_add=True)),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_by", models.CharField(blank=True, max_length=150)),
                ("closing_note", models.TextField(blank=True)),
                ("verdict", models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, to="console.storedverdict")),
            ],
            options={
                "db_table": "console_incident",
            },
        ),
        migrations.CreateModel(
            name="Definition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63)),
                ("version", models.PositiveIntegerField()),
                ("kind", models.CharField(max_length=20)),
                ("options", models.TextField()),
                ("per_minute", models.PositiveIntegerField(default=60)),
                ("at_once", models.PositiveIntegerField(default=4)),
                ("is_enabled", models.BooleanField(default=True)),
                ("username", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "by",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
            ],
            options={
                "db_table": "console_definition",
                "constraints": [models.UniqueConstraint(fields=("name", "version"), name="definition_version")],
            },
        ),
        migrations.CreateModel(
            name="Policy",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tool", models.TextField()),
                ("version", models.PositiveIntegerField()),
                ("resolver", models.CharField(blank=True, max_length=63)),
                (
                    "mode",
                    models.CharField(choices=[("propose", "Propose"), ("settle", "Settle")], default="propose", max_length=8),
                ),
                ("accepts_strong", models.BooleanField(default=False)),
                ("tool_timeout_s", models.PositiveIntegerField(default=300)),
                ("settle_window_s", models.PositiveIntegerField(default=3600)),
                ("retention_s", models.PositiveIntegerField(default=2592000)),
                ("give_up_after_s", models.PositiveIntegerField(default=259200)),
                ("recipient", models.CharField(blank=True, max_length=200)),
                ("amount", models.CharField(blank=True, max_length=200)),
                ("currency", models.CharField(blank=True, max_length=200)),
                ("reference", models.CharField(blank=True, max_length=200)),
                ("is_minor", models.BooleanField(default=False)),
                (
                    "moves_money",
                    models.CharField(blank=True, choices=[("", "By Name"), ("yes", "Yes"), ("no", "No")], max_length=3),
                ),
                (
                    "is_irreversible",
                    models.CharField(blank=True, choices=[("", "By Name"), ("yes", "Yes"), ("no", "No")], max_length=3),
                ),
                ("compensation", models.TextField(blank=True)),
                ("username", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "by",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
            ],
            options={
                "db_table": "console_policy",
                "constraints": [
                    models.UniqueConstraint(fields=("tool", "version"), name="policy_version"),
                    models.CheckConstraint(condition=models.Q(("mode__in", ["propose", "settle"])), name="policy_mode_known"),
                ],
            },
        ),
        migrations.AddIndex(
            model_name="storedverdict",
            index=models.Index(fields=["inquiry", "id"], name="verdict_by_inquiry"),
        ),
        migrations.AddConstraint(
            model_name="incident",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at__isnull", True)), fields=("store", "agent", "seq"), name="incident_one_open"
            ),
        ),
    ]
