"""The incident replayed: the naive lock and the protected path side by side, under the same faults."""
