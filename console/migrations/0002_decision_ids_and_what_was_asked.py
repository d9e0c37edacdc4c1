"""One table for the ids of decisions and notes; whether a decision's store was ever asked to write it."""

from django.db import migrations, models

FILL = """
INSERT INTO console_decision_id (id)
SELECT decision_id FROM console_decision UNION SELECT decision_id FROM console_note
ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0001_first"),
    ]

    operations = [
        migrations.CreateModel(
            name="DecisionId",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
            ],
            options={
                "db_table": "console_decision_id",
            },
        ),
        migrations.AddField(
            model_name="decision",
            name="may_be_written",
            # In the database too: a process of the version before inserts rows without it while the new one comes up.
            field=models.BooleanField(default=True, db_default=True),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
