# make book      set up .venv, run every lesson, write the pages
# make test      unit tests, every cell of every lesson, the built book in a browser
# make lab       the lessons in JupyterLab
# make gpu-test  what needs a CUDA device, and every lesson on it
# make clean     remove what was built (not .venv)
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := book
.PHONY: book test lab gpu-test clean setup

PY := .venv/bin/python
LOCK := $(shell nvidia-smi >/dev/null 2>&1 && echo requirements.txt || echo requirements-cpu.txt)
STAMP := .venv/.installed-$(basename $(LOCK))
PIP := $(PY) -m pip install -qq --disable-pip-version-check
TORCH := $(shell grep '^torch==' $(LOCK))
NBVAL := --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg
export PYTHON_OK := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))

setup: $(STAMP)

$(STAMP): $(LOCK) pyproject.toml
	@found=
	for candidate in $(or $(PYTHON),python3.12 python3.11 python3); do
	  if $$candidate -c "$$PYTHON_OK" >/dev/null 2>&1; then found=$$candidate; break; fi
	done
	if [ -z "$$found" ]; then
	  echo "make: needs Python 3.11 or 3.12 with venv; $(or $(PYTHON),python3) is '$$($(or $(PYTHON),python3) -V 2>&1 | head -1)'." \
	    "Install one (Debian: python3-venv too) or name it: make PYTHON=/path/to/python3.12" >&2
	  exit 1
	fi
	$(PY) -c "$$PYTHON_OK" >/dev/null 2>&1 || $$found -m venv --clear .venv
	echo "Installing $(LOCK) into .venv (about 4 GB, some minutes the first time) ..."
	if [ $(LOCK) = requirements.txt ]; then
	  $(PIP) -r requirements.txt
	else
	  $(PIP) $(TORCH)
	  $(PIP) --no-deps -r requirements-cpu.txt
	fi
	$(PIP) --no-deps -e .
	touch $@

book: $(STAMP)
	@mkdir -p _build
	$(PY) -m rrlforge.course --write
	echo "Warming up the tiny model, unless it is cached (a minute or two) ..."
	$(PY) -c 'from rrlforge.models import tiny_folder; tiny_folder()' >_build/tiny.log 2>&1 || { tail -n 5 _build/tiny.log >&2; exit 1; }
	echo "Building the book (the first time runs every lesson: some minutes) ..."
	if ! .venv/bin/jupyter-book build . -q -W --keep-going >_build/build.log 2>&1; then
	  grep -E 'WARNING|ERROR|Error' _build/build.log | grep -vE 'IPKernelApp|^ |^raise|sphinx-err' | sort -u | head -n 20 >&2
	  echo "make: the book did not build (above: what went wrong); the whole log is _build/build.log" >&2
	  exit 1
	fi
	echo "Open $(CURDIR)/_build/html/index.html"

test: book
	@$(PY) -m pytest -q $(NBVAL) tests chapters

gpu-test: book
	@$(PY) -m pytest -q $(NBVAL) $(wildcard tests/gpu) chapters

lab: $(STAMP)
	@JUPYTER_CONFIG_PATH=$(CURDIR)/book/jupyter .venv/bin/jupyter lab --ServerApp.root_dir=$(CURDIR)/chapters $(LAB)

clean:
	@rm -rf _build .pytest_cache
	find lib tests book -name __pycache__ -prune -exec rm -rf {} +
