"""Who was seen to hold an agent, and ends that were seen and are not ours."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("console", "0011_people")]

    operations = [
        migrations.CreateModel(
            name="Observation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("store", models.CharField(max_length=63)),
                ("agent", models.CharField(max_length=255)),
                ("holder", models.TextField()),
                ("holder_digest", models.CharField(max_length=64)),
                ("lowest_epoch", models.BigIntegerField()),
                ("highest_epoch", models.BigIntegerField()),
                ("first_seen_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                (
                    "state",
                    models.CharField(choices=[("live", "Live"), ("expired", "Expired"), ("released", "Released")], max_length=16),
                ),
                ("silent_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "console_observation",
                "constraints": [
                    models.UniqueConstraint(fields=("store", "agent", "holder_digest"), name="observation_one_per_holder"),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["live", "expired", "released"])), name="observation_state_known"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SeenEnd",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("store", models.CharField(max_length=63)),
                ("agent", models.CharField(max_length=255)),
                ("seq", models.BigIntegerField()),
                ("tool", models.TextField()),
                ("status", models.CharField(max_length=16)),
                ("written_epoch", models.BigIntegerField()),
                ("ended_at", models.BigIntegerField(null=True)),
                ("first_seen_at", models.DateTimeField()),
                ("entry_number", models.BigIntegerField(null=True)),
            ],
            options={
                "db_table": "console_seen_end",
                "indexes": [
                    models.Index(condition=models.Q(("entry_number__isnull", True)), fields=["id"], name="seen_end_without_entry")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("store", "agent", "seq", "status", "written_epoch"), name="seen_end_once")
                ],
            },
        ),
    ]
