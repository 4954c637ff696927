"""From results, in memory or in files, to the sections of a page."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sads.arguments import as_path, check_count, check_type, shown
from sads.errors import InvalidArgumentError, ReportError
from sads.geometry.result import Geometry
from sads.report.alignment import AlignmentSource, alignment_section
from sads.report.atlas import AtlasSource, atlas_section
from sads.report.comparison import Compared, comparison_section
from sads.report.ends import ends_section
from sads.report.geometry import geometry_section
from sads.report.page import Section, check_new, check_ours, check_page_name, make_page, write_page
from sads.report.paper import paper_section
from sads.report.ranking import RankingSource, ranking_section
from sads.report.sources import GeometrySource, Source, read_source
from sads.report.training import TrainingSource, training_section
from sads.tables import distinct

Result = Geometry | Source | str | os.PathLike[str]
SHRINK = "show fewer directions with --directions 200 (max_directions=200 in Python)"


def write_report(
    sources: Iterable[Result] | Result,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    max_directions: int | None = None,
) -> Path:
    """Write results as one HTML file that needs nothing else to be opened.

    Args:
        sources: geometries, or paths of what the commands wrote: a geometry, or the folder of
            `sads geometry`, `align`, `train`, `evaluate`, `reproduce` or `atlas`. Several
            geometries are compared.
        path: of the file, which must not be there yet.
        max_directions: how many directions of a geometry have pictures; all if not given.
    """
    given = _listed(sources)
    if title is not None:
        check_type(title, str, "the title of a report", "give a text")
    if max_directions is not None and check_count("the number of directions", max_directions) < 3:
        raise InvalidArgumentError(f"show at least 3 directions, not {max_directions}")
    path = as_path(path)
    check_page_name(path)
    check_new(path)
    page = _page(given, title, max_directions)
    check_new(path)  # it may have been written while the page was made
    return write_page(page, path, SHRINK)


def renew_report(source: Result, path: Path) -> Path:
    """Write a report in the place of an earlier one, which stays if no new one can be made."""
    check_ours(path)
    return write_page(_page([source], None, None), path, SHRINK)


def _page(sources: Iterable[Result], title: str | None, max_directions: int | None) -> str:
    found = [result for source in sources for result in _read(source)]
    if not found:
        raise ReportError("there is nothing to report: give at least one result")
    whole = [s for s in found if isinstance(s, GeometrySource) and not s.geometry.matrix_free]
    if max_directions is not None and not whole:
        raise InvalidArgumentError(
            "--directions is about geometries with a matrix, and none is in this report; leave it "
            "out"
        )
    sections = make_sections(found, max_directions)
    return make_page(title or _title(sections), sections)


def make_sections(sources: Sequence[Source], max_directions: int | None = None) -> list[Section]:
    """The sections of a page, a comparison first if there is something to compare."""
    sections = []
    compared: list[Compared] = []
    names = iter(distinct(s.geometry.label for s in sources if isinstance(s, GeometrySource)))
    for number, source in enumerate(sources, start=1):
        id = f"s{number}"
        if isinstance(source, GeometrySource):
            geometry, command, name = source.geometry, source.command, next(names)
            compared.append(Compared(geometry, id, name))
            sections.append(
                ends_section(geometry, id, name, command=command)
                if geometry.matrix_free
                else geometry_section(
                    geometry, id, name, command=command, max_directions=max_directions
                )
            )
        elif isinstance(source, AlignmentSource):
            sections.append(alignment_section(source, id))
        elif isinstance(source, RankingSource):
            sections.append(ranking_section(source, id))
        elif isinstance(source, TrainingSource):
            sections.append(training_section(source, id))
        elif isinstance(source, AtlasSource):
            sections.append(atlas_section(source, id))
        else:
            sections.append(paper_section(source, id))
    if len(compared) > 1:
        sections.insert(0, comparison_section(compared, "comparison"))
    titles = distinct(section.title for section in sections)
    return [replace(section, title=title) for section, title in zip(sections, titles, strict=True)]


def _listed(sources: Iterable[Result] | Result) -> list[Result]:
    """Sources as a list, of which there may be one alone."""
    if isinstance(sources, Geometry | str | os.PathLike | Source):
        return [sources]
    if not isinstance(sources, Iterable):
        raise InvalidArgumentError(
            f"a report is made of geometries or paths, got {shown(sources)}; give one or several"
        )
    return list(sources)


def _read(source: Result) -> list[Source]:
    if isinstance(source, Geometry):
        return [GeometrySource(source)]
    if isinstance(source, Source):
        return [source]
    return read_source(as_path(source))


TITLES = {
    "ends": "The geometry of untrained networks",
    "geometry": "The geometry of untrained networks",
    "comparison": "Geometries compared",
    "alignment": "Data in the geometry of a network",
    "ranking": "Networks and rotations for data",
    "training": "A training run",
    "paper": "The paper's claims",
    "atlas": "An atlas of geometries",
}


def _title(sections: Sequence[Section]) -> str:
    return TITLES[sections[0].kind]
