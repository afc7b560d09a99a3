# Two commands are enough for a newcomer: `make demo` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick check format mutants drill fuzz hunt locked locked-deploy bench docs results site pages clean flower test-flower

demo: $(VENV)/.core  ## hospitals; then methods against their controls on rotated digits, and the page that tells what holds; then one command from data to bundles
	$(BIN)/coterie run fedavg 'fedprox(mu=0.1)' local --data heart --rounds 50 --seeds 0-9
	rm -rf runs/demo
	$(BIN)/coterie compare 'fedgroup(groups=4,pretrain=20)' 'fesem(groups=4,warmup=20)' 'fedsim(clusters=4)' --data 'digits/rotated(clients=40,groups=4)' \
		--rounds 15 --cohort 20 --epochs 10 --lr 0.1 --draws 10 --seeds 0-1 --out runs/demo
	$(BIN)/coterie report runs/demo
	rm -rf runs/auto
	$(BIN)/coterie auto --data heart --rounds 20 --lr 0.1 --draws 5 --out runs/auto

# Bytecode is kept: the suite starts a hundred processes, each of which would compile all of Coterie anew.
test: $(VENV)/.dev  ## the whole suite
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(VENV)/.dev  ## the tests that take little time, of every package: for developing, under 90 s on two cores
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

check: $(VENV)/.dev  ## linter, formatter, types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(VENV)/.dev  ## break important lines one at a time: some test must notice each
	$(BIN)/python scripts/mutants.py

drill: $(VENV)/.dev  ## hundreds of attacks on studies and on a federation, then real federations whose processes are killed, stopped and starved: tables of what happened
	$(BIN)/python scripts/attack.py --trials 500
	$(BIN)/python scripts/attack_federation.py
	$(BIN)/python scripts/drill.py
	$(BIN)/python scripts/ray_drill.py

fuzz: $(VENV)/.dev  ## damaged and made-up files for every reader, for as long as MINUTES say
	$(BIN)/python scripts/fuzz.py $(or $(MINUTES),5)

hunt: $(VENV)/.dev  ## every property of the suite on examples that were not tried yet, TIMES times over
	for i in $$(seq $(or $(TIMES),5)); do $(BIN)/python -m pytest -n 2 -q --hypothesis-profile=hunt $$(grep -rl 'import.* given' tests) || exit 1; done

locked: $(VENV)/bin/python  ## install exactly the files of the index whose hashes are in requirements.lock; then see that nothing lacks
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/pip check --disable-pip-version-check

locked-deploy: $(VENV)/bin/python  ## the same for a server or a site alone: coterie[deploy], from requirements-deploy.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-deploy.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation .
	$(BIN)/pip check --disable-pip-version-check

pages: demo  ## look at the demo's page and at inspections of 10 and 1,000 clients in a real browser (needs chromium)
	$(BIN)/python scripts/check_page.py runs/demo/report.html
	$(BIN)/coterie inspect --data 'digits/rotated(clients=10,groups=2,validation=0.2)' --out runs/inspect-10
	$(BIN)/coterie inspect --data 'synthetic(iid,clients=1000)/labelswap(groups=2)' --out runs/inspect-1000
	$(BIN)/python scripts/check_page.py runs/inspect-10/inspection.html runs/inspect-1000/inspection.html --inspection

docs: $(VENV)/.dev  ## the parts of the documentation that are made from the code, and the notebooks that are made from tutorials
	$(BIN)/python scripts/make_docs.py
	$(BIN)/python scripts/make_notebooks.py

results: $(VENV)/.dev  ## docs/results and its sentences in README.md, made again from the scores in results/; runs no study
	$(BIN)/python scripts/make_results.py

site: $(VENV)/.docs  ## the documentation as build/site/index.html: needs no network to read; tutorials are executed where Coterie has changed
	$(BIN)/python -m sphinx -W --keep-going -q -d build/site-pages docs build/site

bench: $(VENV)/.core $(VENV)-pfl/.done $(VENV)-flower/.done $(VENV)-cfla/.done  ## side by side with peers; then CFLA's own example, where MNIST is in COTERIE_DATA
	$(BIN)/python -m benchmarks.bench --pfl $(VENV)-pfl/bin/python --flower $(VENV)-flower/bin/python --cfla $(VENV)-cfla/bin/python
	test -z "$$COTERIE_DATA" || $(BIN)/python -m benchmarks.peer_example --cfla $(VENV)-cfla/bin/python --results build/peers/example.csv

# Flower and constraints.txt exclude each other (rich, typer, protobuf, packaging), so that it has an environment of its own.
flower: $(VENV)-flower/.done

test-flower: $(VENV)-flower/.done  ## the tests of coterie.flower, on a simulation of Flower's and on a SuperLink with two SuperNodes
	env -u PYTHONDONTWRITEBYTECODE $(VENV)-flower/bin/python -m pytest tests/flower

$(VENV)-flower/.done: constraints-flower.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e '.[flower]' pytest hypothesis
	touch $@

$(VENV)-%/.done: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/pip install --quiet --disable-pip-version-check -r $<
	if test -f benchmarks/peers/$*-alone.txt; then $(VENV)-$*/bin/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers/$*-alone.txt; fi
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) -e '.[deploy,docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
