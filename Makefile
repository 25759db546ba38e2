# The one task file. `make help` lists what there is; .ci/run is what CI runs.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory --warn-undefined-variables
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Arguments for the program behind a target: make test ARGS="-k guarantee_07"
ARGS ?=
MINUTES ?= 30
PYTHON3 ?= python3
UV_VERSION := 0.13.9
RUST_PLUGINS := protoc-gen-prost@0.5.0 protoc-gen-tonic@0.5.0

PYTHON := .venv/bin/python
# The demo needs few packages: it uses the full environment where there is one, else a small one of its own.
DEMO_VENV := $(if $(wildcard .venv/.stamp),.venv,.venv-demo)
GENERATED := sidecar/_gen clients/python/pillion/_gen clients/go/pillionv1 clients/rust/src/gen clients/typescript/src/gen
GO_PLUGINS_STAMP := .tools/go-plugins.stamp
empty :=
space := $(empty) $(empty)
RUST_PLUGINS_STAMP := .tools/$(subst @,-,$(subst $(space),-,$(RUST_PLUGINS))).stamp
TS_MODULES_STAMP := clients/typescript/node_modules/.stamp
# The program with its hot modules compiled, as the wheel has it: of its own, so that it never hides what is edited.
COMPILED := .tools/compiled
COMPILED_STAMP := $(COMPILED)/.stamp
OIDC := tests/support/oidc
OIDC_STAMP := $(OIDC)/node_modules/.stamp
# Within clients/typescript: what is written by hand there.
PRETTIER := node_modules/.bin/prettier . '!dist' '!src/gen' '!package-lock.json'
TS_CALLER := clients/typescript/dist/examples/bare/caller.js

export PYTHONPATH := $(CURDIR):$(CURDIR)/clients/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Rust's build products stay out of the crate; the plugins and the crate share what they have in common.
export CARGO_TARGET_DIR := $(CURDIR)/.tools/rust-target

# $(call need,PROGRAM,WHAT IT IS): end with one sentence where a toolchain is missing.
need = command -v $(1) >/dev/null || { echo "$(1) is not on PATH: install $(2), which this target needs." >&2; exit 1; }
# $(call venv,DIRECTORY,REQUIREMENTS,PIP OPTIONS): make or update a virtual environment, naming each package as it comes.
define venv
@$(call need,$(PYTHON3),Python 3.11 or newer)
@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON3) is older than 3.11: install Python 3.11 or newer, or name it by PYTHON3=..." >&2; exit 1; }
@$(PYTHON3) -m venv $(1)
@$(1)/bin/python -m pip install --progress-bar off $(3) --require-hashes -r $(2) \
	| awk '/^Collecting/ { print "  " $$2; fflush() } /^Installing/ { print "  unpacking"; fflush() }'
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(DEMO_VENV)/.stamp ## serve a tool, call it on real data, print its result and save its chart
	@$(DEMO_VENV)/bin/python clients/python/examples/sdk/demo.py $(ARGS)

.PHONY: demo-session
demo-session: $(DEMO_VENV)/.stamp ## keep a database for the calls of a session, ask, pause, resume, and tear it down
	@$(DEMO_VENV)/bin/python clients/python/examples/session/session.py $(ARGS)

.PHONY: demo-polyglot
demo-polyglot: toolchains $(DEMO_VENV)/.stamp examples ## call a tool in Python and one in Go from Python, Go, Rust and TypeScript
	@$(DEMO_VENV)/bin/python clients/python/examples/polyglot/run.py $(ARGS)

.PHONY: examples
examples: toolchains $(TS_CALLER) ## build the examples in Go, Rust and TypeScript
	@echo "examples: Go"
	@cd clients/go; go build -v -o $(CURDIR)/.tools/go/ ./examples/bare/... ./internal/idle 2>&1 | awk '{ print "  " $$0; fflush() }'
	@echo "examples: Rust (one to two minutes the first time)"
	@cd clients/rust; cargo build --example bare 2>&1 | awk '!/Updating|Locking|Downloaded|Adding/ { print "  " $$0; fflush() }'

.PHONY: oidc
oidc: $(OIDC_STAMP)

.PHONY: toolchains
toolchains:
	@$(call need,go,Go 1.26 or newer)
	@$(call need,cargo,Rust 1.88 or newer)
	@$(call need,node,Node.js 20.19 or newer)
	@$(call need,npm,Node.js 20.19 or newer with npm)

.PHONY: proto
proto: .venv/.stamp $(GO_PLUGINS_STAMP) $(RUST_PLUGINS_STAMP) $(TS_MODULES_STAMP) ## generate the stubs of every language
	@$(PYTHON) proto/tools/generate.py $(ARGS)

.PHONY: check
check: check-toolchains check-python check-proto check-go check-rust check-typescript ## lint, types, import rules, protos, and the code of every language
	@echo "check: all passed"

.PHONY: check-toolchains
check-toolchains: toolchains
	@$(call need,git,git)

.PHONY: check-python
check-python: .venv/.stamp
	@echo "check: ruff"
	@$(PYTHON) -m ruff check --quiet
	@$(PYTHON) -m ruff format --check --quiet || { echo "some files are not formatted: run make fmt" >&2; exit 1; }
	@echo "check: mypy"
	@$(PYTHON) -m mypy --no-error-summary
	@echo "check: import rules"
	@.venv/bin/lint-imports --no-logo

.PHONY: check-proto
check-proto: proto
	@echo "check: the generated stubs are what the protos say"
	@git diff --exit-code --stat -- $(GENERATED) || { echo "make proto changed the files above: commit them." >&2; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	[[ -z $$new ]] || { echo "make proto made files that are not committed:" >&2; echo "$$new" >&2; exit 1; }
	@echo "check: buf lint"
	@.venv/bin/buf lint proto
	@.venv/bin/buf format --diff --exit-code proto || { echo "some protos are not formatted: run make fmt" >&2; exit 1; }
	@tag=$$(git for-each-ref --count=1 --sort=-version:refname --format='%(refname:short)' 'refs/tags/v*'); \
	if [[ -z $$tag ]]; then echo "check: there is no v* tag yet, so nothing that buf breaking could compare with"; exit 0; fi; \
	echo "check: buf breaking against $$tag"; \
	old=$$(mktemp -d); trap 'rm -rf "$$old"' EXIT; \
	git archive "$$tag" proto | tar -x -C "$$old"; \
	.venv/bin/buf breaking proto --against "$$old/proto"

.PHONY: check-go
check-go:
	@$(call need,go,Go 1.26 or newer)
	@echo "check: Go"
	@cd clients/go; go build ./...; go vet ./...; \
	unformatted=$$(gofmt -l .); [[ -z $$unformatted ]] || { echo "run make fmt: gofmt would change $$unformatted" >&2; exit 1; }

.PHONY: check-rust
check-rust:
	@$(call need,cargo,Rust 1.88 or newer)
	@echo "check: Rust"
	@cd clients/rust; cargo clippy --quiet --all-targets -- -D warnings; \
	cargo fmt --check || { echo "some files are not formatted: run make fmt" >&2; exit 1; }

.PHONY: check-typescript
check-typescript: $(TS_MODULES_STAMP)
	@echo "check: TypeScript"
	@cd clients/typescript; node_modules/.bin/tsc --noEmit; node_modules/.bin/eslint --max-warnings 0 .; \
	$(PRETTIER) --check --log-level warn || { echo "some files are not formatted: run make fmt" >&2; exit 1; }

.PHONY: test
test: .venv/.stamp $(if $(shell command -v npm),$(OIDC_STAMP)) ## run the tests; ARGS="-k guarantee_07" passes arguments on
	@$(PYTHON) -X dev -m pytest $(ARGS)

.PHONY: test-compiled
test-compiled: $(COMPILED_STAMP) ## run the tests of laws and guarantees against the program that make wheel builds
	@PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/$(COMPILED):$$PYTHONPATH" $(PYTHON) -X dev -m pytest -o pythonpath="$(COMPILED) . clients/python" \
		-k "law or guarantee" tests/wire tests/integration tests/faults $(ARGS)

.PHONY: wheel
wheel: $(COMPILED_STAMP) ## build the sidecar's wheel with its hot modules compiled, into dist/
	@echo "wheel: $$(ls dist/*.whl)"

.PHONY: bench
bench: $(COMPILED_STAMP) ## measure the program that make wheel builds, and write bench/out.json
	@PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/$(COMPILED):$$PYTHONPATH" $(PYTHON) -m bench $(ARGS)

.PHONY: soak
soak: .venv/.stamp ## serve for MINUTES=30 while workers are killed and settings change, and judge what was seen; or SESSIONS=100000 twice
	@$(PYTHON) $(if $(SESSIONS),-m tests.soak.sessions --sessions $(SESSIONS),-m tests.soak --minutes $(MINUTES)) $(ARGS)

.PHONY: mutants
mutants: .venv/.stamp ## break the code on purpose, and see that a test notices each time
	@$(PYTHON) tests/mutants/run.py $(ARGS)

.PHONY: fmt
fmt: toolchains .venv/.stamp $(TS_MODULES_STAMP) ## format the hand-written code of every language
	@$(PYTHON) -m ruff check --quiet --fix --exit-zero
	@$(PYTHON) -m ruff format --quiet
	@.venv/bin/buf format --write proto
	@cd clients/go; gofmt -w .
	@cd clients/rust; cargo fmt
	@cd clients/typescript; $(PRETTIER) --write --log-level warn

.PHONY: lock
lock: .tools/uv/.stamp-$(UV_VERSION) ## remake the hashed requirements; ARGS=--upgrade takes newer versions
	@compile() { .tools/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" $(ARGS) pyproject.toml "$$@"; }; \
	echo "lock: deploy/requirements.txt"; compile -o deploy/requirements.txt; \
	echo "lock: deploy/requirements-demo.txt"; compile --extra demo -o deploy/requirements-demo.txt; \
	echo "lock: tests/requirements.txt"; compile --extra dev -o tests/requirements.txt

.PHONY: clean
clean: ## remove everything that make made and git does not hold
	rm -rf .venv .venv-demo .tools dist demo-output $(OIDC)/node_modules clients/typescript/node_modules clients/typescript/dist clients/rust/target clients/rust/Cargo.lock bench/out.json
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find sidecar clients tests bench proto -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.venv/.stamp: tests/requirements.txt
	@echo "setup: the Python packages, into .venv (about a minute the first time)"
	$(call venv,.venv,tests/requirements.txt,)
	@touch $@

$(COMPILED_STAMP): .venv/.stamp pyproject.toml deploy/compile_hook.py $(wildcard sidecar/*.py sidecar/*/*.py)
	@$(call need,cc,a C compiler)
	@echo "setup: the wheel of the sidecar, its hot modules compiled (half a minute)"
	@rm -rf $(COMPILED) dist
	@HATCH_BUILD_HOOKS_ENABLE=1 $(PYTHON) -m hatchling build --target wheel --directory dist >/dev/null
	@$(PYTHON) -m zipfile -e dist/*.whl $(COMPILED)
	@$(PYTHON) -m compileall -q $(COMPILED)
	@version=$$(PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(COMPILED) $(PYTHON) -m sidecar version); echo "setup: $$version"; [[ $$version == *compiled* ]]
	@touch $@

.venv-demo/.stamp: deploy/requirements-demo.txt
	@echo "setup: the demo's Python packages, into .venv-demo (under a minute, once)"
	$(call venv,.venv-demo,deploy/requirements-demo.txt,--no-compile)
	@touch $@

.tools/uv/.stamp-$(UV_VERSION):
	@echo "setup: uv $(UV_VERSION)"
	@$(call need,$(PYTHON3),Python 3.11 or newer)
	@$(PYTHON3) -m venv .tools/uv
	@.tools/uv/bin/python -m pip install --quiet uv==$(UV_VERSION)
	@touch $@

$(GO_PLUGINS_STAMP): proto/tools/go.mod proto/tools/go.sum
	@$(call need,go,Go 1.26 or newer)
	@echo "setup: the protoc plugins for Go (half a minute the first time)"
	@mkdir -p .tools/bin
	@cd proto/tools; GOBIN=$(CURDIR)/.tools/bin go install tool
	@touch $@

$(RUST_PLUGINS_STAMP):
	@$(call need,cargo,Rust 1.88 or newer)
	@echo "setup: the protoc plugins for Rust, built from source (one to two minutes the first time)"
	@cargo install --locked --debug --force --root .tools $(RUST_PLUGINS) 2>&1 | awk '!/Updating|Locking|Downloaded|Adding|to your PATH/ { print "  " $$0; fflush() }'
	@touch $@

$(TS_MODULES_STAMP): clients/typescript/package.json clients/typescript/package-lock.json
	@$(call need,npm,Node.js 20.19 or newer with npm)
	@echo "setup: the packages for TypeScript"
	@cd clients/typescript; npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

$(OIDC_STAMP): $(OIDC)/package.json $(OIDC)/package-lock.json
	@$(call need,npm,Node.js 20.19 or newer with npm)
	@echo "setup: the OAuth 2 provider of the tests"
	@cd $(OIDC); npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

$(TS_CALLER): $(TS_MODULES_STAMP) clients/typescript/tsconfig.json $(wildcard clients/typescript/src/gen/*/*/*.ts clients/typescript/examples/*/*.ts)
	@echo "examples: TypeScript (a quarter of a minute)"
	@cd clients/typescript; node_modules/.bin/tsc
	@touch $@
