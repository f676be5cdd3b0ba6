# dlaunch: build, test, install. `make help` lists what there is.
#
#   SANITIZE=address,undefined | thread   builds and tests with sanitizers, in a folder of their own
#   ARCH=aarch64                          builds for another processor (Debian's cross compiler): `make wheel`
#   SHARED_DEPS=1                         links libuv, inih and jansson as shared libraries (packagers)
#   PREFIX=/usr/local  DESTDIR=           where `make install` puts things
#   WITH_NCCL=auto|yes|no  CUDA_HOME=     the nccl backend, and where its header is looked for
#   V=1                                   shows the commands
#   WERROR=1                              warnings are errors

VERSION := $(shell cat VERSION)

comma    := ,
SANITIZE ?=
MACHINE  := $(shell uname -m)
ifneq ($(origin ARCH),command line)
  ARCH   := $(MACHINE)
endif
cross    := $(if $(filter-out $(MACHINE),$(ARCH)),$(ARCH))
BUILD    ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))$(if $(cross),-$(cross))
PREFIX   ?= /usr/local
DESTDIR  ?=
CC       ?= gcc
# The target's C library and headers are in the sysroot (conf/make-sysroot.sh).
ifneq ($(cross),)
  $(if $(filter-out x86_64 aarch64,$(cross)),$(error ARCH=$(cross) is not known (aarch64 or x86_64)))
  SYSROOT := $(abspath $(BUILD)/sysroot)
  CC := $(cross)-linux-gnu-gcc --sysroot=$(SYSROOT)
  AR := $(cross)-linux-gnu-ar
endif
PKG_CONFIG ?= pkg-config
.DEFAULT_GOAL := all

# What a user types without -j is built on all CPUs; of several targets, one after the other.
on_all_cpus = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
ifeq ($(MAKELEVEL)$(findstring -j,$(MAKEFLAGS))$(word 2,$(MAKECMDGOALS)),0)
  MAKEFLAGS += -j$(shell nproc)
endif

# A target is one to be typed because it has a line of help, "## name: what it does".
MAKEFILES_READ := Makefile $(wildcard mk/*.mk)
.PHONY: $(shell sed -n 's/^## \([a-z-]*\):.*/\1/p' $(MAKEFILES_READ))

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
HARDEN := -fstack-protector-strong -fstack-clash-protection \
          $(if $(filter x86_64,$(ARCH)),-fcf-protection) $(if $(filter aarch64,$(ARCH)),-mbranch-protection=standard)
ifeq ($(SANITIZE),)
  OPT ?= -O2
  HARDEN += -D_FORTIFY_SOURCE=2
else
  OPT ?= -O1
  SAN := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer
endif
CFLAGS   ?= $(OPT) -g
CPPFLAGS += -D_GNU_SOURCE -I. -DDLAUNCH_VERSION='"$(VERSION)"'
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) $(HARDEN) $(SAN) -MMD -MP
LDFLAGS  += -Wl,-z,relro -Wl,-z,now -Wl,--as-needed $(SAN)

# Third-party libraries are linked statically where their archives are installed: a launcher that maps
# three libraries less starts sooner, and the binary can be copied to a node that lacks them.
static_or_shared = $(or $(if $(SHARED_DEPS),,$(filter /%,$(shell $(CC) -print-file-name=$(1) 2>/dev/null))),$(2))
LIBS := $(call static_or_shared,libuv_a.a,-luv) $(call static_or_shared,libinih.a,-linih) \
        $(call static_or_shared,libjansson.a,-ljansson) -lpthread -ldl -lm
CHECK_LIBS = $(shell $(PKG_CONFIG) --libs check)

# -------------------------------------------------------------------------------------- sources

src       = $(wildcard $(1)/*.c) $(wildcard $(1)/*/*.c)
obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
pic       = $(patsubst %.c,$(BUILD)/pic/%.o,$(1))

MAINS        := launcher/main.c launcher/control/dlaunchctl.c agent/inspect/dlaunch_inspect.c
LAUNCHER_SRC := $(filter-out $(MAINS) launcher/api/%,$(call src,launcher))
DLAUNCH_OBJ  := $(call obj,$(call src,core) $(call src,rendezvous) $(filter-out $(MAINS),$(call src,agent)) $(LAUNCHER_SRC))

# WITH_NCCL=auto: the nccl backend, which needs no header of NVIDIA's; where nccl.h is found (CUDA_HOME,
# the compiler's folders) its declarations are compared with it. yes: nccl.h must be there. no: without.
WITH_NCCL ?= auto
CUDA_HOME ?= /usr/local/cuda
ifeq ($(WITH_NCCL),no)
  CPPFLAGS += -DWITHOUT_NCCL
else
  nccl_h := $(shell for d in "" -I$(CUDA_HOME)/include; do \
      $(CC) $$d -include nccl.h -E -x c /dev/null >/dev/null 2>&1 && { echo "found $$d"; break; }; done)
  ifneq ($(nccl_h),)
    %/collectives/nccl/nccl_abi.o: private CPPFLAGS += -DHAVE_NCCL_H $(patsubst -I%,-isystem %,$(filter -I%,$(nccl_h)))
  else ifeq ($(WITH_NCCL),yes)
    $(error WITH_NCCL=yes, but nccl.h is not there: set CUDA_HOME, or install NCCL's headers)
  endif
endif

# libdlcoll: its own folder, the parts of core without libuv, the blocking store client, and the store
# on a thread of its own.
COLL_SRC   := $(filter-out collectives/tools/% collectives/profiler/%,$(call src,collectives))
DLCOLL_SRC := $(COLL_SRC) \
              $(patsubst %,core/%.c,err bytes escape fd futex hostlist map memlock netaddr parse peer_uid log reserve thread) \
              $(patsubst %,rendezvous/store/store_%.c,client proto thread service session table out)
DLCOLL_OBJ := $(call pic,$(DLCOLL_SRC))

# The profiler plug-in for NCCL, and what it needs of a segment's reader.
PROFILER_OBJ := $(call pic,$(wildcard collectives/profiler/*.c) collectives/bootstrap/job_segment.c core/err.c core/fd.c core/reserve.c)

# libdlaunch: the protocol of a job's program and its dlaunch, and what it needs of core.
API_SRC   := $(wildcard launcher/api/*.c)
API_OBJ   := $(call pic,$(API_SRC) launcher/hosts/frame.c $(patsubst %,core/%.c,bytes err fd mem parse))

EXAMPLES  := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
PRODUCTS := $(BUILD)/dlaunch $(BUILD)/dlaunchctl $(BUILD)/dlaunch-inspect $(BUILD)/libdlaunch.so $(BUILD)/libdlcoll.so $(BUILD)/libdlaunch_nccl.so $(BUILD)/dlcoll_perf \
            $(BUILD)/dlcoll_info $(BUILD)/dlcoll_tune

## all: dlaunch, dlaunchctl, the libraries, the tools and the examples, in BUILD; the default, on all CPUs
all: $(PRODUCTS) $(EXAMPLES)

# -------------------------------------------------------------------------------------- objects

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags
	$(say) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -fPIE -c -o $@ $<

# The text of the warm interpreters is part of the launcher.
$(BUILD)/obj/agent/process/warm_pool.o: agent/process/warm_pool.py

# GCC clears a struct of some hundred bytes by an instruction that takes four times as long as the C
# library's memset(): ten nanoseconds, and a small operation has several of them. Without this a
# ping-pong of 8 bytes takes 0.29 us in place of 0.23, an all_reduce 0.47 in place of 0.43.
CLEARING := -mmemset-strategy=unrolled_loop:128:noalign,libcall:-1:noalign
CLEARING := $(shell $(CC) $(CLEARING) -c -x c /dev/null -o /dev/null 2>/dev/null && echo '$(CLEARING)')

# Tests link these objects, programs the library: hot paths check themselves in tests only
# (core/debug_assert.h). All of a build with sanitizers is for tests.
$(BUILD)/obj/collectives/%.o $(BUILD)/obj/tests/%.o: private CPPFLAGS += -DDLAUNCH_CHECKED
ifneq ($(SANITIZE),)
$(BUILD)/pic/collectives/%.o: private CPPFLAGS += -DDLAUNCH_CHECKED
endif

$(BUILD)/pic/%.o: %.c $(BUILD)/.flags
	$(say) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(CLEARING) -fPIC -fvisibility=hidden -c -o $@ $<

# The reduction kernels: the same bits whatever the processor, so no fused multiply-add; and those for
# processors that not everybody has.
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
%/collectives/reduce/reduce_avx2.o:   private ALL_CFLAGS += -mavx2 -mf16c
%/collectives/reduce/reduce_avx512.o: private ALL_CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl
endif
KERNEL_OBJ := %/collectives/reduce/reduce_portable.o %/collectives/reduce/reduce_avx2.o %/collectives/reduce/reduce_avx512.o
$(KERNEL_OBJ): private ALL_CFLAGS += -ffp-contract=off

# (Their own settings are private: what they are built from, .flags among it, has the common ones.)
#
# Everything is built anew when the settings change; before that, it is seen whether all is there that
# a build needs.
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(LDFLAGS) $(LIBS)' | cmp -s - $@ || { \
	 command -v $(firstword $(CC)) >/dev/null || \
	    { echo "The compiler $(firstword $(CC)) is missing: type 'make deps$(if $(cross), ARCH=$(cross))' (or install it yourself)" >&2; exit 1; }; \
	 for h in uv ini jansson openssl/ssl; do \
	    echo "#include <$$h.h>" | $(CC) $(CPPFLAGS) -E - >/dev/null 2>&1 || \
	    { echo "$$h.h is missing: type 'make deps$(if $(cross), ARCH=$(cross))' (or install libuv, inih, jansson and OpenSSL yourself)" >&2; exit 1; }; \
	 done; \
	 echo '$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(LDFLAGS) $(LIBS)' > $@; }
.PHONY: FORCE
FORCE:

link = $(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -pie -o $@

# Each of these takes from the archive what it uses.
$(BUILD)/inside.a: $(DLAUNCH_OBJ)
	$(Q)rm -f $@ && $(AR) rcsT $@ $^

$(BUILD)/dlaunch:         $(call obj,launcher/main.c)
$(BUILD)/dlaunchctl:      $(call obj,launcher/control/dlaunchctl.c)
$(BUILD)/dlaunch-inspect: $(call obj,agent/inspect/dlaunch_inspect.c)
$(BUILD)/dlaunch $(BUILD)/dlaunchctl $(BUILD)/dlaunch-inspect: $(BUILD)/inside.a
	$(say) LD $@
	$(link) $(filter %.o,$^) $(filter %.a,$^) $(LIBS)

$(BUILD)/libdlcoll.so.0: $(DLCOLL_OBJ) collectives/dlcoll.map
	$(say) LD $@
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -shared -Wl,-soname,libdlcoll.so.0 \
	    $(if $(SANITIZE),,-Wl,-z,defs) -Wl,--version-script=collectives/dlcoll.map \
	    -o $@ $(DLCOLL_OBJ) -lpthread -ldl

$(BUILD)/libdlaunch.so.0: $(API_OBJ) launcher/api/dlaunch.map
	$(say) LD $@
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -shared -Wl,-soname,libdlaunch.so.0 \
	    $(if $(SANITIZE),,-Wl,-z,defs) -Wl,--version-script=launcher/api/dlaunch.map -o $@ $(API_OBJ)

$(BUILD)/libdlaunch_nccl.so: $(PROFILER_OBJ)
	$(say) LD $@
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F) $(if $(SANITIZE),,-Wl,-z,defs) -o $@ $^ -lpthread -ldl

$(BUILD)/libdlaunch.so $(BUILD)/libdlcoll.so: %: %.0
	$(Q)ln -sf $(<F) $@

# The tools are programs like any other: of the library they know dlcoll.h only.
$(BUILD)/dlcoll_perf: $(call obj,collectives/tools/dlcoll_perf.c $(wildcard collectives/tools/perf_*.c) collectives/tools/tool.c) \
                      $(BUILD)/libdlcoll.so
	$(say) LD $@
	$(link) $(filter %.o,$^) -L$(BUILD) -ldlcoll -lm -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib'

$(BUILD)/dlcoll_info $(BUILD)/dlcoll_tune: $(BUILD)/%: $(BUILD)/obj/collectives/tools/%.o \
                      $(BUILD)/obj/collectives/tools/tool.o $(BUILD)/libdlcoll.so
	$(say) LD $@
	$(link) $(filter %.o,$^) -L$(BUILD) -ldlcoll -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib'

# Examples see the library as an installed program does.
$(BUILD)/obj/examples/%.o: private CPPFLAGS += -Icollectives

$(BUILD)/examples/%: $(BUILD)/obj/examples/%.o $(BUILD)/libdlcoll.so
	$(say) LD $@
	$(link) $< -L$(BUILD) -ldlcoll -lm -Wl,-rpath,'$$ORIGIN/..'

.SECONDARY:

# `deps` is quick when nothing is missing. A build that lacks something stops with the line to type.
## deps: installs what a build needs and is not there (ARCH=aarch64: for that processor, too)
deps:
	$(Q)conf/install-deps.sh build $(if $(cross),cross-$(cross))
	$(Q)$(if $(cross),conf/make-sysroot.sh $(cross) $(SYSROOT))

include mk/tests.mk mk/trials.mk mk/bench.mk mk/packages.mk

# ------------------------------------------------------------------------------------------ demo

## demo: trains a network on 2 launchers x 4 workers, one of which is killed
demo:
	$(Q)conf/install-deps.sh build
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)examples/demo.sh $(BUILD)

# The picture of the demo in README.md, and those of doc/seeing.md.
## picture: draws doc/*.svg from real runs
picture: all
	$(Q)examples/demo-picture.py $(BUILD) doc/demo.svg
	$(Q)examples/seeing-pictures.py $(BUILD) doc

# --------------------------------------------------------------------------------- house-keeping

# The files that are made from launcher/options/options.def.
## generated: conf/dlaunch.ini, conf/dlaunch.bash and the OPTIONS of man/dlaunch.1, from launcher/options/options.def
generated: $(BUILD)/dlaunch
	$(BUILD)/dlaunch --print_options ini > conf/dlaunch.ini
	$(BUILD)/dlaunch --print_completion bash > conf/dlaunch.bash
	{ sed '/^\.\\" OPTIONS begin/q' man/dlaunch.1; $(BUILD)/dlaunch --print_options mdoc; \
	  sed -n '/^\.\\" OPTIONS end/,$$p' man/dlaunch.1; } > $(BUILD)/dlaunch.1
	cp $(BUILD)/dlaunch.1 man/dlaunch.1

## format: formats the C and C++ files
format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cc' '*.hpp')

## lint: clang-format, shellcheck, mandoc, layers
lint:
	$(Q)conf/install-deps.sh lint
	clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h' '*.cc' '*.hpp')
	shellcheck $$(git ls-files '*.sh') .ci/run
	mandoc -T lint -W warning man/*.[1-9]
	tests/layers.sh

## clean: removes build and build-*
clean:
	rm -rf build build-*

## help: this text
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
	@awk '/^# / && FNR == 1 && !/^# dlaunch/ { printf "\n%s\n", substr($$0, 3) } FNR == 1 && /^# dlaunch/ { print "\nBuilding" } \
	      /^## / { t = $$2; sub(":", "", t); sub("^## [^ ]* ", ""); printf "  %-21s %s\n", t, $$0 }' $(MAKEFILES_READ)

## compile_commands.json: how each file is compiled, for clangd and other tools
compile_commands.json: FORCE
	$(Q)$(MAKE) --no-print-directory -Bn V=1 everything | sed -nE -e '/ -c -o [^ ]+ [^ ]+\.c$$/!d' -e 's/[\"]/\\&/g' \
	    -e 's|^.* -c -o ([^ ]+) ([^ ]+)$$|{"directory": "$(CURDIR)", "file": "\2", "output": "\1", "command": "&"}|p' | \
	    sed '1s/^/[/; $$!s/$$/,/; $$s/$$/]/' > $@

-include $(shell find $(BUILD) -path $(BUILD)/sysroot -prune -o -name '*.d' -print 2>/dev/null)

