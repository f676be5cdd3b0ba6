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

# libdlcoll: its own folder, the parts of core without libuv, and the blocking store client.
DLCOLL_SRC := $(call src,collectives) \
              core/err.c core/bytes.c core/fd.c core/map.c core/netaddr.c core/parse.c \
              core/log.c rendezvous/store_proto.c rendezvous/store_client.c \
              rendezvous/store_table.c
DLCOLL_OBJ := $(call pic,$(wildcard $(DLCOLL_SRC)))

EXAMPLES  := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
TESTLIB   := $(call obj,$(filter-out tests/lib/worker.c,$(wildcard tests/lib/*.c)))
test_bins  = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/$(1)/test_*.c))
UNIT        := $(call test_bins,unit)
INTEGRATION := $(call test_bins,integration)
MULTIHOST   := $(call test_bins,multihost)
FUZZ        := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCH       := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))

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
	    -Wl,--version-script=collectives/dlcoll.map -o $@ $(DLCOLL_OBJ) -lpthread -ldl

$(BUILD)/libdlcoll.so: $(BUILD)/libdlcoll.so.0
	$(Q)ln -sf libdlcoll.so.0 $@

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

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

.SECONDARY:

.PHONY: test unit integration layers
unit: $(UNIT)
	$(Q)tests/run.sh $(UNIT)

test: all $(BUILD)/tests/worker $(UNIT) $(INTEGRATION)
	$(Q)tests/layers.sh
	$(Q)tests/run.sh $(UNIT) $(INTEGRATION)

layers:
	$(Q)tests/layers.sh

.PHONY: format clean
format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build build-*
