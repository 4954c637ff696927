"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Condition = Annotated[
    str | None,
    typer.Option(
        help="What a model of diffusers is given beside the image: zeros (the default), normal, "
        "or an npz or safetensors file with tensors by name."
    ),
]
DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Images (digits, a file, a folder, hub:NAME), rank-one:GEOMETRY:RANK, "
        "rank-one:BASIS:INDEX, or sphere:GEOMETRY:preferred|avoided. RANK 0 is the most avoided "
        "eigenvector, -1 the most preferred.",
    ),
]
Device = Annotated[str, typer.Option(help="Where networks run: cpu, cuda, mps.")]
DropVariance = Annotated[
    bool | None,
    typer.Option(
        "--drop-variance", help="Take the first half of the channels of a learned variance."
    ),
]
FamilyArgument = Annotated[
    str,
    typer.Argument(
        help="A name from `sads families`, FILE.py:FUNCTION that builds a network, or "
        "diffusers:PATH with a config.json or the folder of a model."
    ),
]
GuidanceScale = Annotated[
    float | None,
    typer.Option(help="Guide a model of diffusers: 1 is its condition, 0 is none."),
]
Layout = Annotated[
    str | None,
    typer.Option(
        help="Axes of the array in a file of images: NCHW, NHWC, CHW, HWC, NHW, HW; NL or NCL for "
        "lines; else found out from its sizes."
    ),
]
Networks = Annotated[int, typer.Option(help="Random networks to draw for a geometry.", min=1)]
NewFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; else a new one below out/.")
]
NetworkOptions = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", help="Option of the network, KEY=VALUE; repeatable."),
]
Prediction = Annotated[
    str | None,
    typer.Option(
        help="What the network predicts: epsilon, score, x0, v, flow or edm; else what the "
        "scheduler beside a model of diffusers says, or epsilon."
    ),
]
WithReport = Annotated[
    bool, typer.Option("--report", help="Also write report.html, a page to explore.")
]
Resize = Annotated[
    bool, typer.Option("--resize", help="Resize, crop and recolour images to the shape.")
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Noise schedule: linear, scaled-linear, cosine, edm, ve or flow; else that of the "
        "scheduler beside a model of diffusers, or linear."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=2**64 - 1)]
Shape = Annotated[
    str | None, typer.Option(help="Shape of the data, such as 1x16x16; else the preset's.")
]
ValueRange = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH",
        help="Values of black and white in images, such as 0,255; else understood from the type "
        "and the values.",
    ),
]
