"""The suite's own servers and processes: private, thrown away, and gone even when the run is killed."""
