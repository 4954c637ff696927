# Everything runs in .venv, which each target makes for itself from a bare clone.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

# Tests start a hundred processes: none of them should compile what another has compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test tests check lint types browser docs dist clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing what is needed into .venv: a few minutes the first time"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	touch $@

demo: $(STAMP)
	$(BIN)/sads geometry iddpm --shape 1x16x16 --networks 2048 --out out/iddpm
	$(BIN)/sads geometry dit --shape 1x16x16 --out out/dit-2
	$(BIN)/sads reproduce practice --scale laptop --only digits-brief --out out/digits
	@echo "Open out/iddpm/directions.png, out/dit-2/directions.png and"
	@echo "out/digits/practice-digits-brief-samples.png"

# Types are checked, in one process, while the tests run.
test: lint
	$(MAKE) --jobs=2 types tests

# One worker more than there are cores: some tests wait for a browser, for Ray or for what they kill.
tests: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal

# Chromium, for the tests that open reports in it; without it they are skipped.
browser:
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)

check: lint types

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

dist: $(STAMP)
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf .venv out site dist build
