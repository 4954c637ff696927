"""A training run on a page: loss, samples, distances beside baselines, the anatomy of the error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from sads.errors import counted
from sads.estimates import Estimate
from sads.markup import facts, table
from sads.pipeline import Evaluation
from sads.report.distances import rows_of, statements_of
from sads.report.images import image_data
from sads.report.page import Section, pack, render
from sads.shapes import format_shape
from sads.tables import cells, titles

MAX_PIXELS = 1 << 20  # numbers of samples that are shown


@dataclass(frozen=True)
class RunFacts:
    """What is needed of a `run.json`."""

    command: str
    status: str
    family: Mapping[str, Any]
    data: Mapping[str, Any]
    options: Mapping[str, Any]
    rotation: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] | None = None
    seconds: float | None = None
    layers: str | None = None
    parameters: int | None = None
    loss: Estimate | None = None
    loss_updates: int | None = None


@dataclass(frozen=True)
class EvaluatedFacts:
    """What is needed of an `evaluate.json`."""

    command: str
    data: Mapping[str, Any]
    evaluation: Evaluation


@dataclass(frozen=True, eq=False)
class TrainingSource:
    """What the folder of `sads train`, `sample` and `evaluate` holds: any of these."""

    name: str
    run: RunFacts | None = None
    losses: Tensor | None = None  # of every update
    samples: Tensor | None = None  # (N, *shape)
    sampled: str | None = None  # the command that drew them
    evaluated: EvaluatedFacts | None = None
    anatomy: Markup | None = None  # the picture of `sads evaluate --anatomy`


def training_section(source: TrainingSource, id: str) -> Section:
    """What a page says of a training run, as far as it has come."""
    evaluation = None if source.evaluated is None else source.evaluated.evaluation
    rows = [] if evaluation is None else rows_of(evaluation)
    shown = titles(rows)
    images = None if source.samples is None else few_images(source.samples)
    commands = {
        "train": source.run and source.run.command,
        "sample": source.sampled,
        "evaluate": source.evaluated and source.evaluated.command,
    }
    html = render(
        "training.html",
        id=id,
        facts=facts({} if source.run is None else run_rows(source.run)),
        status=source.run and source.run.status,
        data=source.run and source.run.data.get("statement"),
        losses=source.losses is not None and len(source.losses) > 0,
        distances=table(list(shown.values()), (cells(row, list(shown)) for row in rows)),
        statements=[] if evaluation is None else statements_of(evaluation),
        against="" if source.evaluated is None else source.evaluated.data.get("statement", ""),
        evaluated=evaluation is not None,
        denoising=None if evaluation is None else evaluation.denoising,
        denoising_facts=facts(denoising_rows(evaluation)),
        anatomy=source.anatomy,
        num_samples=0 if source.samples is None else len(source.samples),
        num_shown=0 if images is None else images["count"],
        commands={name: line for name, line in commands.items() if line},
    )
    data: dict[str, Any] = {
        "losses": None if source.losses is None else pack(source.losses.float().numpy()),
        "images": images,
        "denoising": None if evaluation is None else evaluation.denoising,
        "distances": [
            {"name": row.name, "sw2": row.sw2, "msw2": row.msw2, "along": row.along} for row in rows
        ],
    }
    return Section("training", id, source.name, html, data)


def few_images(samples: Tensor) -> dict[str, Any]:
    """As many samples as a page can hold, with the values that they have."""
    most = max(1, MAX_PIXELS // max(1, int(np.prod(samples.shape[1:]))))
    return image_data(samples[:most])


def denoising_rows(evaluation: Evaluation | None) -> dict[str, object]:
    """The error of a model on held-out data as names and values."""
    if evaluation is None or (wrong := evaluation.denoising) is None:
        return {}
    return {
        "loss": wrong.loss,
        f"along the data ({counted(wrong.num_along, 'component')})": wrong.along,
        "off the data": wrong.off,
        "best linear prediction": f"{wrong.linear:.4g}",
    }


def run_rows(run: RunFacts) -> dict[str, object]:
    """A run as names and values; what it does not say is left out."""
    family, options = run.family, run.options
    rows = {
        "family": family.get("name"),
        "shape": format_shape(family.get("shape") or ()),
        "parameters": run.parameters and f"{run.parameters:,}",
        "prediction": family.get("prediction"),
        "rotation": run.rotation and run.rotation.get("kind"),
        "updates": options.get("iterations"),
        "batch size": options.get("batch_size"),
        "learning rate": options.get("learning_rate"),
        "seed": options.get("seed"),
        f"loss (last {counted(run.loss_updates or 0, 'update')})": run.loss,
        "seconds": run.seconds,
        "layers": run.layers,
        "status": run.status,
    }
    return {name: value for name, value in rows.items() if value not in (None, "")}
