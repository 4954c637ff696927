"""The page of the atlas: a table, the picture, and what its numbers say.

Every sentence is made from the entries that are there. What the paper says of small networks is
asked of each of them in three numbers: the rank correlation of energy and frequency, how fine the
two outermost directions are, and how much of the most preferred one lies at the border.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sads.atlas.entry import RIM, Entry
from sads.environment import gigabytes
from sads.errors import OutputError, counted, printable
from sads.estimates import Estimate
from sads.files import replacing
from sads.from_json import infinite_again
from sads.shapes import format_shape
from sads.tables import Row, markdown, titled
from sads.untrusted import open_regular

PICTURE = "atlas.png"
PAGE = "README.md"
TITLE = "# Atlas: the geometries of networks that people use"
KINDS = ("U-Net", "transformer")
FALLING = -0.5  # rank correlation from which on energy is said to fall with frequency
BOUNDED = (
    " Where there is no effective rank there is no matrix either, and eigenvalues are bounds: the "
    "largest is at least that, the smallest at most."
)


@dataclass(frozen=True)
class Made(Row):
    """How an entry was made, and its spectrum in numbers."""

    network: str
    kind: str
    parameters: str
    data: str
    networks: str
    minutes: float
    memory: str
    processor: float | None = titled("processor minutes")
    largest: Estimate = titled("largest λ / mean")
    smallest: Estimate = titled("smallest λ / mean")
    effective: float | None = titled("effective rank / D")
    error: str = titled("whitened error")


@dataclass(frozen=True)
class Seen(Row):
    """What the paper says of small networks, asked of an entry."""

    network: str
    kind: str
    smooth: Estimate = titled("energy of the mean / mean energy")
    fine: Estimate = titled("of the finest")
    falls: float = titled("rank correlation with frequency")
    frequency: str = titled("frequency of avoided, preferred")
    rim: str = titled("at the border: avoided, preferred")
    edge: Estimate = titled("energy of border pixels / mean")


def made(entry: Entry) -> Made:
    """The row of an entry."""
    unit = entry.mean
    return Made(
        network=entry.title,
        kind=entry.kind,
        parameters=f"{entry.parameters / 1e6:,.0f} M",
        data=format_shape(entry.shape),
        networks="exact" if entry.exact else f"{entry.networks:,}",
        minutes=entry.seconds / 60,
        processor=None if entry.processor_seconds is None else entry.processor_seconds / 60,
        memory=gigabytes(entry.memory),
        largest=_in_units(entry.largest, unit),
        smallest=_in_units(entry.smallest, unit),
        effective=None
        if entry.effective_rank is None
        else entry.effective_rank / math.prod(entry.shape),
        error="" if entry.whitened_error is None else f"{entry.whitened_error:.1%}",
    )


def seen(entry: Entry) -> Seen:
    """What is asked of an entry."""
    from scipy.stats import spearmanr  # slow to import, and most reports are of something else

    frequency, border = entry.frequency, entry.border
    return Seen(
        network=entry.title,
        kind=entry.kind,
        smooth=Estimate(frequency.values[0], frequency.errors[0]),
        fine=Estimate(frequency.values[-1], frequency.errors[-1]),
        falls=float(spearmanr(frequency.places, frequency.values).statistic),
        frequency=f"{entry.avoided.frequency:.2f}, "
        + (f"{entry.preferred.frequency:.2f}" if entry.smallest > 0 else "?"),
        rim=f"{entry.avoided.border:.0%}, "
        + (f"{entry.preferred.border:.0%}" if entry.smallest > 0 else "?"),
        edge=Estimate(border.values[0], border.errors[0]),
    )


def findings(entries: Sequence[Entry]) -> list[str]:
    """What the numbers say, one sentence each, with how many networks they hold for."""
    rows = {entry.name: seen(entry) for entry in entries}
    area = 1 - (1 - 2 * RIM) ** 2

    def count(kind: str, holds: dict[str, bool | None]) -> str:
        of_kind = [e for e in entries if e.kind == kind]
        yes = [e for e in of_kind if holds[e.name]]
        named = {
            "not": [e.title for e in of_kind if holds[e.name] is False and yes],
            "not known for": [e.title for e in of_kind if holds[e.name] is None],
        }
        others = "; ".join(f"{what} {', '.join(who)}" for what, who in named.items() if who)
        return f"{len(yes)} of {len(of_kind)} {kind}s" + (f" ({others})" if others else "")

    asked: dict[str, dict[str, bool | None]] = {
        "Smooth images are avoided: the mean of an image has more than the mean energy": {
            n: _above(r.smooth, 1) for n, r in rows.items()
        },
        f"Energy falls with frequency (rank correlation below {FALLING:g})": {
            n: r.falls < FALLING for n, r in rows.items()
        },
        "The most preferred direction is finer than the most avoided one": {
            e.name: e.preferred.frequency > e.avoided.frequency if e.smallest > 0 else None
            for e in entries
        },
        f"The most preferred direction lies at the border (more of it than the {area:.0%} of the "
        "pixels that are there)": {
            e.name: e.preferred.border > area if e.smallest > 0 else None for e in entries
        },
        "Pixels at the border have less than the mean energy, by more than two errors": {
            n: _above(Estimate(-r.edge, r.edge.error), -1) for n, r in rows.items()
        },
    }
    present = [kind for kind in KINDS if any(e.kind == kind for e in entries)]
    return [
        f"{claim}: {', '.join(count(kind, holds) for kind in present)}."
        for claim, holds in asked.items()
    ]


def contrast(entries: Sequence[Entry]) -> list[str]:
    """How U-Nets and transformers differ, in ranges over the networks of each kind."""
    lines = []
    for kind in KINDS:
        of_kind = [entry for entry in entries if entry.kind == kind]
        if not of_kind:
            continue
        ratios = [e.frequency.values[0] / e.frequency.values[-1] for e in of_kind]
        conditions = [e.largest / e.smallest for e in of_kind if e.smallest > 0]
        edges = [e.border.values[0] for e in of_kind]
        known = [e for e in of_kind if e.effective_rank is not None]
        ranks = [(e.effective_rank or 0) / math.prod(e.shape) for e in known]
        lines.append(
            f"**{kind}s** ({len(of_kind)}): energy of the mean over that of the finest detail "
            f"{_range(ratios)}, largest over smallest eigenvalue {_range(conditions)}, pixels at "
            f"the border {_range(edges)} of the mean energy, effective rank "
            f"{_range([100 * r for r in ranks])} % of the dimension."
        )
    return lines


def check_place(folder: Path, names: Sequence[str]) -> None:
    """One line if a page or a picture is there that no atlas wrote.

    Pictures are ours where there is an entry, which is written before them.
    """
    page = folder / PAGE
    taken = [page] if os.path.lexists(page) and not _is_page(page) else []
    there = [name for name in names if os.path.lexists(folder / f"{name}.json")]
    pictures = [PICTURE] if not there else []
    pictures += [f"{name}.png" for name in names if name not in there]
    taken += [folder / name for name in pictures if os.path.lexists(folder / name)]
    if taken:
        raise OutputError(
            f"{printable(taken[0])} is not of an atlas, and nothing of others is overwritten; "
            "choose another --out, or move it away"
        )


def _is_page(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(TITLE)) == TITLE.encode()
    except OSError:
        return False


def write_page(folder: Path, entries: Sequence[Entry], command: str) -> Path:
    """Write `README.md`."""
    lines = [
        TITLE,
        "",
        f"![Directions, spectra and energies of {counted(len(entries), 'network')}]({PICTURE})",
        "",
        "*Untrained, at `x = 0`, each under the noise levels and the prediction that it was "
        "published with. Directions are shown in one channel; bands are two standard errors; "
        "energies are in units of the mean eigenvalue, so that 1 is no preference; what has no "
        "known error is pale.*",
        "",
        "```sh",
        command,
        "```",
        "",
        "computes what is missing and goes on where it was; the geometries themselves (up to a "
        "gigabyte each) stay in `work/`. `sads atlas NAME --networks N` adds networks to one.",
        "",
        *markdown([made(entry) for entry in entries]),
        "",
        "Eigenvalues are of the networks drawn so far: with few of them, the smallest come out too "
        "small and the largest too large (the errors say how much where they are known; where they "
        "are not, curves are pale). An eigenvalue of 0 is not resolved: it is below 10⁻¹² of the "
        "largest, by rounding or for want of networks, and its direction is not known."
        + (BOUNDED if any(entry.bounded for entry in entries) else ""),
        "",
        "## What distinguishes U-Nets from transformers",
        "",
        *(f"- {line}" for line in contrast(entries)),
        "",
        "## Where the paper's claims on small networks hold at this size",
        "",
        *(f"- {line}" for line in findings(entries)),
        "",
        *markdown([seen(entry) for entry in entries]),
        "",
        "Frequencies are means over the DCT (0 is constant, 1 the finest checkerboard), *at the "
        f"border* is within an eighth of the side ({1 - (1 - 2 * RIM) ** 2:.0%} of the pixels).",
        "",
        "## Networks",
        "",
        *(
            f"- **{entry.title}** (`atlas:{entry.name}`, `{entry.model}`): {entry.source}"
            + (f"; {entry.like}" if entry.like else "")
            + f". Predicts {entry.prediction} under {_words(entry)}."
            + "".join(f" {note[:1].upper()}{note[1:]}." for note in entry.notes)
            for entry in entries
        ),
        "",
        "Layers are drawn as the constructors of `diffusers` draw them, by PyTorch's defaults, "
        "and conditions are zeros. U-ViT is missing: the `UVit2DModel` of `diffusers` predicts "
        "tokens, not scores.",
        "",
    ]
    path = folder / PAGE
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
    return path


def _in_units(value: Estimate, unit: float) -> Estimate:
    """An estimate in other units."""
    return Estimate(value / unit, infinite_again(value).error / unit)


def _above(value: Estimate, limit: float) -> bool | None:
    """Is a number above a limit, or below it, by more than two errors? None if neither."""
    if not math.isfinite(value.error) or abs(value - limit) <= 2 * value.error:
        return None
    return value > limit


def _words(entry: Entry) -> str:
    return ", ".join(f"{key} {value}" for key, value in entry.schedule.items())


def _range(values: Sequence[float]) -> str:
    """
    >>> _range([3.14159, 2.0]), _range([12345.0])
    ('2 to 3.14', '12,300')
    """
    if not values:
        return "not known"
    low, high = (_digits(v) for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _digits(value: float) -> str:
    if value >= 1e5:
        return f"{value:.2g}"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 1000 else f"{value:.3g}"
