"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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
FamilyArgument = Annotated[
    str, typer.Argument(help="A name from `sads families`, or FILE.py:FUNCTION that builds one.")
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
    str, typer.Option(help="What the network predicts: epsilon, score, x0 or v.")
]
WithReport = Annotated[
    bool, typer.Option("--report", help="Also write report.html, a page to explore.")
]
Resize = Annotated[
    bool, typer.Option("--resize", help="Resize, crop and recolour images to the shape.")
]
Schedule = Annotated[str, typer.Option(help="Noise schedule: linear or cosine.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0)]
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
