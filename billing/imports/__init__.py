"""Files in: streamed, idempotent, and never stopped by one bad row."""
