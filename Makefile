# dlaunch: build, test, install. `make help` lists what there is.
#
#   SANITIZE=address,undefined | thread   builds and tests with sanitizers, in a folder of their own
#   SHARED_DEPS=1                         links libuv, inih and jansson as shared libraries (packagers)
#   WITH_NCCL=auto|yes|no  CUDA_HOME=DIR  whether libdlcoll gets its NCCL backend
#   PREFIX=/usr/local  DESTDIR=           where `make install` puts things
#   V=1                                   shows the commands
#   WERROR=1                              warnings are errors

VERSION := $(shell cat VERSION)

comma    := ,
SANITIZE ?=
BUILD    ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
PREFIX   ?= /usr/local
DESTDIR  ?=
CC       ?= gcc
PKG_CONFIG ?= pkg-config
CUDA_HOME ?= /usr/local/cuda
WITH_NCCL ?= auto
.DEFAULT_GOAL := all

ifeq ($(V),1)
  Q :=
  say = @:
else
  Q := @
  say = @printf '  %-5s %s\n'
endif

# ---------------------------------------------------------------------------------------- flags

WARN := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wpointer-arith -Wstrict-prototypes \
        $(if $(WERROR),-Werror)
HARDEN := -fstack-protector-strong -fstack-clash-protection -fcf-protection
ifeq ($(SANITIZE),)
  OPT ?= -O2
  HARDEN += -D_FORTIFY_SOURCE=2
else
  OPT ?= -O1
  SAN := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer
endif
CFLAGS   ?= $(OPT) -g
CPPFLAGS += -D_GNU_SOURCE -I. -I$(BUILD)/gen -DDLAUNCH_VERSION='"$(VERSION)"'
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) $(HARDEN) $(SAN) -MMD -MP
LDFLAGS  += -Wl,-z,relro -Wl,-z,now -Wl,--as-needed $(SAN)

# Third-party libraries are linked statically where their archives are installed: a launcher that maps
# three libraries less starts sooner, and the binary can be copied to a node that lacks them.
static_or_shared = $(or $(if $(SHARED_DEPS),,$(filter /%,$(shell $(CC) -print-file-name=$(1)))),$(2))
LIBS := $(call static_or_shared,libuv_a.a,-luv) $(call static_or_shared,libinih.a,-linih) \
        $(call static_or_shared,libjansson.a,-ljansson) -lpthread -ldl -lm
CHECK_LIBS = $(shell $(PKG_CONFIG) --libs check)

# -------------------------------------------------------------------------------------- sources

GEN      := $(BUILD)/gen
src       = $(wildcard $(1)/*.c) $(wildcard $(1)/*/*.c)
obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
pic       = $(patsubst %.c,$(BUILD)/pic/%.o,$(1))

MAINS        := launcher/main.c launcher/dlaunchctl.c
LAUNCHER_SRC := $(filter-out $(MAINS),$(call src,launcher))
DLAUNCH_OBJ  := $(call obj,$(call src,core) $(call src,rendezvous) $(call src,agent) $(LAUNCHER_SRC))

# libdlcoll: its own folder, the parts of core without libuv, the blocking store client, and the store
# on a thread of its own.
DLCOLL_SRC := $(call src,collectives) \
              $(patsubst %,core/%.c,err bytes fd map netaddr parse log) \
              $(patsubst %,rendezvous/store_%.c,client proto thread service session table out)
DLCOLL_OBJ := $(call pic,$(DLCOLL_SRC))

EXAMPLES  := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
TESTLIB   := $(call obj,$(filter-out tests/lib/worker.c,$(wildcard tests/lib/*.c)))
test_bins  = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/$(1)/test_*.c))
UNIT        := $(call test_bins,unit)
INTEGRATION := $(call test_bins,integration)
MULTIHOST   := $(call test_bins,multihost)

PRODUCTS := $(BUILD)/dlaunch $(BUILD)/dlaunchctl $(BUILD)/libdlcoll.so

.PHONY: all
all: $(PRODUCTS) $(EXAMPLES)

# -------------------------------------------------------------------------------------- objects

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags
	$(say) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -fPIE -c -o $@ $<

$(BUILD)/pic/%.o: %.c $(BUILD)/.flags
	$(say) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -c -o $@ $<

# Everything is built anew when the settings change.
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(LDFLAGS) $(LIBS)' | cmp -s - $@ || \
	 echo '$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(LDFLAGS) $(LIBS)' > $@
.PHONY: FORCE
FORCE:

link = $(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -pie -o $@

$(BUILD)/dlaunch: $(call obj,launcher/main.c) $(DLAUNCH_OBJ)
	$(say) LD $@
	$(link) $^ $(LIBS)

$(BUILD)/dlaunchctl: $(call obj,launcher/dlaunchctl.c) $(DLAUNCH_OBJ)
	$(say) LD $@
	$(link) $^ $(LIBS)

$(BUILD)/libdlcoll.so.0: $(DLCOLL_OBJ) collectives/dlcoll.map
	$(say) LD $@
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -shared -Wl,-soname,libdlcoll.so.0 \
	    $(if $(SANITIZE),,-Wl,-z,defs) -Wl,--version-script=collectives/dlcoll.map \
	    -o $@ $(DLCOLL_OBJ) -lpthread -ldl

$(BUILD)/libdlcoll.so: $(BUILD)/libdlcoll.so.0
	$(Q)ln -sf libdlcoll.so.0 $@

# Examples see the library as an installed program does.
$(BUILD)/obj/examples/%.o: CPPFLAGS += -Icollectives

$(BUILD)/examples/%: $(BUILD)/obj/examples/%.o $(BUILD)/libdlcoll.so
	$(say) LD $@
	$(link) $< -L$(BUILD) -ldlcoll -lm -Wl,-rpath,'$$ORIGIN/..'

# ---------------------------------------------------------------------------------------- tests

# A test program is one file plus the test library, linked against the inside of everything.
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TESTLIB) $(DLAUNCH_OBJ) $(call obj,$(call src,collectives))
	$(say) LD $@
	$(link) $^ $(CHECK_LIBS) $(LIBS)

$(BUILD)/tests/worker: $(BUILD)/obj/tests/lib/worker.o
	$(say) LD $@
	$(link) $^

.SECONDARY:

# `deps` is quick when nothing is missing. A build that lacks a library stops with the line to type.
.PHONY: deps need-libs
deps:
	$(Q)conf/install-deps.sh build

need-libs:
	@for l in libuv inih jansson; do $(PKG_CONFIG) --exists $$l || \
	    { echo "$$l is not installed: type 'make deps' (or install it yourself)" >&2; exit 1; }; done

.PHONY: test unit test-multihost layers corpora
unit: $(BUILD)/tests/worker $(UNIT)
	$(Q)tests/run.sh $(UNIT)

test:
	$(Q)conf/install-deps.sh test
	$(Q)$(MAKE) --no-print-directory run-tests

.PHONY: run-tests
run-tests: all $(BUILD)/tests/worker $(UNIT) $(INTEGRATION) corpora
	$(Q)tests/layers.sh
	$(Q)tests/run.sh $(UNIT) $(INTEGRATION)

test-multihost:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory run-multihost

.PHONY: run-multihost
run-multihost: all $(BUILD)/tests/worker $(MULTIHOST)
	$(Q)JOBS=1 tests/run.sh $(MULTIHOST)

layers:
	$(Q)tests/layers.sh

# ------------------------------------------------------------------------------------- fuzzing

# A fuzz target is one file. With libFuzzer: `make fuzz FUZZ_SECONDS=600` runs each of them that long
# (FUZZ=ini for one alone). As a plain program it replays its corpus: `make corpora`, part of `make test`.
FUZZ_SECONDS ?= 60
FUZZ         ?= $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_FLAGS   := CC=clang SANITIZE=fuzzer-no-link,address,undefined

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(DLAUNCH_OBJ) $(call obj,$(call src,collectives))
	$(say) LD $@
	$(link) -fsanitize=fuzzer $^ $(LIBS)

$(BUILD)/replay/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/tests/fuzz/replay_main.o \
                   $(DLAUNCH_OBJ) $(call obj,$(call src,collectives))
	$(say) LD $@
	$(link) $^ $(LIBS)

.PHONY: fuzz fuzz-targets corpora
fuzz-targets: $(FUZZ:%=$(BUILD)/fuzz/%)
fuzz:
	$(Q)conf/install-deps.sh fuzz
	$(Q)$(MAKE) --no-print-directory $(FUZZ_FLAGS) fuzz-targets
	$(Q)tests/fuzz/run.sh build-fuzzer-no-link-address-undefined/fuzz $(FUZZ_SECONDS) $(FUZZ)

corpora: $(FUZZ:%=$(BUILD)/replay/%)
	$(Q)for t in $(FUZZ); do printf '%-34s ' replay_$$t; \
	    $(BUILD)/replay/$$t tests/fuzz/corpus/$$t || exit 1; done

# ---------------------------------------------------------------------------------------- bench

bench_bin = $(BUILD)/tests/bench/$(1)

.PHONY: bench bench-launch bench-rdzv bench-store bench-stdio deps-bench
deps-bench:
	$(Q)conf/install-deps.sh bench

bench: bench-launch bench-rdzv bench-store bench-stdio

bench-launch: all $(call bench_bin,floor) $(call bench_bin,nap)
	$(Q)tests/bench/bench-launch.py $(BUILD)

bench-store: $(call bench_bin,bench_store) $(call bench_bin,store_serve)
	$(Q)tests/bench/bench-store.sh $(BUILD)

bench-rdzv: $(call bench_bin,bench_rdzv)
	$(Q)$<

bench-stdio: $(call bench_bin,bench_stdio) $(BUILD)/tests/worker
	$(Q)$<

# --------------------------------------------------------------------------------- house-keeping

.PHONY: format lint clean help
format:
	clang-format -i $$(git ls-files '*.c' '*.h')

lint:
	$(Q)conf/install-deps.sh lint
	clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h')
	shellcheck $$(git ls-files '*.sh')
	$(if $(wildcard man/*.[1-9]),mandoc -T lint -W warning man/*.[1-9])
	tests/layers.sh

clean:
	rm -rf build build-*

help:
	@sed -n 's/^# \{0,1\}//; 1,/^$$/p' Makefile
	@echo 'Targets:'
	@echo '  all              build/dlaunch, build/dlaunchctl, build/libdlcoll.so, build/examples/*'
	@echo '  demo             trains a network on 2 launchers x 4 workers, one of which is killed'
	@echo '  test             unit and integration tests, layers, corpora'
	@echo '  test-multihost   network namespaces as hosts (root)'
	@echo '  bench            side by side with the peers that are installed'
	@echo '  fuzz             every fuzz target for FUZZ_SECONDS'
	@echo '  install          PREFIX=/usr/local DESTDIR='
	@echo '  deps deps-bench  install what is missing; lint format clean uninstall'

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
