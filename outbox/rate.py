"""No faster than a receiver wants."""

import time


class Rate:
    """Allows so many messages per second, and a second's worth at once after a pause."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._tokens = 1.0
        self._at = time.monotonic()

    def take(self, wanted: int) -> int:
        """How many of `wanted` messages may go now; they count as gone."""
        self._refill()
        allowed = min(wanted, int(self._tokens))
        self._tokens -= allowed
        return allowed

    def wait(self) -> float:
        """Seconds until the next one may go."""
        self._refill()
        return max(0.0, (1.0 - self._tokens) / self._per_second)

    def _refill(self) -> None:
        now = time.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._per_second)
        self._at = now
