"""Cells, the store, and what one cell computes."""

import json
import math
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import sads
from sads.cpu import layers_name
from sads.data.spec import DataSpec
from sads.errors import (
    DataError,
    ExperimentError,
    InvalidArgumentError,
    OutputError,
    StoreError,
)
from sads.estimates import Estimate
from sads.experiments import locks, run
from sads.experiments.archive import Archive
from sads.experiments.locks import lock, wait_for
from sads.experiments.missing_baselines import with_baselines
from sads.experiments.records import Record
from sads.experiments.run import (
    digest_images,
    get_geometry,
    make_data,
    read_source,
    run_cell,
    seed_of,
)
from sads.experiments.spec import FORMAT, Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.experiments.verdict import (
    correlation_over_elements,
    paired_difference,
    rank_correlation,
    superiority,
)
from sads.table1 import Sampling, Training
from sads.threads import pinned_threads

FAMILY = FamilySpec("mlp", (1, 4, 4), (("depth", 1), ("width", 16)))
GEOMETRY = GeometrySpec(FAMILY, 32)
LAYERS = layers_name()


def tiny(data="rank-one:geometry:0", seed=0, **changes):
    fields = {
        "geometry": GEOMETRY,
        "data": DataSpec.parse(data),
        "num_data": 100,
        "training": Training(6, 20, 1e-3),
        "sampling": Sampling(30, 4, projections_per_dimension=2),
        "seed": seed,
        "layers": LAYERS,
    }
    return Cell(**(fields | changes))


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
        assert tiny(layers="torch").hash == "15160da6924f44a25242"

    def test_every_field_counts(self):
        cells = {
            tiny(),
            tiny("rank-one:geometry:1"),
            tiny(seed=1),
            tiny(rotation="min"),
            tiny(evaluate_at=(3, 6)),
            tiny(keep_samples=1),
            tiny(geometry=GeometrySpec(FAMILY, 33)),
            tiny(layers="others"),
            tiny(num_data=99),
            tiny(data_sha256="0"),
        }
        assert len({cell.hash for cell in cells}) == 10

    @given(
        st.integers(0, 5),
        st.sampled_from(
            ["rank-one:geometry:3", "rank-one:geometry:2-5/3", "rank-one:dct:2", "digits"]
        ),
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
        assert len(record.evaluations) == 2
        assert record.last.msw2 >= record.last.sw2 > 0
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
        with pinned_threads(1):
            model = sads.train(
                FAMILY.build(),
                rotation.apply(data.train),
                iterations=6,
                batch_size=20,
                learning_rate=1e-3,
                seed=seed_of(cell, "train"),
            )
            y = rotation.undo(sads.sample(model, 30, steps=4, seed=seed_of(cell, "sample 6")))
            distance = sads.sliced_wasserstein(
                data.test, y, num_projections=32, seed=seed_of(cell, "projections")
            )
        assert record.last.sw2 == distance.sw2
        assert record.last.msw2 == distance.msw2
        assert record.facts.alpha == rotation.alpha

    def test_other_layers_than_the_cell_names_are_refused(self, store):
        with pytest.raises(ExperimentError, match=f"by the layers others, here {LAYERS} computed"):
            run_cell(tiny(layers="others"), store)

    def test_resumes_after_an_evaluation(self, store, monkeypatch):
        """Killed between two evaluations, a cell ends in the numbers of an undisturbed one."""
        cell = tiny(evaluate_at=(3, 6))
        undisturbed = run_cell(cell, Store(store.url + "-other"))
        train = run._train
        calls = []

        def dying(attempt, x, iterations, *rest):
            calls.append(iterations)
            if iterations == 6 and len(calls) == 2:
                raise KeyboardInterrupt
            return train(attempt, x, iterations, *rest)

        monkeypatch.setattr(run, "_train", dying)
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell, store)
        assert store.get(cell) is None
        resumed = run_cell(cell, store)
        assert calls == [3, 6, 6]  # the first evaluation was not repeated
        assert resumed.evaluations == undisturbed.evaluations
        assert resumed.losses == undisturbed.losses

    @pytest.mark.parametrize("file", ["checkpoint.safetensors", "{hash}-3.json", "seconds.json"])
    def test_what_is_left_of_a_killed_attempt_may_be_damaged(self, store, file):
        cell = tiny(evaluate_at=(3, 6))
        undisturbed = run_cell(cell, Store(store.url + "-other"))
        with store.work_folder(cell) as work:
            (work / file.format(hash=cell.hash)).write_bytes(b"junk")
        assert run_cell(cell, store).evaluations == undisturbed.evaluations
        assert not list(store._work.iterdir())

    def test_labels_must_be_as_many_as_images(self, tmp_path):
        images = np.zeros((5, 1, 8, 8), dtype=np.uint8)
        images[0] = 255
        np.savez(tmp_path / "few.npz", images=images, labels=np.arange(2))
        with pytest.raises(DataError, match="2 labels for 5 images"):
            read_source("mnist", (1, 8, 8), {"mnist": str(tmp_path / "few.npz")})

    def test_subspace_vectors_lie_in_the_subspace_and_differ_by_seed(self, store):
        geometry = get_geometry(GEOMETRY, store)
        vectors = geometry.directions().vectors
        drawn = []
        for seed in range(3):
            data = make_data(tiny("rank-one:geometry:2-5/3", seed), geometry, {})
            assert torch.linalg.matrix_rank(torch.cat([data.train, data.test]).flatten(1)) == 1
            drawn.append(data.train[0].double() / data.train[0].double().norm())
            inside = vectors[2:6].flatten(1) @ drawn[-1].flatten()
            assert inside.norm() == pytest.approx(1)
        assert abs(float((drawn[0] * drawn[1]).sum())) < 0.999

    def test_images_are_split_without_overlap(self, store):
        family = FamilySpec("mlp", (1, 8, 8), (("depth", 1), ("width", 8)))
        images, labels = read_source("digits", (1, 8, 8), {})
        cell = tiny(
            "digits",
            geometry=GeometrySpec(family, 8),
            num_data=10**4,
            sampling=Sampling(100, 2, projections_per_dimension=1),
            data_sha256=digest_images(images),
        )
        data = make_data(cell, get_geometry(cell.geometry, store), {})
        assert len(data.train) == 1697
        assert len(data.test) == 100
        assert torch.equal(torch.cat([data.train, data.test]), images)
        assert torch.equal(data.labels, labels[:1697])

    def test_other_images_under_the_same_name_are_refused(self, store):
        cell = tiny("digits", data_sha256="0" * 16)
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

    def test_records_are_those_that_are_whole(self, store):
        cells = [tiny(seed=s) for s in range(2)]
        records = {cell.hash: run_cell(cell, store) for cell in cells}
        assert Store(store.url).records() == records
        (Path(store.url) / "cells" / cells[0].hash / "record.json").write_text("nonsense")
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

    def test_a_result_takes_the_place_of_a_damaged_one(self, store):
        """Hours of work are not thrown away for a folder that nobody can read."""
        record = run_cell(tiny(), store)
        folder = store.new_folder(tiny())
        (Path(store.url) / "cells" / tiny().hash / "record.json").write_text("junk")
        assert store.put(record, folder) == record
        assert "set aside" in store.take_notes()[0]

    def test_a_lock_on_a_file_that_was_removed_is_none(self, tmp_path):
        """As that of a work folder, by its owner, between our opening it and our locking it."""
        path = tmp_path / "lock"
        with lock(path) as mine:
            assert mine is not None
            path.unlink()
            with lock(path) as new:
                assert new is not None
            assert not locks._is_there(path, mine)

    def test_a_geometry_is_estimated_once(self, store, monkeypatch):
        """Another process has done it while this one waited for the lock."""
        waited = []

        @contextmanager
        def slowly(path):
            with wait_for(path):
                other = run._estimate(GEOMETRY, store.partial_geometry(GEOMETRY))
                store.put_geometry(GEOMETRY, other)
                monkeypatch.setattr(run, "_estimate", None)
                waited.append(path)
                yield

        monkeypatch.setattr("sads.experiments.store.wait_for", slowly)
        assert get_geometry(GEOMETRY, store).num_networks == GEOMETRY.num_networks
        assert waited
        assert not waited[0].exists()

    def test_leftovers_that_somebody_works_in_are_left(self, store):
        cell = tiny()
        record = run_cell(cell, store)
        with store.work_folder(cell) as mine:
            Store(store.url).clear_leftovers()
            assert mine.is_dir()
        Store(store.url).clear_leftovers()
        assert not mine.exists()
        assert store.get(cell) == record

    def test_nobody_begins_in_a_work_folder_that_is_being_removed(self, store, monkeypatch):
        """Its owner is killed, or somebody waits for the training, when its lock is gone."""
        begun = []

        def remove(path, **options):
            begun.append(path)
            (path / "lock").unlink()
            with store.work_folder(tiny()) as other:
                (other / "checkpoint").touch()

        with store.work_folder(tiny()) as mine:
            with monkeypatch.context() as patch:
                patch.setattr("sads.experiments.store.shutil.rmtree", remove)
                store.clear_work(tiny())
            assert (mine / "checkpoint").exists()  # of the other one
            (left,) = begun
            assert left.is_dir()
        Store(store.url).clear_leftovers()
        assert not left.exists()

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

    def test_an_unknown_error_is_unknown_again(self, store):
        record = run_cell(tiny(), store)
        unknown = replace(record.facts, alpha=Estimate(1.0, math.inf))
        written = json.loads(json.dumps(replace(record, facts=unknown).to_json()))
        assert Record.from_json(written).facts == unknown

    def test_others_can_read_it(self, store):
        run_cell(tiny(keep_samples=1), store)
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

    def test_two_processes_may_make_it(self, tmp_path, monkeypatch):
        """One has asked for the mark, the other writes it, the first finds files."""
        (tmp_path / "new").mkdir()
        original = Store._visible_files

        def meanwhile(store):
            monkeypatch.setattr(Store, "_visible_files", original)
            Store(tmp_path / "new")
            return original(store)

        monkeypatch.setattr(Store, "_visible_files", meanwhile)
        Store(tmp_path / "new")

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


class TestArchive:
    """Finished cells as lines of a file that one commits."""

    @pytest.fixture
    def archived(self, store, tmp_path):
        cells = [tiny(keep_samples=3), tiny(seed=1, evaluate_at=(3, 6))]
        records = [run_cell(cell, store) for cell in cells]
        other = Store(store.url, archive=tmp_path)
        other.to_archive(records)
        return cells, records

    def test_a_store_beside_it_computes_nothing_again(self, archived, tmp_path, store):
        cells, records = archived
        fresh = Store(tmp_path / "fresh", archive=tmp_path)
        assert fresh.missing([*cells, tiny(seed=2)]) == [tiny(seed=2)]
        for cell, record in zip(cells, records, strict=True):
            found = fresh.find(cell)
            assert found.last.sw2 == pytest.approx(record.last.sw2, rel=1e-6)
            assert found.facts.alpha.error == pytest.approx(record.facts.alpha.error, rel=1e-6)
        expected = store.samples(records[0])
        assert torch.allclose(fresh.samples(fresh.find(cells[0])), expected, rtol=1e-3, atol=1e-3)

    def test_it_has_the_numbers_that_it_has_when_it_is_read(self, archived, tmp_path, store):
        """So that a figure which is drawn again is the same."""
        _, records = archived
        beside = Store(store.url, archive=tmp_path / "again")
        known = beside.to_archive(records).records
        assert known == Archive.read(tmp_path / "again").records
        assert known != {record.cell.hash: record for record in records}

    def test_it_names_its_geometries(self, archived, tmp_path):
        (described,) = json.loads((tmp_path / "geometries.json").read_text()).values()
        assert described["command"].startswith("sads geometry mlp --shape 1x4x4 -o depth=1")
        assert len(described["sha256"]) == 64

    def test_the_same_cells_give_the_same_bytes(self, archived, tmp_path, store):
        _, records = archived
        again = tmp_path / "again"
        Store(store.url, archive=again).to_archive(reversed(records))
        for name in ("records.jsonl", "geometries.json"):
            assert (again / name).read_bytes() == (tmp_path / name).read_bytes()

    def test_cells_of_other_layers_stand_in_and_say_so(self, archived, tmp_path):
        cells, _ = archived
        fresh = Store(tmp_path / "fresh", archive=tmp_path)
        asked = replace(cells[0], layers="others")
        assert asked.hash != cells[0].hash
        assert fresh.get(asked) is None
        assert fresh.find(asked).cell.layers == LAYERS

    def test_lines_of_other_formats(self, archived, tmp_path, store):
        """Older ones are said, not used and kept; a newer one is for a newer sads."""
        _, records = archived
        path = tmp_path / "records.jsonl"
        first, second = path.read_text().splitlines()
        old = first.replace(f'"format":{FORMAT}', '"format":1')
        path.write_text(f"{old}\n{second}\n")
        beside = Store(store.url, archive=tmp_path)
        assert len(beside.archive.records) == 1
        assert beside.take_notes()[0].startswith("1 record in records.jsonl of an older format")
        beside.to_archive(records)
        assert path.read_text().splitlines() == [first, second, old]
        path.write_text(first.replace(f'"format":{FORMAT}', '"format":99') + "\n")
        with pytest.raises(StoreError, match=r"line 1 of .* by a newer sads \(format 99"):
            Archive.read(tmp_path)

    def test_what_two_processes_add_is_all_there(self, archived, tmp_path, store):
        """Both have read the archive before either of them wrote to it."""
        _, records = archived
        place = tmp_path / "both"
        stores = [Store(store.url, archive=place) for _ in records]
        for one, record in zip(stores, records, strict=True):
            one.to_archive([record])
        assert (place / "records.jsonl").read_bytes() == (tmp_path / "records.jsonl").read_bytes()
        assert (place / "geometries.json").exists()
        assert not list(place.glob(".*")), "no lock stays behind"

    def test_who_adds_to_an_archive_waits_for_who_does(self, archived, tmp_path):
        archive = Archive.read(tmp_path)
        with archive.renewed(), lock(tmp_path / ".sads-lock") as other:
            assert other is None

    def test_who_never_ends_to_write_is_named(self, archived, tmp_path, monkeypatch):
        monkeypatch.setattr("sads.experiments.locks.MOST_SECONDS", 0.0)
        archive = Archive.read(tmp_path)
        with (
            archive.renewed(),
            pytest.raises(OutputError, match=f"another process has written to {tmp_path} for 0 "),
            archive.renewed(),
        ):
            pytest.fail("two at once")

    @pytest.mark.parametrize("name", ["records.jsonl", "geometries.json"])
    def test_a_link_to_nowhere_is_no_empty_archive(self, tmp_path, name):
        (tmp_path / name).symlink_to("elsewhere")
        with pytest.raises(StoreError, match=name):
            Archive.read(tmp_path)

    def test_damaged_geometries_are_refused_before_anything_is_added(self, tmp_path):
        (tmp_path / "geometries.json").write_text("[]")
        with pytest.raises(StoreError, match=r"geometries.json is damaged .*; restore the file"):
            Store(tmp_path / "store", archive=tmp_path)

    def test_baselines_that_are_found_later_are_what_the_run_has(self, archived, tmp_path):
        """Records of before have none; they get the same numbers without training."""
        cells, records = archived
        path = tmp_path / "records.jsonl"
        stripped = []
        for line in map(json.loads, path.read_text().splitlines()):
            for evaluation in line["evaluations"]:
                for name in ("baselines", "energy", "data_energy", "out_of_range", "along"):
                    del evaluation[name]
            stripped.append(json.dumps(line))
        path.write_text("\n".join(stripped) + "\n")
        store = Store(tmp_path / "fresh", archive=tmp_path)
        old = [store.find(cell) for cell in cells]
        assert [record.last.state for record in old] == [None, None]
        asked = []

        def geometry(spec):
            asked.append(spec)
            return get_geometry(spec, store)

        known = {}
        full = [with_baselines(record, geometry, {}, known) for record in old]
        for mended, record in zip(full, records, strict=True):
            assert mended.last.baselines == record.last.baselines
            assert mended.last.data_energy == record.last.data_energy
            assert mended.last.energy is None
        assert len(known) == 2  # two seeds
        again = with_baselines(old[0], geometry, {}, known)
        assert (again, len(asked)) == (full[0], 2)
        store.to_archive(full)
        reread = Store(tmp_path / "fresh", archive=tmp_path)
        assert all(reread.find(cell).has_baselines for cell in cells)
        assert torch.equal(reread.samples(reread.find(cells[0])), store.samples(old[0]))

    def test_a_cell_that_is_there_twice_is_the_fuller_one(self, archived, tmp_path):
        """As when two branches of a repository are joined."""
        path = tmp_path / "records.jsonl"
        records = Archive.read(tmp_path).records
        lines = path.read_text().splitlines()
        poorer = []
        for line in map(json.loads, lines):
            for evaluation in line["evaluations"]:
                evaluation["baselines"] = None
            poorer.append(json.dumps(line))
        for joined in ([*poorer, *lines], [*lines, *poorer]):
            path.write_text("\n".join(joined) + "\n")
            assert Archive.read(tmp_path).records == records

    def test_a_damaged_line_is_one_line(self, archived, tmp_path):
        path = tmp_path / "records.jsonl"
        path.write_text(path.read_text().replace('"seed":1', '"seed":7'))
        with pytest.raises(StoreError, match=r"line \d of .*records.jsonl is damaged"):
            Archive.read(tmp_path)


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

    def test_superiority_and_correlation_see_what_is_there(self):
        generator = np.random.default_rng(2)
        low, high = generator.normal(size=40), generator.normal(size=30) + 3
        assert superiority(high, low).low > 0.8
        assert superiority(low, low + 1e-9).low < 0 < superiority(low, low - 1e-9).high
        x = generator.normal(size=60)
        assert correlation_over_elements(x, x + 0.1 * generator.normal(size=60)).low > 0.9
        nothing = correlation_over_elements(x, generator.normal(size=60))
        assert nothing.low < 0 < nothing.high
