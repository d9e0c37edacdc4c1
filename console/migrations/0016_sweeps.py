from django.db import migrations, models

_FIRST = "INSERT INTO console_sweep (name, ran_at) VALUES ('sweep', statement_timestamp())"


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0015_runs"),
    ]

    operations = [
        migrations.CreateModel(
            name="StoreLook",
            fields=[
                ("store", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("is_up", models.BooleanField()),
                ("looked_at", models.DateTimeField()),
                ("entries", models.BigIntegerField(default=0)),
                ("states", models.TextField(default="{}")),
                ("is_capped", models.BooleanField(default=False)),
            ],
            options={
                "db_table": "console_store_look",
            },
        ),
        migrations.CreateModel(
            name="Sweep",
            fields=[
                ("name", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("ran_at", models.DateTimeField()),
            ],
            options={
                "db_table": "console_sweep",
            },
        ),
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64)),
                ("labels", models.CharField(max_length=400)),
                ("value", models.FloatField()),
            ],
            options={
                "db_table": "console_tally",
                "constraints": [models.UniqueConstraint(fields=("name", "labels"), name="tally_once")],
            },
        ),
        # A minute from here on every page says that no worker was ever started, if none was.
        migrations.RunSQL(_FIRST, migrations.RunSQL.noop),
    ]
