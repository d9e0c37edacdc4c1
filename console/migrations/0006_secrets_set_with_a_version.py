from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("console", "0005_hooks")]

    operations = [
        # The default of the column stays: a process of the version before goes on inserting without it.
        migrations.AddField("definition", "secrets_set", models.TextField(blank=True, db_default="", default="")),
    ]
