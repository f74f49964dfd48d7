"""The workers' locks and leases over time, on both sides, as an SVG picture."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from billing.wording import counted
from project.replay.timeline import Attempt, Timeline

WIDTH, LEFT, RIGHT, TOP, ROW, BAR, GAP = 1180, 90, 20, 70, 24, 16, 70
STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff; color: #222 }
.title { font-size: 15px; font-weight: 600 } text { fill: #222 } .note { fill: #666 } .axis { stroke: #ddd }
.held { fill: #9db7d5 } .issued { fill: #2f6fb0 } .again { fill: #c8102e } .refused { fill: #e8a33d }
.frozen { fill: url(#frozen) } .overlap { fill: none; stroke: #111; stroke-width: 2 }
.killed { stroke: #222; stroke-width: 2 }
"""
LEGEND = (
    ("issued", "issued the invoice"),
    ("held", "worked, came to nothing"),
    ("again", "issued a further invoice"),
    ("refused", "overtaken, and refused"),
    ("frozen", "process frozen"),
)


def draw(sides: Sequence[tuple[str, Timeline]], *, workers: int, ttl_s: float) -> str:
    """Return the SVG: one panel per side, one row per worker; frames mark where two held one customer."""
    seconds = max([1.0, *(_end(side) for _, side in sides)])
    scale = (WIDTH - LEFT - RIGHT) / seconds
    panel = workers * ROW + GAP
    height = TOP + len(sides) * panel
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>Locks and leases of {counted(workers, 'worker')} over time</title><style>{STYLE}</style>",
        '<defs><pattern id="frozen" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#eee"/><rect width="2" height="6" fill="#999"/></pattern></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_legend(),
    ]
    for number, (title, side) in enumerate(sides):
        top = TOP + number * panel + 20
        parts += _panel(title, side, top=top, scale=scale, seconds=seconds, workers=workers, ttl_s=ttl_s)
    parts.append("</svg>")
    return "\n".join(parts)


def _panel(
    title: str, side: Timeline, *, top: float, scale: float, seconds: float, workers: int, ttl_s: float
) -> Iterator[str]:
    yield f'<text class="title" x="{LEFT}" y="{top - 8}">{escape(title)}</text>'
    for worker in range(workers):
        yield f'<text x="{LEFT - 8}" y="{top + worker * ROW + 16}" text-anchor="end">worker {worker + 1}</text>'
    bottom = top + workers * ROW
    step = ttl_s
    while seconds / step > 24:
        step *= 2
    for tick in range(int(seconds / step) + 1):
        x = LEFT + tick * step * scale
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        yield f'<text class="note" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick * step:g} s</text>'

    def bar(kind: str, worker: int, start: float, end: float, about: str, inset: float = 0) -> str:
        start = max(0.0, start)  # what began before the first second would cover the names of the workers
        x, width = LEFT + start * scale, max(1.0, (end - start) * scale)
        y = top + worker * ROW + 4 + inset
        return (
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR - 2 * inset}">'
            f"<title>{escape(about)}</title></rect>"
        )

    first, overtaken = _first_invoices(side), {id(earlier) for earlier, _ in side.overlaps()}
    for attempt in side.attempts:
        kind = _kind(attempt, first, overtaken)
        end = seconds if attempt.end is None else attempt.end
        yield bar(kind, attempt.worker, attempt.start, end, f"customer {attempt.customer}")
    for worker, start, end in side.frozen:
        yield bar("frozen", worker, start, end, "frozen", inset=5)
    for earlier, later in side.overlaps():
        until = min(end for end in (earlier.end, later.end, seconds) if end is not None)
        for attempt in (earlier, later):
            about = f"two holders of customer {attempt.customer}"
            yield bar("overlap", attempt.worker, later.start, max(until, later.start), about)
    for worker, at in side.killed:
        x, y = LEFT + at * scale, top + worker * ROW + 4
        yield f'<path class="killed" d="M{x - 5:.1f} {y + 3} l10 10 m0 -10 l-10 10"><title>killed</title></path>'


def _legend() -> Iterator[str]:
    x = float(LEFT)
    for kind, text in LEGEND:
        yield f'<rect class="{kind}" x="{x}" y="16" width="22" height="12"/><text x="{x + 28}" y="26">{text}</text>'
        x += 190
    yield f'<rect class="overlap" x="{LEFT}" y="40" width="22" height="12"/>'
    yield f'<text x="{LEFT + 28}" y="50">two at one customer</text>'
    yield f'<path class="killed" d="M{LEFT + 196} 41 l10 10 m0 -10 l-10 10"/>'
    yield f'<text x="{LEFT + 218}" y="50">process killed</text>'


def _first_invoices(side: Timeline) -> set[int]:
    found = set()
    for _, attempts in side.by_customer():
        issuing = [attempt for attempt in attempts if attempt.issued_at is not None]
        found |= {id(attempt) for attempt in issuing[:1]}
    return found


def _kind(attempt: Attempt, first: Iterable[int], overtaken: Iterable[int]) -> str:
    if attempt.issued_at is not None:
        return "issued" if id(attempt) in first else "again"
    return "refused" if id(attempt) in overtaken and attempt.was_refused() else "held"


def _end(side: Timeline) -> float:
    moments = [attempt.end if attempt.end is not None else attempt.start for attempt in side.attempts]
    return max([*moments, *(end for _, _, end in side.frozen), 0.0])
