"""Every public name, called wrongly: a typed error of one line, or what was meant.

The tables are complete: a public function that is in neither fails a test.
"""

import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import sads
from sads import theory
from sads.errors import SadsError

NAN, INF = math.nan, math.inf


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, t):
        return self.b(torch.relu(self.a(x + t[:, None, None, None] / 1000)))


@cache
def family():
    return sads.family(Net, shape=(1, 4, 4))


@cache
def geometry():
    return sads.estimate_geometry(family(), 32)


@cache
def model():
    return sads.train(family(), torch.randn(20, 1, 4, 4), iterations=1, batch_size=10)


@cache
def rotation():
    return sads.rotation(geometry(), torch.randn(50, 1, 4, 4), "min")


X = torch.randn(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))
REAL = torch.randn(120, 1, 4, 4, generator=torch.Generator().manual_seed(1))
V = X[0]
META = torch.empty(30, 1, 4, 4, device="meta")
MASKED = np.ma.masked_array(X.numpy(), mask=X.numpy() > 0)
TEXTS, OBJECTS = np.array(["a", "b"]), np.array([object()])
WRONG = [None, "iddpm", [[1.0]], 3, {"x": 1}, TEXTS, OBJECTS, META, MASKED]


def wrong_tensors(name, call):
    return [
        (f"{name} of {type(w).__name__!s} {i}", lambda w=w: call(w)) for i, w in enumerate(WRONG)
    ]


def wrong_counts(name, call, zero=False):
    values = [-1, 1.5, "3", None, NAN, [2], 10**30] + ([] if zero else [0])
    return [(f"{name}={v!r}", lambda v=v: call(v)) for v in values]


def wrong_numbers(name, call):
    return [(f"{name}={v!r}", lambda v=v: call(v)) for v in (NAN, INF, -1.0, 0, "x", [1.0])]


MISUSE = {
    "family": [
        ("shape=16", lambda: sads.family("iddpm", shape=16)),
        ("shape='1x16x16'", lambda: sads.family("iddpm", shape="1x16x16")),
        ("shape=(1.5, 4)", lambda: sads.family("iddpm", shape=(1.5, 4))),
        ("shape=(0, 4, 4)", lambda: sads.family("iddpm", shape=(0, 4, 4))),
        ("shape=()", lambda: sads.family("iddpm", shape=())),
        ("shape of 10**60", lambda: sads.family(Net, shape=(1, 10**30, 10**30))),
        ("no shape", lambda: sads.family(Net)),
        ("None", lambda: sads.family(None)),
        ("a list", lambda: sads.family(["iddpm"])),
        ("a number", lambda: sads.family(3, shape=(1, 4, 4))),
        ("a network", lambda: sads.family(Net(), shape=(1, 4, 4))),
        ("an unknown name", lambda: sads.family("nope")),
        ("an unknown option", lambda: sads.family("iddpm", nope=1)),
        ("an option of a wrong type", lambda: sads.family("iddpm", channels="many")),
        ("schedule='x'", lambda: sads.family("iddpm", schedule="x")),
        (
            "a factory with arguments",
            lambda: sads.family(lambda width: Net(width), shape=(1, 4, 4)).build(),
        ),
        ("a factory of numbers", lambda: sads.family(lambda: 3, shape=(1, 4, 4)).build()),
    ],
    "estimate_geometry": [
        ("None", lambda: sads.estimate_geometry(None)),
        ("a network", lambda: sads.estimate_geometry(Net())),
        ("a factory", lambda: sads.estimate_geometry(Net)),
        ("a list", lambda: sads.estimate_geometry([family()])),
        (
            "a factory with arguments",
            lambda: sads.estimate_geometry(sads.family(lambda w: Net(w), shape=(1, 4, 4))),
        ),
        (
            "a network on meta",
            lambda: sads.estimate_geometry(
                sads.family(lambda: Net().to("meta"), shape=(1, 4, 4)), 16
            ),
        ),
        ("probe='nope'", lambda: sads.estimate_geometry(family(), 16, probe="nope")),
        ("probe=3", lambda: sads.estimate_geometry(family(), 16, probe=3)),
        ("seed=-1", lambda: sads.estimate_geometry(family(), 16, seed=-1)),
        ("seed='a'", lambda: sads.estimate_geometry(family(), 16, seed="a")),
        ("seed=1.5", lambda: sads.estimate_geometry(family(), 16, seed=1.5)),
        ("estimator=None", lambda: sads.estimate_geometry(family(), 16, estimator=None)),
        ("readout='x'", lambda: sads.estimate_geometry(family(), 16, readout="x")),
        ("readout=3", lambda: sads.estimate_geometry(family(), 16, readout=3)),
        ("device='abacus'", lambda: sads.estimate_geometry(family(), 16, device="abacus")),
        ("device=None", lambda: sads.estimate_geometry(family(), 16, device=3.5)),
        ("both", lambda: sads.estimate_geometry(family(), 16, 0.1)),
        (
            "measure=NaN with a matrix",
            lambda: sads.estimate_geometry(family(), 16, measure=X * NAN),
        ),
        (
            "measure=NaN",
            lambda: sads.estimate_geometry(family(), 16, matrix_free=True, measure=X * NAN),
        ),
        *[
            c
            for c in wrong_counts("networks", lambda v: sads.estimate_geometry(family(), v))
            if "None" not in c[0]
        ],
        *[
            c
            for c in wrong_counts(
                "batch_size", lambda v: sads.estimate_geometry(family(), 16, batch_size=v)
            )
            if "None" not in c[0]
        ],
        *wrong_counts(
            "max_networks",
            lambda v: sads.estimate_geometry(family(), tolerance=0.1, max_networks=v),
        ),
        *wrong_counts(
            "first_network", lambda v: sads.estimate_geometry(family(), 16, first_network=v), True
        ),
        *wrong_numbers("tolerance", lambda v: sads.estimate_geometry(family(), tolerance=v)),
    ],
    "Geometry": [
        *wrong_tensors("energy", lambda w: geometry().energy(w)),
        *wrong_tensors("quadratic", lambda w: geometry().quadratic(w)),
        ("energy of NaN", lambda: geometry().energy(torch.full((16,), NAN))),
        *wrong_numbers("tolerance", lambda v: geometry().directions(v)),
        ("merge", lambda: geometry().merge(3)),
        ("save", lambda: geometry().save("/proc/nowhere/g.safetensors")),
        ("save to None", lambda: geometry().save(None)),
        ("save to a name with NUL", lambda: geometry().save("a\0b")),
        ("save a model to a name with NUL", lambda: model().save("a\0b")),
        ("save a rotation to no name", lambda: rotation().save("")),
        ("a checkpoint of no name", lambda: sads.train(family(), X, checkpoint="", batch_size=9)),
    ],
    "Directions": [
        *wrong_counts("preferred", lambda v: geometry().directions().preferred(v)),
        *wrong_counts("avoided", lambda v: geometry().directions().avoided(v)),
        ("select 16 of 16", lambda: geometry().directions().select([0, 16])),
        ("select 10**30", lambda: geometry().directions().select([10**30])),
        ("eigenvalue 16 of 16", lambda: geometry().directions().eigenvalue(16)),
        ("cluster of -17", lambda: geometry().directions().cluster_of(-17)),
    ],
    "probe": [
        ("an unknown name", lambda: sads.probe("nope")),
        ("None", lambda: sads.probe(None)),
        ("no images", lambda: sads.probe("forward")),
        *wrong_tensors("images", lambda w: sads.probe("forward", images=w)),
        *wrong_numbers("width", lambda v: sads.probe("gaussian", width=v)),
        ("a width of zero", lambda: sads.probe("zero", width=1.0)),
        ("images of a Gaussian", lambda: sads.probe("gaussian", images=X)),
    ],
    "rank_one": [
        *wrong_tensors("vector", lambda w: sads.rank_one(w, 3)),
        *wrong_counts("num_samples", lambda v: sads.rank_one(V, v)),
        ("10**12", lambda: sads.rank_one(V, 10**12)),
        ("seed=-1", lambda: sads.rank_one(V, 3, seed=-1)),
        ("zero", lambda: sads.rank_one(torch.zeros(4), 3)),
    ],
    "sphere": [
        *wrong_tensors("vectors", lambda w: sads.sphere(w, 3)),
        *wrong_counts("num_samples", lambda v: sads.sphere(X[:3], v)),
        ("10**12", lambda: sads.sphere(X[:3], 10**12)),
        ("seed='x'", lambda: sads.sphere(X[:3], 3, seed="x")),
    ],
    "write_report": [
        ("nothing", lambda: sads.write_report([], "r.html")),
        ("None", lambda: sads.write_report(None, "r.html")),
        ("a number", lambda: sads.write_report(3, "r.html")),
        ("a list of numbers", lambda: sads.write_report([3], "r.html")),
        ("a path that is not there", lambda: sads.write_report("nowhere", "r.html")),
        ("no path", lambda: sads.write_report(geometry(), None)),
        ("a folder", lambda: sads.write_report(geometry(), "/")),
        ("title=3", lambda: sads.write_report(geometry(), "r.html", title=3)),
        ("few directions", lambda: sads.write_report(geometry(), "r.html", max_directions=2)),
        ("max_directions='x'", lambda: sads.write_report(geometry(), "r", max_directions="x")),
    ],
    "alignment": [
        *wrong_tensors("x", lambda w: sads.alignment(geometry(), w)),
        ("a name", lambda: sads.alignment("iddpm", X)),
        ("a family", lambda: sads.alignment(family(), X)),
        ("integers", lambda: sads.alignment(geometry(), X.int())),
        ("another shape", lambda: sads.alignment(geometry(), torch.randn(5, 1, 5, 5))),
    ],
    "pair": [
        *wrong_tensors("x", lambda w: sads.pair(geometry(), w)),
        ("a name", lambda: sads.pair("iddpm", X)),
    ],
    "rotation": [
        *wrong_tensors("x", lambda w: sads.rotation(geometry(), w, "min")),
        ("a name", lambda: sads.rotation("iddpm", X, "min")),
        ("kind=None", lambda: sads.rotation(geometry(), X, None)),
        ("kind='best'", lambda: sads.rotation(geometry(), X, "best")),
        ("kind=3", lambda: sads.rotation(geometry(), X, 3)),
        ("share:nan", lambda: sads.rotation(geometry(), X, "share:nan")),
        ("random:10**40", lambda: sads.rotation(geometry(), X, f"random:{10**40}")),
    ],
    "Rotation": [
        *wrong_tensors("apply", lambda w: rotation().apply(w)),
        *wrong_tensors("undo", lambda w: rotation().undo(w)),
        ("out", lambda: rotation().apply(X, out=3)),
    ],
    "RotatedDataset": [
        ("a rotation's name", lambda: sads.RotatedDataset([V], "min")[0]),
        ("a number", lambda: sads.RotatedDataset(3, rotation())),
        ("items of text", lambda: sads.RotatedDataset(["a"], rotation())[0]),
    ],
    "rotate_collate": [
        ("a rotation's name", lambda: sads.rotate_collate("min")),
        ("no function", lambda: sads.rotate_collate(rotation(), 3)),
    ],
    "gaussian_skip": [
        *wrong_tensors("x", lambda w: sads.gaussian_skip(family(), w)),
        ("a name", lambda: sads.gaussian_skip("nope", X)),
        ("None", lambda: sads.gaussian_skip(None, X)),
        ("a network", lambda: sads.gaussian_skip(Net(), X)),
        ("NaN", lambda: sads.gaussian_skip(family(), X * NAN)),
        ("one sample", lambda: sads.gaussian_skip(family(), X[:1])),
        ("no samples", lambda: sads.gaussian_skip(family(), X[:0])),
        ("equal samples", lambda: sads.gaussian_skip(family(), X[:1].expand(9, -1, -1, -1))),
        ("another shape", lambda: sads.gaussian_skip(family(), torch.randn(9, 1, 5, 5))),
        *[
            c
            for c in wrong_counts("rank", lambda v: sads.gaussian_skip(family(), X, rank=v))
            if "None" not in c[0]
        ],
    ],
    "train": [
        *wrong_tensors("x", lambda w: sads.train(family(), w)),
        ("a name", lambda: sads.train("nope", X)),
        ("None", lambda: sads.train(None, X)),
        ("a network", lambda: sads.train(Net(), X)),
        ("whole numbers", lambda: sads.train(family(), (X * 100).to(torch.uint8), batch_size=10)),
        ("NaN", lambda: sads.train(family(), X * NAN, batch_size=10)),
        *wrong_counts("iterations", lambda v: sads.train(family(), X, iterations=v, batch_size=10)),
        *wrong_counts("batch_size", lambda v: sads.train(family(), X, iterations=1, batch_size=v)),
        *wrong_counts(
            "checkpoint_every",
            lambda v: sads.train(family(), X, iterations=1, batch_size=10, checkpoint_every=v),
        ),
        *wrong_numbers("learning_rate", lambda v: sads.train(family(), X, learning_rate=v)),
        *wrong_numbers("norm", lambda v: sads.train(family(), X, max_gradient_norm=v)),
        *wrong_numbers("ema_decay", lambda v: sads.train(family(), X, ema_decay=v)),
        ("seed=-1", lambda: sads.train(family(), X, seed=-1)),
        ("seed=None", lambda: sads.train(family(), X, seed=None)),
        ("centre='yes'", lambda: sads.train(family(), X, batch_size=10, centre="yes")),
    ],
    "sample": [
        ("a family", lambda: sads.sample(family(), 3)),
        ("None", lambda: sads.sample(None, 3)),
        *wrong_counts("num_samples", lambda v: sads.sample(model(), v, steps=2)),
        ("10**12", lambda: sads.sample(model(), 10**12, steps=2)),
        *wrong_counts("steps", lambda v: sads.sample(model(), 3, steps=v)),
        *[
            c
            for c in wrong_counts(
                "batch_size", lambda v: sads.sample(model(), 3, steps=2, batch_size=v)
            )
            if "None" not in c[0]
        ],
        ("sampler=None", lambda: sads.sample(model(), 3, sampler=None)),
        ("sampler=[]", lambda: sads.sample(model(), 3, sampler=[])),
        ("seed='x'", lambda: sads.sample(model(), 3, steps=2, seed="x")),
        *[
            (f"clip={clip!r}", lambda clip=clip: sads.sample(model(), 3, steps=2, clip=clip))
            for clip in ("all", 1, (1,), (1, -1), (0, INF), (None, 1), True, X)
        ],
        ("rotation='min'", lambda: sads.sample(model(), 3, steps=2, rotation="min")),
    ],
    "sliced_wasserstein": [
        *wrong_tensors("x", lambda w: sads.sliced_wasserstein(w, X)),
        *wrong_tensors("y", lambda w: sads.sliced_wasserstein(X, w)),
        *[
            c
            for c in wrong_tensors(
                "projections", lambda w: sads.sliced_wasserstein(X, X, projections=w)
            )
            if "NoneType" not in c[0]
        ],
        *[
            c
            for c in wrong_counts(
                "num_projections", lambda v: sads.sliced_wasserstein(X, X, num_projections=v)
            )
            if "None" not in c[0]
        ],
        ("seed=-1", lambda: sads.sliced_wasserstein(X, X, seed=-1)),
        ("10**13", lambda: sads.sliced_wasserstein(X, X, num_projections=10**13)),
    ],
    "sliced_wasserstein_to_gaussian": [
        *wrong_tensors("y", lambda w: sads.sliced_wasserstein_to_gaussian(w, vector=V)),
        *wrong_tensors("vector", lambda w: sads.sliced_wasserstein_to_gaussian(X, vector=w)),
        *wrong_tensors(
            "covariance", lambda w: sads.sliced_wasserstein_to_gaussian(X, covariance=w)
        ),
    ],
    "max_sliced_wasserstein": [
        *wrong_tensors("x", lambda w: sads.max_sliced_wasserstein(w, X)),
        *wrong_counts("num_starts", lambda v: sads.max_sliced_wasserstein(X, X, num_starts=v)),
        *wrong_counts("num_steps", lambda v: sads.max_sliced_wasserstein(X, X, num_steps=v), True),
    ],
    "classify": [
        *wrong_tensors("samples", lambda w: sads.classify(w, X)),
        *wrong_tensors("real", lambda w: sads.classify(X, w)),
        ("labels", lambda: sads.classify(X, X, ["a"] * 30)),
        ("seed=-1", lambda: sads.classify(X, X, seed=-1)),
    ],
    "structure": [
        ("a name", lambda: sads.structure("iddpm")),
        ("None", lambda: sads.structure(None)),
        ("patch_size=0", lambda: sads.structure(geometry(), patch_size=0)),
        ("patch_size='2'", lambda: sads.structure(geometry(), patch_size="2")),
        *wrong_numbers("level", lambda v: sads.structure(geometry(), level=v)),
    ],
    "basis": [
        ("None", lambda: sads.basis(None, (1, 4, 4))),
        ("an unknown name", lambda: sads.basis("nope", (1, 4, 4))),
        ("shape=16", lambda: sads.basis("dct", 16)),
        ("shape=None", lambda: sads.basis("dct", None)),
        ("shape='1x4'", lambda: sads.basis("dct", "1x4")),
        ("shape=(1, -4, 4)", lambda: sads.basis("dct", (1, -4, 4))),
        ("shape=(1, 10**9, 10**9)", lambda: sads.basis("dct", (1, 10**9, 10**9)).vectors),
    ],
    "Schedule": [
        ("None", lambda: sads.Schedule(None)),
        ("levels=0", lambda: sads.Schedule(num_levels=0)),
        ("levels='x'", lambda: sads.Schedule(num_levels="x")),
        ("levels=NaN", lambda: sads.Schedule(num_levels=NAN)),
        ("levels=10**15", lambda: sads.Schedule(num_levels=10**15).betas),
    ],
    "ScoreFamily": [
        ("shape=16", lambda: sads.ScoreFamily(Net, 16)),
        ("prediction", lambda: sads.ScoreFamily(Net, (1, 4, 4), prediction="x")),
        ("a number", lambda: sads.ScoreFamily(3, (1, 4, 4)).build()),
    ],
    "load_geometry": [
        (repr(w), lambda w=w: sads.load_geometry(w)) for w in ("/nowhere", None, 3, V)
    ],
    "load_model": [(repr(w), lambda w=w: sads.load_model(w)) for w in ("/nowhere", None, 3, [])],
    "load_rotation": [(repr(w), lambda w=w: sads.load_rotation(w)) for w in ("/nowhere", None, 3)],
    "load_images": [(repr(w), lambda w=w: sads.load_images(w)) for w in ("/nowhere", None, 3, "")],
    "read_images": [(repr(w), lambda w=w: sads.read_images(w)) for w in ("/nowhere", None, 3, "")],
    "load_labels": [(repr(w), lambda w=w: sads.load_labels(w)) for w in (None, 3)],
    "register_family": [
        ("None", lambda: sads.register_family(None, Net)),
        ("no function", lambda: sads.register_family("x", 3)),
        ("a name twice", lambda: sads.register_family("iddpm", Net)),
    ],
    "register_reader": [
        ("None", lambda: sads.register_reader(None, print)),
        ("no suffix", lambda: sads.register_reader("h5", print)),
        ("no function", lambda: sads.register_reader(".h55", 3)),
    ],
    "register_readout": [
        ("None", lambda: sads.register_readout(None)),
        ("a network", lambda: sads.register_readout(Net)),
    ],
    "register_sampler": [
        ("a name twice", lambda: sads.register_sampler("ddpm", print)),
        ("no function", lambda: sads.register_sampler("xx", 3)),
        ("None", lambda: sads.register_sampler(None, print)),
    ],
    "compare": [
        ("one", lambda: sads.compare(geometry())),
        ("none", lambda: sads.compare()),
        ("a name", lambda: sads.compare(geometry(), "iddpm")),
        ("a tensor", lambda: sads.compare(geometry(), X)),
        ("another shape", lambda: sads.compare(geometry(), sads.estimate_geometry("dit"))),
        ("names", lambda: sads.compare(geometry(), geometry(), names=["one"])),
        ("directions 0", lambda: sads.compare(geometry(), geometry(), directions=0)),
    ],
    "rank": [
        ("no family", lambda: sads.rank(X, [])),
        ("unknown family", lambda: sads.rank(X, ["no such"])),
        ("another shape", lambda: sads.rank(X, [sads.family("cnn", shape=(1, 8, 8))])),
        ("outcome", lambda: sads.rank(X, [family()], outcome="luck")),
        ("predictor", lambda: sads.rank(X, [family()], predictors=["stars"])),
        ("networks 0", lambda: sads.rank(X, [family()], num_networks=0)),
        *wrong_tensors("x", lambda w: sads.rank(w, [family()])),
    ],
    "register_predictor": [
        ("no name", lambda: sads.register_predictor("", lambda prospect: 1.0)),
        ("no function", lambda: sads.register_predictor("mine", 3)),
        ("known", lambda: sads.register_predictor("alpha", lambda prospect: 1.0)),
    ],
    "measure_anatomy": [
        ("no model", lambda: sads.measure_anatomy(family(), X)),
        ("another shape", lambda: sads.measure_anatomy(model(), torch.randn(9, 1, 8, 8))),
        ("samples 0", lambda: sads.measure_anatomy(model(), X, num_samples=0)),
        ("directions of NaN", lambda: sads.measure_anatomy(model(), X, directions=X * NAN)),
        ("no directions", lambda: sads.measure_anatomy(model(), X, directions=X[:0])),
        ("seed", lambda: sads.measure_anatomy(model(), X, seed="a")),
        *wrong_tensors("test", lambda w: sads.measure_anatomy(model(), w)),
    ],
}
# Results, protocols and modules: nobody but us makes one from arguments.
RESULTS = {
    "Alignment",
    "Anatomy",
    "Basis",
    "Classification",
    "Cluster",
    "Comparison",
    "DataSpectrum",
    "End",
    "Estimate",
    "Estimates",
    "ImageSet",
    "InterruptedEstimate",
    "MaxSlicedWasserstein",
    "NotKeptError",
    "Pairing",
    "Probe",
    "Provenance",
    "Ranking",
    "Readout",
    "SadsError",
    "ScoreModel",
    "SlicedWasserstein",
    "Structure",
    "theory",  # its functions are in `right`
}


def test_every_public_name_is_in_the_table():
    assert set(MISUSE) | RESULTS == set(sads.__all__)


@pytest.mark.parametrize("name", sorted(MISUSE))
def test_misuse_is_a_typed_error_of_one_line(name):
    wrong = []
    for what, call in MISUSE[name]:
        try:
            result = call()
            wrong.append(f"{name}, {what}: no error, {str(result)[:80]}")
        except SadsError as error:
            if "\n" in str(error) or len(str(error)) < 20:
                wrong.append(f"{name}, {what}: {error}")
        except Exception as error:
            wrong.append(f"{name}, {what}: {type(error).__name__}: {str(error)[:80]}")
    assert not wrong, "\n".join(wrong)


# What is right, for every public function and method: each of its arguments in turn is then given
# what its annotation does not take.
@cache
def right():
    two = torch.tensor([1.0, 2.0])
    directions = geometry().directions()
    symmetric = sads.family("cnn", shape=(1, 5, 5), channels=4, depth=1)
    descent, linear = (
        theory.GaussianDescent(two, two),
        theory.LinearDSM(torch.eye(3), torch.ones(3)),
    )
    return {
        sads.alignment: {"geometry": geometry(), "x": X},
        sads.basis: {"name": "dct", "shape": (1, 4, 4)},
        sads.classify: {"samples": X, "real": REAL},
        sads.compare: {},
        sads.estimate_geometry: {"family": family(), "num_networks": 16},
        sads.family: {"name": "cnn", "shape": (1, 4, 4)},
        sads.gaussian_skip: {"family": family(), "x": X},
        sads.load_geometry: {"path": "g.safetensors"},
        sads.load_images: {"source": "digits"},
        sads.load_labels: {"source": "digits"},
        sads.load_model: {"path": "m.safetensors", "score_family": family()},
        sads.load_rotation: {"path": "r.safetensors"},
        sads.max_sliced_wasserstein: {"x": X, "y": X},
        sads.measure_anatomy: {"model": model(), "test": X},
        sads.pair: {"geometry": geometry(), "x": X},
        sads.probe: {},
        sads.rank: {"x": X, "families": [family()], "rotations": ["identity"], "num_networks": 16},
        sads.rank_one: {"vector": V, "num_samples": 3},
        sads.read_images: {"source": "digits"},
        sads.register_family: {"name": "of a test", "architecture": Net},
        sads.register_predictor: {"name": "of a test", "predict": print},
        sads.register_reader: {"name": ".of-a-test", "read": print},
        sads.register_sampler: {"name": "of a test", "sampler": print},
        sads.rotate_collate: {"rotation": rotation()},
        sads.rotation: {"geometry": geometry(), "x": X, "kind": "min"},
        sads.sample: {"model": model(), "num_samples": 2, "steps": 2},
        sads.sliced_wasserstein: {"x": X, "y": X},
        sads.sliced_wasserstein_to_gaussian: {"y": X, "vector": V},
        sads.sphere: {"vectors": X[:3], "num_samples": 3},
        sads.structure: {"geometry": geometry()},
        sads.train: {"family": family(), "x": X, "iterations": 1, "batch_size": 10},
        sads.Schedule: {},
        sads.ScoreFamily: {"factory": Net, "shape": (1, 4, 4)},
        sads.RotatedDataset: {"dataset": [V], "rotation": rotation()},
        geometry().end: {"side": "preferred"},
        geometry().basis_energies: {"name": "dct"},
        geometry().directions: {},
        geometry().energy: {"v": V},
        geometry().quadratic: {"rows": X},
        geometry().save: {"path": "g.safetensors"},
        directions.select: {"ranks": [0, -1]},
        directions.cluster_of: {"index": 0},
        directions.eigenvalue: {"index": 0},
        directions.preferred: {},
        directions.avoided: {},
        rotation().apply: {"x": X},
        rotation().undo: {"z": X},
        rotation().save: {"path": "r.safetensors"},
        model().save: {"path": "m.safetensors"},
        theory.asymmetry: {"responses": torch.randn(4, 1, 5, 5)},
        theory.conditioning: {"eigenvalues": [1.0, 2.0]},
        theory.expected_quadratic: {"x": torch.eye(3), "variance": 1.0, "num_columns": 2},
        theory.extremes: {"values": two, "moments": two},
        theory.impulse_response: {"family": symmetric, "num_networks": 4},
        theory.landscape_family: {},
        theory.markov_bound: {"geometry": geometry(), "directions": X[:2]},
        theory.optimal_score: {"v": V, "sigma": 1.0},
        theory.predict: {"geometry": geometry()},
        theory.rates: {"eigenvalues": two, "sigma": 1.0},
        theory.symmetric_family: {"family": symmetric},
        theory.symmetrise: {"kernel": torch.randn(3, 3), "num_axes": 2},
        theory.transformer_factor: {
            "gram": torch.eye(3),
            "weight_variance": 1.0,
            "bias_variance": 1.0,
        },
        theory.try_rotations: {"values": two, "moments": two, "num_rotations": 3},
        theory.GaussianDescent: {"eigenvalues": two, "energies": two},
        theory.Landscape: {},
        theory.LinearDSM: {"phi": torch.eye(3), "v": torch.ones(3)},
        descent.excess: {"overlaps": torch.eye(2), "steps": [1]},
        descent.random: {"steps": [1], "count": 2},
        linear.gradient: {"theta": torch.eye(3)},
        linear.expected_errors: {"steps": [1], "learning_rate": 0.1},
        linear.second_moments: {"steps": [1], "learning_rate": 0.1},
        linear.plateau: {"learning_rate": 0.1},
        linear.simulate: {"steps": [1], "learning_rate": 0.1, "num_runs": 2},
    }


CHECKS_ITSELF = {"write_report", "register_readout", "examples"}  # or takes no arguments
BY_TYPE = {  # what nobody means, though Python would often take it
    bool: ["yes", 3, [], NAN, 1, X],
    int: [True, 1.5, "x", NAN, [2], b"1", X, -(10**30)],
    float: [True, "x", NAN, INF, [1.0], 10**400, X],
    str: [3, [], True, b"x", {"a": 1}, X],
    torch.Tensor: ["iddpm", [[1.0]], 3, {"x": 1}, META, X.to(torch.complex64), MASKED],
    Callable: [3, "print", [], X],
    os.PathLike: [3, [], True, b"x", {"a": 1}],
    Mapping: [3, [], True, "x", X],
    Iterable: [3.5, {"a": 1}, [None], True, [X]],
    sads.ScoreFamily: [3, [], X],
    object: [3, [], X],
}
SEEDS = [True, -1, 1.5, "a", 2**64, [1], NAN, X]
STAND_FOR = (torch.Tensor, Callable, os.PathLike, Mapping, Iterable, sads.ScoreFamily)


def kinds(annotation):
    """Which rows of `BY_TYPE` an annotation, or a member of its union, is of."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    found = set()
    for member in typing.get_args(annotation) if union else (annotation,):
        origin = typing.get_origin(member) or member
        if origin in (*BY_TYPE, types.NoneType, typing.Any) or not isinstance(origin, type):
            found.add(origin)
        else:
            found.add(next((kind for kind in STAND_FOR if issubclass(origin, kind)), object))
    return found


def wrong_values(name, annotation):
    """Values that no type of an annotation takes."""
    taken = kinds(annotation)
    if not all(kind in BY_TYPE or kind is types.NoneType for kind in taken):
        return  # anything is taken, or a function looks itself
    needless = types.NoneType not in taken
    if name == "seed":
        yield from [*SEEDS, None] if needless else SEEDS
        return
    lists = [BY_TYPE[kind] for kind in taken if kind is not types.NoneType]
    for value in lists[0]:
        if all(any(value is other for other in values) for values in lists[1:]):
            yield value
    if needless:
        yield None


def test_every_public_function_says_what_it_takes():
    public = [getattr(module, name) for module in (sads, theory) for name in module.__all__]
    functions = {f for f in public if inspect.isfunction(f) and f.__name__ not in CHECKS_ITSELF}
    assert functions - set(right()) == set()
    for target in right():
        wrapped = target.__init__ if inspect.isclass(target) else target
        assert hasattr(wrapped, "__wrapped__"), f"{target} is not @checked"


def test_what_annotations_do_not_take_is_refused(tmp_path, monkeypatch):
    """A typed error of one line, for every argument of every public function."""
    monkeypatch.chdir(tmp_path)
    geometry().save("g.safetensors")
    model().save("m.safetensors")
    rotation().save("r.safetensors")
    tried, wrong = 0, []
    for target, arguments in right().items():
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
        for name, parameter in inspect.signature(target).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            for value in wrong_values(name, hints[name]):
                tried += 1
                what = f"{target.__qualname__}({name}={str(value)[:30]!r})"
                try:
                    target(**{**arguments, name: value})
                    wrong.append(f"{what}: no error")
                except SadsError as error:
                    if not str(error).isprintable() or not 20 < len(str(error)) < 400:
                        wrong.append(f"{what}: {error}")
                except Exception as error:
                    wrong.append(f"{what}: {type(error).__name__}: {str(error)[:80]}")
    assert not wrong, "\n".join(wrong)
    assert tried > 800


def test_arrays_and_other_types_are_taken_where_they_make_sense(tmp_path):
    x, v = X.numpy().astype(np.float64), V.numpy().astype(np.float64)
    assert geometry().energy(v) == geometry().energy(V)
    assert sads.alignment(geometry(), x).alpha.value == pytest.approx(
        sads.alignment(geometry(), X).alpha.value, rel=1e-6
    )
    assert sads.rank_one(v, np.int64(3)).equal(sads.rank_one(V, 3))
    assert sads.sphere(x[:3], 5).shape == (5, 1, 4, 4)
    assert sads.sliced_wasserstein(x, X).sw2.value == pytest.approx(0)
    big_endian = x.astype(">f8")
    assert sads.sliced_wasserstein(big_endian, X).sw2.value == pytest.approx(0, abs=1e-6)
    weights = [
        sads.train(family(), data, iterations=2, batch_size=10, seed=3).network.a.weight
        for data in (X, x, X.double(), X.clone().requires_grad_(True))
    ]
    assert all(torch.equal(w, weights[0]) for w in weights)
    assert rotation().apply(x).shape == X.shape
    assert sads.probe("forward", images=x).images.shape == X.shape
    assert sads.estimate_geometry(family(), np.int64(16), seed=np.int64(1)).num_networks == 16
    assert sads.sample(model(), np.int32(2), steps=1).shape == (2, 1, 4, 4)
    assert sads.classify(X, REAL, seed=np.uint64(1)).num_samples == 30
    numbers = {"iterations": np.int64(2), "batch_size": np.int32(10), "seed": np.uint64(2**64 - 1)}
    trained = sads.train(family(), X, learning_rate=np.float32(1e-3), **numbers)
    assert sads.load_model(trained.save(tmp_path / "m.safetensors"), family()).provenance.options
