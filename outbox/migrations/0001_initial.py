import django.db.models.deletion
import django.db.models.functions.comparison
import django.db.models.functions.datetime
from django.db import migrations, models

from outbox import storage_sql


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='DatabaseIdentity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('system_identifier', models.TextField()),
                ('timeline', models.BigIntegerField()),
                ('database_oid', models.BigIntegerField(help_text='Another one after a copy by CREATE DATABASE ... TEMPLATE.')),
                ('table_oid', models.BigIntegerField(help_text="This table's own; another one after a restore by pg_restore.")),
                ('stored_at', models.DateTimeField(help_text='Database time when it was accepted.')),
            ],
            options={
                'verbose_name_plural': 'database identity',
                'default_permissions': ('view',),
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='outbox_one_database_identity')],
            },
        ),
        migrations.CreateModel(
            name='Message',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('channel', models.TextField(help_text='Which of OUTBOX_CHANNELS sends it.')),
                ('dedupe_key', models.TextField(help_text='Names what this message tells about; there is one message per key, for ever.')),
                ('digest', models.TextField(help_text='SHA-256 of channel and content as the caller gave them; outlives pruning.')),
                ('payload', models.JSONField(help_text='What is handed over, rendered at publish; NULL once pruned.', null=True)),
                ('state', models.TextField(choices=[('pending', 'pending'), ('claimed', 'claimed'), ('sending', 'sending'), ('sent', 'sent'), ('in_doubt', 'in doubt'), ('dead', 'dead'), ('cancelled', 'cancelled')], db_default='pending', default='pending')),
                ('available_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), help_text='Not sent before.')),
                ('deadline_at', models.DateTimeField(help_text='Not sent after.', null=True)),
                ('attempts', models.IntegerField(db_default=0, default=0, help_text='How often it was about to be handed over.')),
                ('first_attempt_at', models.DateTimeField(null=True)),
                ('resend_until', models.DateTimeField(help_text="An attempt's outcome is unknown; until then its receiver recognises a repetition.", null=True)),
                ('claim', models.BigIntegerField(help_text='Number of the claim that last took it; higher is later.', null=True)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('drainer', models.TextField(db_default='', default='', help_text='Who claimed it last, for people.')),
                ('last_error', models.TextField(db_default='', default='')),
                ('sent_at', models.DateTimeField(null=True)),
                ('provider_id', models.TextField(db_default='', default='', help_text="The receiver's words on accepting it.")),
                ('refused', models.JSONField(db_default={}, default=dict, help_text='Recipients the receiver refused, with its words.')),
                ('history', models.JSONField(db_default=[], default=list, help_text='Attempts that were not accepted, oldest first.')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'permissions': [('decide_message', 'Can decide about messages that need a person')],
                'default_permissions': ('view',),
                'indexes': [models.Index(models.F('channel'), models.F('available_at'), models.F('id'), condition=models.Q(('state', 'pending')), name='outbox_message_pending'), models.Index(models.F('claimed_until'), condition=models.Q(('state__in', ['claimed', 'sending'])), name='outbox_message_held'), models.Index(django.db.models.functions.comparison.Least('deadline_at', 'resend_until'), condition=models.Q(('state', 'pending'), models.Q(('deadline_at__isnull', False), ('resend_until__isnull', False), _connector='OR')), name='outbox_message_limited'), models.Index(models.F('channel'), models.F('available_at'), condition=models.Q(('state', 'pending'), models.Q(('last_error', ''), _negated=True)), name='outbox_message_retrying'), models.Index(models.F('state'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('state__in', ['in_doubt', 'dead', 'cancelled'])), name='outbox_message_parked')],
                'constraints': [models.UniqueConstraint(fields=('dedupe_key',), name='outbox_message_dedupe_key'), models.CheckConstraint(condition=models.Q(('state__in', ['pending', 'claimed', 'sending', 'sent', 'in_doubt', 'dead', 'cancelled'])), name='outbox_message_state_known'), models.CheckConstraint(condition=models.Q(models.Q(('claim__isnull', False), ('claimed_until__isnull', False), ('state__in', ['claimed', 'sending'])), models.Q(models.Q(('state__in', ['claimed', 'sending']), _negated=True), ('claimed_until__isnull', True)), _connector='OR'), name='outbox_message_claim_while_held'), models.CheckConstraint(condition=models.Q(models.Q(('sent_at__isnull', False), ('state', 'sent')), models.Q(models.Q(('state', 'sent'), _negated=True), ('sent_at__isnull', True)), _connector='OR'), name='outbox_message_sent_at_if_sent'), models.CheckConstraint(condition=models.Q(('attempts__gte', 0)), name='outbox_message_attempts_not_negative'), models.CheckConstraint(condition=models.Q(('dedupe_key', ''), _negated=True), name='outbox_message_dedupe_key_not_empty'), models.CheckConstraint(condition=models.Q(('payload__isnull', False), ('state__in', ['sent', 'cancelled']), _connector='OR'), name='outbox_message_pruned_only_when_done')],
            },
        ),
        migrations.CreateModel(
            name='Decision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.TextField()),
                ('reason', models.TextField()),
                ('by', models.TextField(help_text='The user, as the admin or the operating system knows them.')),
                ('state_before', models.TextField(choices=[('pending', 'pending'), ('claimed', 'claimed'), ('sending', 'sending'), ('sent', 'sent'), ('in_doubt', 'in doubt'), ('dead', 'dead'), ('cancelled', 'cancelled')])),
                ('state_after', models.TextField(choices=[('pending', 'pending'), ('claimed', 'claimed'), ('sending', 'sending'), ('sent', 'sent'), ('in_doubt', 'in doubt'), ('dead', 'dead'), ('cancelled', 'cancelled')])),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('message', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='decisions', to='outbox.message')),
            ],
            options={
                'default_permissions': ('view',),
            },
        ),
        migrations.RunSQL(*storage_sql.CLAIM_NUMBERS),
        migrations.RunSQL(*storage_sql.STORAGE),
        migrations.RunSQL(*storage_sql.AGES),
        migrations.RunSQL(*storage_sql.FINALITY),
    ]
