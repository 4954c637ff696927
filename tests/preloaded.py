"""What the fork server of `killing.py` imports, and does for the first time, for all its processes.

Nothing here computes with PyTorch: its threads would not be there in a process that is forked.
"""

import contextlib
import gc
import io

import pytest  # noqa: F401
import torch._dynamo
import torch._subclasses.schema_check_mode
import torch.func  # noqa: F401
import typer._adapters
import typer.main
import typer.rich_utils  # noqa: F401
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import sads.cli.align
import sads.cli.evaluate
import sads.cli.geometry
import sads.cli.main
import sads.cli.root
import sads.cli.sample
import sads.experiments.sweep
import sads.geometry.estimate
import sads.geometry.summary
import sads.plots.alignment
import sads.plots.geometry
import sads.plots.training
import sads.report.distances
import sads.report.sources
import sads.rotations.alignment_file

with contextlib.redirect_stdout(io.StringIO()):
    sads.cli.root.command()(["--version"], standalone_mode=False)
figure = Figure()
figure.add_subplot(title="$x_1$", xscale="log", yscale="log")
FigureCanvasAgg(figure).print_png(io.BytesIO())

# What is here stays, in every process: to look through it would copy its memory, too.
gc.collect()
gc.freeze()
