"""What was last known of each store."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0002_decision_ids_and_what_was_asked"),
    ]

    operations = [
        migrations.CreateModel(
            name="KnownCount",
            fields=[
                ("store", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("in_doubt", models.IntegerField()),
                ("is_capped", models.BooleanField()),
                ("counted_at", models.DateTimeField()),
            ],
            options={
                "db_table": "console_known_count",
            },
        ),
    ]
