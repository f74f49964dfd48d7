"""The demonstration: one period billed by real processes, then billed again, and what came of it counted."""
