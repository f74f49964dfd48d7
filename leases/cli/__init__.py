"""The verbs of `manage.py leases`, one per file."""
