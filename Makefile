# The front door. `make help` says what there is; everything here is a few lines over CMake presets.

PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
CHAOS_POINTS ?= 200
CHAOS_SEED ?= 1
CHAOS_SECONDS ?= inf
ATTACK_SECONDS ?= 60
SUITE_JOBS ?= 2
REPORTS := $(CURDIR)/build/reports

.DEFAULT_GOAL := help
.PHONY: help demo test check fuzz chaos attack long bench install package wheel clean format release \
  torch-suite python-programs

help:          ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo:          ## install what is missing, build, and train a network on two ranks; on MNIST if MNIST is a folder with it
	tools/setup.sh build $(if $(MNIST),,digits)
	cmake --preset release
	cmake --build --preset release --target lockstep 01_ranks_meet 07_digits
	tools/demo.sh build/release $(MNIST)

test:          ## install what is missing, build, and run every test
	tools/setup.sh build test mpi package digits suite programs-if-reached
	$(MAKE) release
	ctest --preset release --output-junit $(REPORTS)/release.xml; status=$$?; cat build/release/tests_left_out.txt; exit $$status

check:         ## format, clang-tidy, thread safety, layers, asan and tsan tests, 5 s of each fuzzer
	tools/setup.sh --no-torch build test mpi check
	tools/check.sh

fuzz:          ## run each fuzzer for FUZZ_SECONDS (60)
	tools/setup.sh --no-torch build check
	cmake --preset fuzz
	cmake --build --preset fuzz
	tools/fuzz.sh $(FUZZ_SECONDS)

chaos: release ## inject CHAOS_POINTS (200) faults per case, world and transport; seed CHAOS_SEED (1), CHAOS_SECONDS at most
	@mkdir -p $(REPORTS)
	tests/chaos/chaos.py --rank-program build/release/tests/chaos_rank --command build/release/bin/lockstep \
	  --jumping-clock $(CURDIR)/build/release/lib/libjumping_clock.so --points $(CHAOS_POINTS) --seed $(CHAOS_SEED) \
	  --seconds $(CHAOS_SECONDS) --json $(REPORTS)/chaos.json --markdown $(REPORTS)/chaos.md
	tests/ddp/kills.py build/release/tests/ddp_faults_test --points $(CHAOS_POINTS) --seed $(CHAOS_SEED) \
	  --markdown $(REPORTS)/kills.md --rank-program build/release/tests/ddp_rank --command build/release/bin/lockstep \
	  --seconds $(CHAOS_SECONDS)

long: release  ## train every network in every way for 50 steps over TCP and between hosts (as root); damage 200,000 frames; asan on torch; make the wheel
	build/release/tests/ddp_bitwise_test --steps 50
	python3 tests/ddp/hosts_test.py build/release/bin/lockstep build/release/tests/ddp_rank --steps 50
	LOCKSTEP_TEST_LONG=1 build/release/tests/transport_link_tests --file=link_faults_test.cpp --gtest_brief=1
	cmake --preset asan-torch
	cmake --build --preset asan-torch
	ctest --preset asan-torch
	$(MAKE) wheel

attack: release ## run a job, and a store with 256 clients, under attack and load for ATTACK_SECONDS (60); their time is bounded
	@mkdir -p $(REPORTS)
	tests/chaos/attack.py --rank-program build/release/tests/world_rank --command build/release/bin/lockstep \
	  --seconds $(ATTACK_SECONDS) --json $(REPORTS)/attack.json
	build/release/tests/store_process_test --gtest_filter='*UnderLoadNobodyStarves' --load $(ATTACK_SECONDS)

bench:         ## run the benchmarks and print their tables
	tools/setup.sh build mpi
	$(MAKE) release
	tools/bench.sh build/release $(REPORTS)

install: release ## install libraries, headers, command and docs to PREFIX (/usr/local)
	cmake --install build/release --prefix $(PREFIX)

package:       ## make build/package/lockstep_*.deb of the torch-free core and the command
	tools/setup.sh --no-torch build package
	cmake --preset no-torch -B build/package -DLOCKSTEP_TESTS=OFF -DCMAKE_BUILD_TYPE=Release
	cmake --build build/package
	cd build/package && cpack -G DEB

torch-suite:   ## run torch's own distributed suite on Lockstep and on gloo, test by test; SUITE_JOBS (2) at a time
	tools/setup.sh build python suite
	$(MAKE) release
	PYTHONPATH=$(CURDIR)/build/release/python:$(CURDIR)/build/setup/packages nice "$$(cat build/setup/torch_python)" \
	  tests/torch_suite/torch_suite.py --folder $(REPORTS)/torch_suite --jobs $(SUITE_JOBS)

python-programs: ## train with PyTorch Lightning and accelerate, and a compiled graph, on Lockstep and on gloo
	tools/setup.sh build python programs
	$(MAKE) release
	PYTHONPATH=$(CURDIR)/build/release/python build/setup/programs/bin/python tests/python/frameworks_test.py

wheel:         ## make build/wheel/lockstep_torch-*.whl, for the torch that is found
	tools/setup.sh build python
	"$$(cat build/setup/torch_python)" python/build_backend.py build/wheel

format:        ## rewrite every C++ file as .clang-format says
	tools/setup.sh --no-torch build check
	git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' | xargs -0 clang-format-16 -i

clean:         ## remove what was built (what setup found and fetched, and the private .venv, stay)
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name setup ! -name data -exec rm -rf {} +

release:
	tools/setup.sh build
	cmake --preset release
	cmake --build --preset release
