"""What a customer gets to read, made from stored rows only."""
