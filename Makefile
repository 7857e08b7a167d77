# make demo    the whole way of the data on real input: Spark -> three servers (the leader killed) -> index
#              (REPO=path takes the history of another git repository)
# make quick   the tests to run after each edit: no threads, no processes, few examples; under a minute
# make test    what has to pass before a change lands; under ten minutes
# make long    what make test leaves out and each change has to pass: planted bugs that take longer than half a second
#              to find, stories of sets, the demonstration, Spark on a cluster and over Connect
# make soak    the long tests: many seeds, many examples, Spark killed at every point, sets of processes under all faults
#              (TAILRACE_SOAK_SECONDS=n: the latter for n seconds)
# make coverage
#              make test with the coverage of each file
#              The five run in as many processes as there are processors, or two more (WORKERS=n: in n);
#              tests/README.md has more.
# make sparks  tests of Spark with each version that is supported (SPARK=4.0.5: with that one); it installs each in a
#              .venv-spark-VERSION (450 MB)
# make check   format, lint, types
# make docs    the documentation as a site, in build/site
# make bench   the measurements
# make simulate
#              nodes, writers and followers under faults, in one process on virtual time, a run for each seed:
#              SEED=n runs that one (TRACE=1 prints each event), SEEDS=n runs n of them, SECONDS=n as many as that time
#              allows; FIRST=n begins there; without any of them 20 run. One node runs, unless NODES=3 asks for a set of
#              three, SETS=1 for two, three or five as the seed chooses, COPIES=1 for programs that fetch copies,
#              SEGMENTS=any (or pull, push, switch) for sets whose nodes send each other segments, or
#              STORY=name for a story of a planted bug
# make reproduce BUG=13.1
#              a bug that was found from outside (docs/internals/reliability.md): its tests without the mend, and with it;
#              without BUG: lists them
# make clean   removes everything that the others made
#
# All but the last do all the set-up by themselves: a .venv with the versions of constraints.txt, made again where
# pyproject.toml or constraints.txt changed. PYTHON=python3.12 takes another interpreter for a new .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# Slow tests wait for other processes and for networks: three more of them than processors.
BUSY = $(shell $(BIN)/python -c 'import os; print(min(os.cpu_count() + 3, 16))')

# Each test of a process, and each worker, would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo quick test long soak sparks coverage check docs bench simulate reproduce clean

demo: $(INSTALLED)
	@$(BIN)/tailrace demo --data demo-data $(if $(REPO),--repo '$(REPO)')

quick: $(INSTALLED)
	@$(PYTEST) -n $(or $(WORKERS),auto) --tier=quick

test long soak: $(INSTALLED)
	@$(PYTEST) -n $(or $(WORKERS),$(BUSY)) --tier=$@

sparks: $(INSTALLED)
	@$(PYTEST) -n 0 -v tests/pyspark_tailrace/test_spark_versions.py $(if $(SPARK),-k '$(SPARK)')

coverage: $(INSTALLED)
	@$(PYTEST) -n $(or $(WORKERS),$(BUSY)) --tier=test --cov --cov-report=term

check: $(INSTALLED)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(INSTALLED)
	@$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/site && echo "open build/site/index.html"

bench: $(INSTALLED)
	@set -e; for question in bench/[!_]*.py; do echo "== $$question"; $(BIN)/python "$$question"; done

simulate: $(INSTALLED)
	@SEED='$(SEED)' SEEDS='$(SEEDS)' SECONDS='$(SECONDS)' FIRST='$(FIRST)' TRACE='$(TRACE)' \
	  NODES='$(NODES)' SETS='$(SETS)' COPIES='$(COPIES)' SEGMENTS='$(SEGMENTS)' STORY='$(STORY)' $(BIN)/python -m tests.simulation

reproduce: $(INSTALLED)
	@$(BIN)/python -m tests.reproduce $(BUG)

clean:
	rm -rf $(VENV) .venv-spark-* build dist demo-data spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find client_sdk server spark_sink tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# pyvenv.cfg is what tells a virtual environment from a folder. It is the first thing that `python -m venv` writes;
# .DELETE_ON_ERROR takes it away again where the rest failed.
$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Tailrace needs Python 3.11 or newer, and there is no '$(PYTHON)' here." >&2; \
	  echo "  Debian, Ubuntu:  sudo apt install python3 python3-venv" >&2; \
	  echo "  elsewhere:       make PYTHON=/path/to/python3 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Tailrace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "  Debian, Ubuntu:  sudo apt install python3.11 python3.11-venv" >&2; \
	  echo "  then:            make PYTHON=python3.11 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) comes without the modules venv and ensurepip, which make the .venv." >&2; \
	  echo "  Debian, Ubuntu:  sudo apt install python3-venv" >&2; \
	  echo "  for a Python that is not the system's own:  sudo apt install python3.X-venv  (its X)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@
