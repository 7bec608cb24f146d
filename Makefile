# Every target sets up what it needs first, takes what is there already, and works on its own.
#
#   make demo [INPUT=file]   a real cluster carries a real file, every line accounted for;
#                            REPLICAS=2: with copies, and a kill -9 half-way
#   make test [ARGS=...]     all tests; ARGS goes to pytest, e.g. ARGS='tests/unit -k log'
#   make test-long           the long forms of all tests that have one; takes hours
#   make chaos [ROWS=...]    kill, pause and cut real clusters with copies: TRIALS=n, SEED=n
#   make sim [SEEDS=...]     many seeds of simulated clusters with copies: SEEDS=n or from-to, JOBS=n
#   make fuzz [ARGS=...]     hostile bytes that coverage guides: --target NAME, --seconds S
#   make sanitize            tests of the compiled loops, with a watch on memory
#   make mutants [ARGS=...]  put small bugs into a copy of vq, one at a time: which suite finds each
#   make bench [ARGS=...]    every speed target beside what the bare machine gives; ARGS=--quick
#   make release [ARGS=...]  sdist and wheels into dist/, each one tried; uploads nothing
#   make audit [ARGS=...]    what vq installs, as an SBOM in dist/, and known faults in it
#   make check               lint, format, types, typed programs, import layers, generated code, bandit
#   make format              format with ruff, and fix what it can fix
#   make proto               the protobuf modules, after a change of a .proto file
#   make docs                the reference pages, schemas and dashboards, after a change of what they describe
#   make setup               install what all of them need, at once
#   make clean               remove everything that these commands create
#
# PYTHON=/path/to/python3.11 names the interpreter; without it the first new enough one is taken.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-long chaos sim fuzz sanitize mutants bench release audit check format proto docs setup clean

VENV := .venv/bin
RUN  := $(VENV)/python
ARGS ?=
INPUT ?=
REPLICAS ?= 1
JOBS ?= auto
ROWS ?= all
TRIALS ?= 0
SEED ?= 0
SEEDS ?= 2000

# The environment's own interpreter answers fastest that all is there; then the first one that runs
# and is new enough (a pyenv shim may exist and still not run).
define bootstrap
@set -e; python='$(PYTHON)'; \
for candidate in $(RUN) python3.11 python3.12 python3.13 python3.14 python3 python; do \
  test -n "$$python" && break; \
  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
  then python=$$candidate; fi; \
done; \
if ! command -v "$${python:-none}" >/dev/null; then \
  echo "vq needs Python >= 3.11; $${python:-none} was found. Name it: make $@ PYTHON=/path/to/python3.11" >&2; \
  exit 1; \
fi; \
exec "$$python" tools/bootstrap.py $(1)
endef

help:
	@sed -n 's/^#   /  /p' Makefile

demo:
	$(call bootstrap,demo)
	@$(RUN) tools/demo.py --replicas $(REPLICAS) $(if $(INPUT),"$(INPUT)")

# Hundreds of processes import vq: they keep what they compiled, also where the shell says not to.
test:
	$(call bootstrap,test)
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n $(JOBS) --maxprocesses 4 --dist worksteal $(ARGS)

test-long:
	$(call bootstrap,test)
	PYTHONDONTWRITEBYTECODE= VQ_LONG=1 $(RUN) -m pytest -m long --timeout 7200 $(ARGS)

chaos:
	$(call bootstrap,test)
	@PYTHONPATH=tests:. $(RUN) -m support.chaos --rows $(ROWS) --trials $(TRIALS) --seed $(SEED)

sim:
	$(call bootstrap,test)
	@PYTHONPATH=tests:. $(RUN) -m support.simulation --seeds $(SEEDS) \
	  --jobs $(if $(filter auto,$(JOBS)),2,$(JOBS)) $(ARGS)

sanitize:
	$(call bootstrap,test)
	@$(RUN) tools/sanitize.py $(ARGS)

fuzz:
	$(call bootstrap,test)
	@PYTHONPATH=tests:tests/property:. $(RUN) -m support.guided_fuzz $(ARGS)

mutants:
	$(call bootstrap,test)
	@$(RUN) tools/mutants.py $(ARGS)

bench:
	$(call bootstrap,demo bench)
	@$(RUN) -m bench.run $(ARGS)

release:
	$(call bootstrap,demo release)
	@$(RUN) tools/release.py $(ARGS)

audit:
	$(call bootstrap,demo audit)
	@$(RUN) tools/audit.py $(ARGS)

check:
	$(call bootstrap,test check)
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(RUN) tools/typed_programs.py
	$(RUN) tools/proto.py --check
	$(VENV)/bandit -q -r vq pyspark_vq -c pyproject.toml

format:
	$(call bootstrap,check)
	$(VENV)/ruff format .
	$(VENV)/ruff check --fix .

proto:
	$(call bootstrap,check)
	$(RUN) tools/proto.py

docs:
	$(call bootstrap,demo test)
	$(RUN) tools/cli_reference.py
	$(RUN) tools/api_reference.py
	$(RUN) tools/states.py
	$(RUN) tools/broker_metrics.py
	$(RUN) tools/dashboards.py
	$(RUN) tools/json_schemas.py

setup:
	$(call bootstrap,demo test check)

# Everything here can be made again; data of a cluster are never under these names.
clean:
	rm -rf .venv .cache .demo .test-artifacts .pytest_cache .mypy_cache .ruff_cache \
	  .import_linter_cache .hypothesis build dist
	rm -f vq/_message.*.so vq/remoting/_room.*.so vq/store/records/_codec.*.so vq/store/records/_columns.*.so vq/store/commit/_handover.*.so vq/client/producer/_accumulator.*.so vq/client/consumer/deliver/_asking.*.so vq/client/consumer/deliver/_bulk.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
