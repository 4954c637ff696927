"""Cells, the store, and what one cell computes."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import sads
from sads.errors import DataError, InvalidArgumentError, StoreError
from sads.experiments import run
from sads.experiments.run import (
    _seed,
    data_vector,
    digest_images,
    get_geometry,
    make_data,
    one_thread,
    read_source,
    run_cell,
)
from sads.experiments.spec import Budget, Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.experiments.verdict import (
    Interval,
    correlation_over_elements,
    judge,
    paired_difference,
    rank_correlation,
    superiority,
)

FAMILY = FamilySpec("mlp", (1, 4, 4), (("depth", 1), ("width", 16)))
GEOMETRY = GeometrySpec(FAMILY, 32)
BUDGET = Budget(100, 6, 20, 1e-3, 30, 4, "ddpm", 2)


def tiny(data="eigenvector:0", seed=0, **changes):
    return Cell(GEOMETRY, data, BUDGET, seed, **changes)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Where checkpoints of object stores go."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


class TestCell:
    def test_hash_is_the_same_in_every_session(self):
        """A literal: if it changes, every store in the world is computed again."""
        assert tiny().hash == "2f94a1aff2bcde778785"

    def test_every_field_counts(self):
        cells = {
            tiny(),
            tiny("eigenvector:1"),
            tiny(seed=1),
            tiny(rotation="min"),
            tiny(evaluate_at=(3, 6)),
            tiny(keep_samples=1),
            Cell(GeometrySpec(FAMILY, 33), "eigenvector:0", BUDGET, 0),
        }
        assert len({cell.hash for cell in cells}) == 7

    @given(
        st.integers(0, 5),
        st.sampled_from(["eigenvector:3", "basis:dct:2", "images:digits"]),
        st.sampled_from([(), (2, 6)]),
    )
    def test_json_round_trip(self, seed, data, evaluate_at):
        cell = tiny(data, seed, evaluate_at=evaluate_at)
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell

    @pytest.mark.parametrize("evaluate_at", [(3,), (6, 3), (0, 6), (3, 3, 6)])
    def test_evaluations_must_rise_to_the_end(self, evaluate_at):
        with pytest.raises(InvalidArgumentError, match="evaluate_at"):
            tiny(evaluate_at=evaluate_at)


class TestRun:
    def test_record_holds_what_was_measured(self, store):
        cell = tiny(evaluate_at=(3, 6), keep_samples=5)
        record = run_cell(cell, store)
        assert [e["iterations"] for e in record.evaluations] == [3, 6]
        assert record.metric("sw2") > 0
        assert record.metric("msw2") >= record.metric("sw2")
        assert len(record.losses) == 6
        assert store.samples(record).shape == (5, 1, 4, 4)
        assert record.versions["torch"] == torch.__version__
        assert not list(store._work.iterdir())

    @pytest.mark.parametrize("kind", ["identity", "max", "random:3"])
    def test_it_is_the_library_s_own_training(self, store, kind):
        """The same by hand; with a rotation, applied to the data and undone on the samples."""
        cell = tiny(rotation=kind)
        record = run_cell(cell, store)
        geometry = get_geometry(GEOMETRY, store)
        data = make_data(cell, geometry, {})
        rotation = sads.rotation(geometry, data.train, kind)
        with one_thread():
            model = sads.train(
                FAMILY.build(), rotation.apply(data.train), iterations=6, batch_size=20,
                learning_rate=1e-3, seed=_seed(cell, "train"),
            )  # fmt: skip
            y = rotation.undo(sads.sample(model, 30, steps=4, seed=_seed(cell, "sample 6")))
            distance = sads.sliced_wasserstein(
                data.test, y, num_projections=32, seed=_seed(cell, "projections")
            )
        assert record.metric("sw2") == distance.sw2
        assert record.metric("msw2") == distance.msw2
        assert record.facts["alpha"] == rotation.alpha

    def test_resumes_after_an_evaluation(self, store, monkeypatch):
        """Killed between two evaluations, a cell ends in the numbers of an undisturbed one."""
        cell = tiny(evaluate_at=(3, 6))
        undisturbed = run_cell(cell, Store(store.url + "-other"))
        train = run._train
        calls = []

        def dying(cell, x, iterations, *rest):
            calls.append(iterations)
            if iterations == 6 and len(calls) == 2:
                raise KeyboardInterrupt
            return train(cell, x, iterations, *rest)

        monkeypatch.setattr(run, "_train", dying)
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell, store)
        assert store.get(cell) is None
        resumed = run_cell(cell, store)
        assert calls == [3, 6, 6]  # the first evaluation was not repeated
        assert resumed.evaluations == undisturbed.evaluations
        assert resumed.losses == undisturbed.losses

    @pytest.mark.parametrize(
        "file", ["checkpoint.safetensors", "evaluation-3.json", "seconds.json"]
    )
    def test_what_is_left_of_a_killed_attempt_may_be_damaged(self, store, file):
        cell = tiny(evaluate_at=(3, 6))
        undisturbed = run_cell(cell, Store(store.url + "-other"))
        with store.work_folder(cell) as work:
            (work / file).write_bytes(b"junk")
        assert run_cell(cell, store).evaluations == undisturbed.evaluations
        assert not list(store._work.iterdir())

    def test_labels_must_be_as_many_as_images(self, tmp_path):
        images = np.zeros((3, 4, 4), dtype=np.uint8)
        np.savez(tmp_path / "few.npz", images=images, labels=np.arange(2))
        with pytest.raises(DataError, match="2 labels for 3 images"):
            read_source("mnist", (1, 4, 4), {"mnist": str(tmp_path / "few.npz")})

    def test_subspace_vectors_lie_in_the_subspace_and_differ_by_seed(self, store):
        geometry = get_geometry(GEOMETRY, store)
        vectors = geometry.directions().vectors
        drawn = [data_vector(tiny("subspace:2:6:3", seed), geometry) for seed in range(3)]
        for v in drawn:
            inside = vectors[2:6].flatten(1) @ v.flatten()
            assert inside.norm() == pytest.approx(1)
        assert abs(float((drawn[0] * drawn[1]).sum())) < 0.999

    def test_images_are_split_without_overlap(self, store):
        family = FamilySpec("mlp", (1, 8, 8), (("depth", 1), ("width", 8)))
        images, labels = read_source("digits", (1, 8, 8), {})
        cell = Cell(
            GeometrySpec(family, 8), "images:digits", Budget(10**4, 2, 20, 1e-3, 100, 2, "ddpm", 1),
            0, data_sha256=digest_images(images),
        )  # fmt: skip
        data = make_data(cell, get_geometry(cell.geometry, store), {})
        assert len(data.train) == 1697
        assert len(data.test) == 100
        assert torch.equal(torch.cat([data.train, data.test]), images)
        assert torch.equal(data.labels, labels[:1697])

    def test_other_images_under_the_same_name_are_refused(self, store):
        cell = tiny("images:digits", data_sha256="0" * 16)
        with pytest.raises(DataError, match="changed"):
            run_cell(cell, store)


class TestStore:
    def test_a_cell_that_is_there_is_not_computed_again(self, store, monkeypatch):
        first = run_cell(tiny(), store)
        monkeypatch.setattr(run, "_compute", None)
        assert run_cell(tiny(), Store(store.url)) == first

    @pytest.mark.parametrize("damage", ["truncated", "missing", "other hash", "samples"])
    def test_a_damaged_cell_is_set_aside_and_recomputed(self, store, damage):
        cell = tiny(keep_samples=4)
        first = run_cell(cell, store)
        path = Path(store.url) / "cells" / cell.hash
        record = path / "record.json"
        if damage == "truncated":
            record.write_text(record.read_text()[:500])
        elif damage == "missing":
            record.unlink()
        elif damage == "other hash":
            record.write_text(record.read_text().replace('"seed": 0,', '"seed": 7,'))
        else:
            (path / "samples.npz").write_bytes(b"junk")
        again = Store(store.url)
        assert again.get(cell) is None
        assert "set aside" in again.take_notes()[0]
        assert not again.take_notes(), "each is told once"
        assert len(os.listdir(f"{store.url}/damaged")) == 1
        assert run_cell(cell, again).evaluations == first.evaluations

    def test_the_index_is_rebuilt(self, store):
        cells = [tiny(seed=s) for s in range(2)]
        for cell in cells:
            run_cell(cell, store)
        expected = {c.hash for c in cells}
        assert set(store.records()) == expected
        os.remove(f"{store.url}/index.json")
        assert set(Store(store.url).records()) == expected
        with open(f"{store.url}/index.json", "w") as file:
            file.write("nonsense")
        assert set(Store(store.url).records()) == expected
        shutil.rmtree(f"{store.url}/cells/{cells[0].hash}")
        assert set(Store(store.url).records()) == {cells[1].hash}

    def test_an_fsspec_url(self):
        store = Store("memory://sads-test-store")
        record = run_cell(tiny(keep_samples=3), store)
        again = Store("memory://sads-test-store")
        assert again.get(tiny(keep_samples=3)) == record
        assert again.samples(record).shape == (3, 1, 4, 4)
        assert set(again.records()) == {record.cell.hash}

    def test_a_taken_cell_is_left_alone(self, store):
        with store.work_folder(tiny()) as mine:
            assert mine is not None
            with Store(store.url).work_folder(tiny()) as other:
                assert other is None
        with store.work_folder(tiny()) as mine:
            assert mine is not None

    @pytest.mark.parametrize("place", ["local", "memory"])
    def test_the_first_to_finish_counts(self, store, place):
        store = Store("memory://sads-test-first") if place == "memory" else store
        record = run_cell(tiny(), store)
        folder = store.new_folder(tiny())
        assert store.put(replace(record, seconds=1e6), folder) == record
        assert not folder.exists()

    def test_a_cell_that_appears_while_it_is_looked_for_is_not_damaged(self, store, monkeypatch):
        """Another sweep finishes it between two looks at the disk."""
        record = run_cell(tiny(), store)
        folder = Path(store.url) / "cells" / tiny().hash
        folder.rename(folder.with_name(".elsewhere"))
        exists = store._fs.exists

        def finished_after(path):
            found = exists(path)
            if not folder.exists():
                folder.with_name(".elsewhere").rename(folder)
            return found

        monkeypatch.setattr(store._fs, "exists", finished_after)
        store.get(tiny())
        assert store.get(tiny()) == record
        assert not store.take_notes()

    def test_others_can_read_it(self, store):
        run_cell(tiny(keep_samples=1), store)
        store.records()
        mask = os.umask(0)
        os.umask(mask)
        for path in Path(store.url).rglob("*"):
            expected = (0o777 if path.is_dir() else 0o666) & ~mask
            assert path.stat().st_mode & 0o777 & 0o444 == expected & 0o444, path

    def test_a_relative_folder_is_the_same_from_everywhere(self, tmp_path, monkeypatch):
        """Ray's workers start in a directory of their own."""
        monkeypatch.chdir(tmp_path)
        assert Store("here").url == str(tmp_path / "here")

    def test_an_object_store_without_cells_has_no_records(self):
        store = Store("memory://sads-test-empty")
        store._fs.rm(store._path("cells"), recursive=True)
        assert store.records() == {}

    def test_refuses_another_program_s_folder(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("precious")
        with pytest.raises(StoreError, match="not a store of sads"):
            Store(tmp_path)

    def test_refuses_a_newer_store(self, store):
        with open(f"{store.url}/sads-store.json", "w") as file:
            json.dump({"format": "sads-store", "version": 99}, file)
        with pytest.raises(StoreError, match="newer sads"):
            Store(store.url)

    def test_errors_of_a_cloud_s_client_are_one_line(self, monkeypatch):
        class NoCredentialsError(Exception):
            pass

        def refuse(self, path, **options):
            raise NoCredentialsError("Unable to locate credentials")

        monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.exists", refuse)
        with pytest.raises(StoreError, match="Unable to locate credentials"):
            Store("memory://sads-test-refused")

    def test_unknown_protocols_are_one_line(self):
        with pytest.raises(StoreError, match="fsspec"):
            Store("nosuch://place")


class TestVerdict:
    def test_paired_interval_is_that_of_the_sign_test(self):
        """Coverage of the median by simulation, for skewed differences."""
        generator = np.random.default_rng(0)
        for num in (5, 8, 20):
            hits = 0
            for _ in range(2000):
                x = generator.exponential(size=num)
                interval = paired_difference(x, np.zeros(num)).interval
                hits += interval.low <= math.log(2) <= interval.high
            expected = interval.confidence
            assert abs(hits / 2000 - expected) < 3 * math.sqrt(expected * (1 - expected) / 2000)
        assert paired_difference(range(5), [0] * 5).interval.confidence == pytest.approx(0.9375)

    def test_rank_correlation_is_scipy_s(self):
        rows = np.random.default_rng(1).normal(size=(6, 9))
        x = np.arange(9.0)
        each = [stats.spearmanr(x, row).statistic for row in rows]
        interval = rank_correlation(x, rows)
        assert interval.value == pytest.approx(np.mean(each))
        expected = stats.t.interval(0.95, 5, np.mean(each), stats.sem(each))
        assert (interval.low, interval.high) == pytest.approx(expected)

    def test_words_follow_the_interval(self):
        def word(low, high):
            return judge("", "", Interval(0.5, low, high, 0.95, 5)).verdict

        assert word(0.1, 0.9) == "supported"
        assert word(-0.1, 0.9) == "not supported"
        assert word(math.nan, math.nan) == "not tested at this scale"
        assert judge("", "", rank_correlation([1, 2, 3], [[1, 2, 3]])).verdict.startswith("not t")

    def test_superiority_and_correlation_see_what_is_there(self):
        generator = np.random.default_rng(2)
        low, high = generator.normal(size=40), generator.normal(size=30) + 3
        assert superiority(high, low).low > 0.8
        assert superiority(low, low + 1e-9).low < 0 < superiority(low, low - 1e-9).high
        x = generator.normal(size=60)
        assert correlation_over_elements(x, x + 0.1 * generator.normal(size=60)).low > 0.9
        nothing = correlation_over_elements(x, generator.normal(size=60))
        assert nothing.low < 0 < nothing.high
