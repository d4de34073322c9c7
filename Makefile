# Short names for what one does every day. Each installs what it lacks first (tools/setup).
SHELL := bash
JOBS ?= $(shell nproc)
SANITIZE ?= address
SUITE ?=
COMPARE ?=
KIND ?=

ifeq ($(SANITIZE),thread)
SANITIZER_PRESET := tsan
else
SANITIZER_PRESET := asan
endif

.PHONY: help demo build test test-python test-long test-threads sanitize bench check format tidy docs packages debian clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## train on real speech, decode unseen recordings, write out/demo/report.html (COMPARE=1)
	@COMPARE=$(COMPARE) JOBS=$(JOBS) tools/demo

build: ## release build in build/
	@tools/setup build
	@tools/build release $(JOBS)

test: build ## build and run all tests but the long ones
	@tools/setup python
	@tools/run_tests build --label-exclude long --jobs $(JOBS)

test-python: ## build the Python package and run its tests (make test does so too)
	@tools/setup build python
	@tools/run_python_tests

test-long: build ## the long tests as well
	@tools/setup python
	@tools/run_tests build --jobs $(JOBS)

sanitize: ## tests under the address and undefined-behaviour sanitizers (SANITIZE=thread: thread)
	@tools/setup build
	@tools/build $(SANITIZER_PRESET) $(JOBS)
	@tools/run_tests build-$(SANITIZER_PRESET) --label-exclude long --jobs $(JOBS)

test-threads: ## what runs on many threads, under the thread sanitizer
	@tools/setup build
	@tools/build tsan $(JOBS) $(foreach name,runtime jit ranks comm_meet,--target segfuse_test_$(name))
	@tools/run_tests build-tsan --only '^(runtime|jit|ranks|comm_meet)$$' --jobs $(JOBS)

bench: ## benchmarks (SUITE=name for one of them)
	@tools/setup build
	@tools/build release $(JOBS) -DSEGFUSE_BENCH=ON
	@bench/run $(SUITE)

check: ## format, lint, layers, budgets, loose ends
	@tools/setup build format
	@tools/check

format: ## format the C++ and Python sources in place
	@tools/setup format
	@tools/format

tidy: ## locks (clang's analysis), and clang-tidy over src/ and cli/ if it is installed
	@tools/setup build
	@tools/build release $(JOBS)
	@tools/check_locks --jobs $(JOBS)
	@command -v clang-tidy clang-tidy-19 >/dev/null || { echo "tidy: no clang-tidy here"; exit 2; }
	@find src cli -name '*.cpp' | xargs -P $(JOBS) -n 1 \
	  $$(command -v clang-tidy-19 clang-tidy | head -n 1) -p build --quiet \
	  --extra-arg=-Wno-unknown-warning-option

docs: ## the documentation as a site, in build-docs/
	@tools/setup docs
	@# Not --quiet: strict mode would count no warnings.
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -f packaging/site/mkdocs.yml
	@echo "docs: build-docs/index.html; with search: python3 -m http.server --directory build-docs"

packages: ## wheels, archive, Debian, Conan, vcpkg, conda, container: each tried out (KIND=name for one)
	@tools/setup build debian packages python
	@if [[ -z "$(KIND)" ]]; then JOBS=$(JOBS) tools/wheels && tools/test_wheels; fi
	@JOBS=$(JOBS) tools/test_packages $(KIND)

debian: ## Debian source and binary packages in build-debian, built from the last commit and tried
	@tools/setup build debian
	@DEB_BUILD_OPTIONS="$$DEB_BUILD_OPTIONS parallel=$(JOBS)" tools/debian_package

clean: ## remove what was built (not out/)
	rm -rf build build-*
