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
endif
PKG_CONFIG ?= pkg-config
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

MAINS        := launcher/main.c launcher/control/dlaunchctl.c
LAUNCHER_SRC := $(filter-out $(MAINS) launcher/api/%,$(call src,launcher))
DLAUNCH_OBJ  := $(call obj,$(call src,core) $(call src,rendezvous) $(call src,agent) $(LAUNCHER_SRC))

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
              $(patsubst %,core/%.c,err bytes escape fd futex hostlist map memlock netaddr parse peer_uid log thread) \
              $(patsubst %,rendezvous/store/store_%.c,client proto thread service session table out)
DLCOLL_OBJ := $(call pic,$(DLCOLL_SRC))

# The profiler plug-in for NCCL, and what it needs of a segment's reader.
PROFILER_OBJ := $(call pic,$(wildcard collectives/profiler/*.c) collectives/bootstrap/job_segment.c core/err.c core/fd.c)

# libdlaunch: the protocol of a job's program and its dlaunch, and what it needs of core.
API_SRC   := $(wildcard launcher/api/*.c)
API_OBJ   := $(call pic,$(API_SRC) launcher/hosts/frame.c $(patsubst %,core/%.c,bytes fd mem))

EXAMPLES  := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
FIXTURES  := $(patsubst %,tests/lib/%.c,member_script pump rdzv_nodes rdzv_script)
TESTLIB   := $(call obj,$(filter-out tests/lib/worker.c tests/lib/coll_worker.c tests/lib/hang_worker.c tests/lib/nccl_worker.c $(FIXTURES),$(wildcard tests/lib/*.c)))
test_bins  = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/$(1)/test_*.c))
UNIT        := $(call test_bins,unit)
INTEGRATION := $(call test_bins,integration)
MULTIHOST   := $(call test_bins,multihost)

PRODUCTS := $(BUILD)/dlaunch $(BUILD)/dlaunchctl $(BUILD)/libdlaunch.so $(BUILD)/libdlcoll.so $(BUILD)/libdlaunch_nccl.so $(BUILD)/dlcoll_perf \
            $(BUILD)/dlcoll_info $(BUILD)/dlcoll_tune

.PHONY: all
all: $(PRODUCTS) $(EXAMPLES)

# -------------------------------------------------------------------------------------- objects

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags
	$(say) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -fPIE -c -o $@ $<

# The text of the warm interpreters is part of the launcher.
$(BUILD)/obj/agent/process/warm_pool.o: agent/process/warm_pool.py

# GCC clears a struct of some hundred bytes by an instruction that takes four times as long as the C
# library's memset(): ten nanoseconds, and a small operation has several of them.
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

$(BUILD)/dlaunch: $(call obj,launcher/main.c) $(DLAUNCH_OBJ)
	$(say) LD $@
	$(link) $^ $(LIBS)

$(BUILD)/dlaunchctl: $(call obj,launcher/control/dlaunchctl.c) $(DLAUNCH_OBJ)
	$(say) LD $@
	$(link) $^ $(LIBS)

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

# ---------------------------------------------------------------------------------------- tests

# A test program is one file plus the test library, linked against the inside of everything.
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TESTLIB) $(DLAUNCH_OBJ) $(call obj,$(COLL_SRC))
	$(say) LD $@
	$(link) $^ $(CHECK_LIBS) $(LIBS)

# Fixtures, each linked into the tests that use it; their short names are a test program's own.
unit_tests = $(patsubst %,$(BUILD)/tests/unit/test_%,$(1))
$(call unit_tests,stdio stdio_console stdio_files stdio_fold stdio_job stdio_lines stdio_terminal): $(call obj,tests/lib/pump.c)
$(call unit_tests,auth rdzv_file rdzv_net rdzv_port tree): $(call obj,tests/lib/rdzv_nodes.c)
$(call unit_tests,hang_sources) $(BUILD)/tests/integration/test_hang_sources: $(call obj,tests/fake/nccl_ras.c)
$(call unit_tests,member_contact member_state): $(call obj,tests/lib/member_script.c)
$(call unit_tests,rdzv_elastic rdzv_election rdzv_failures rdzv_rounds rdzv_state): $(call obj,tests/lib/rdzv_script.c)
$(INTEGRATION) $(MULTIHOST): $(call obj,tests/integration/job.c) | $(BUILD)/dlaunch $(BUILD)/tests/worker
$(BUILD)/tests/integration/test_api: $(BUILD)/libdlaunch.so
$(BUILD)/tests/integration/test_api: private LIBS += -Wl,-rpath,'$$ORIGIN/../..'
$(MULTIHOST): $(call obj,tests/multihost/hosts.c)
$(patsubst %,$(BUILD)/tests/integration/test_%,console elastic failover heartbeats): $(call obj,tests/integration/elastic_nodes.c)

# The simulator of the rendezvous is more than one file.
SIM_OBJ := $(call obj,$(wildcard tests/sim/*.c))
$(BUILD)/tests/unit/test_rdzv_sim: $(SIM_OBJ)

# The worker of the tests stands for anybody's program: it dies of a signal as that does.
$(BUILD)/tests/worker $(BUILD)/obj/tests/lib/worker.o: private SAN :=
$(BUILD)/tests/worker: $(BUILD)/obj/tests/lib/worker.o
	$(say) LD $@
	$(link) $^

# This one is a program like any other that uses libdlcoll.
$(BUILD)/tests/coll_worker: $(call obj,$(patsubst %,tests/lib/coll_%.c,worker job ops)) $(BUILD)/libdlcoll.so
$(BUILD)/tests/hang_worker: $(call obj,tests/lib/hang_worker.c) $(BUILD)/libdlcoll.so
$(BUILD)/tests/nccl_worker: $(BUILD)/obj/tests/lib/nccl_worker.o
	$(say) LD $@
	$(link) $^ -ldl
$(BUILD)/tests/coll_worker $(BUILD)/tests/hang_worker:
	$(say) LD $@
	$(link) $(filter %.o,$^) -L$(BUILD) -ldlcoll -lpthread -Wl,-rpath,'$$ORIGIN/..'

# Libraries that a test machine lacks, as far as is needed: one file each, under the real name.
fake = $(BUILD)/tests/fake/$(1)
FAKES := $(call fake,profiler.so) $(call fake,clock.so) $(call fake,failing_calls.so) $(call fake,stamps.so) $(call fake,libnvidia-ml.so.1) $(call fake,libnccl.so.2) $(call fake,libnccl-old.so.2)
reducing := $(patsubst %,$(BUILD)/pic/collectives/reduce/%.o,dtype reduce reduce_pairs reduce_user reduce_portable reduce_avx2 reduce_avx512) \
            $(patsubst %,$(BUILD)/pic/%.o,collectives/api/task collectives/api/fiber core/err core/fd core/futex)
$(call fake,libnccl.so.2): $(BUILD)/pic/tests/fake/nccl.o $(reducing)
$(call fake,libnccl-old.so.2): $(BUILD)/pic/tests/fake/nccl_old.o $(reducing)
$(call fake,clock.so): $(BUILD)/pic/tests/fake/clock.o
$(call fake,profiler.so): $(BUILD)/pic/tests/fake/profiler.o
$(call fake,failing_calls.so): $(BUILD)/pic/tests/fake/failing_calls.o
$(call fake,stamps.so): $(BUILD)/pic/tests/fake/stamps.o
$(call fake,libnvidia-ml.so.1): $(BUILD)/pic/tests/fake/nvml.o
$(FAKES):
	$(say) LD $@
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^

.SECONDARY:

# What a user types without -j is built on all CPUs.
on_all_cpus = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

# `deps` is quick when nothing is missing. A build that lacks something stops with the line to type.
.PHONY: deps
deps:
	$(Q)conf/install-deps.sh build $(if $(cross),cross-$(cross))
	$(Q)$(if $(cross),conf/make-sysroot.sh $(cross) $(SYSROOT))

# -------------------------------------------------------------------------------------- packages

# The wheel is self-contained but for the C library and OpenSSL 3, which jobs on several hosts need.
.PHONY: wheel test-wheel deb test-deb
wheel:
	$(Q)$(if $(cross),conf/make-sysroot.sh $(cross) $(SYSROOT))
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)conf/make-wheel.py $(BUILD) $(BUILD)/wheel

# ARCH=aarch64 on x86-64: under qemu's emulation of that processor.
test-wheel:
	$(Q)conf/install-deps.sh wheel $(if $(cross),cross-$(cross))
	$(Q)$(if $(cross),conf/make-sysroot.sh $(cross) $(SYSROOT))
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)wheel=$$(conf/make-wheel.py $(BUILD) $(BUILD)/wheel) && tests/packages/test_wheel.py "$$wheel" $(SYSROOT)

deb: all
	$(Q)conf/make-deb.sh $(BUILD) $(BUILD)/deb

# A minute and 200 MB: a clean Debian root is made for it.
test-deb:
	$(Q)conf/install-deps.sh deb
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)DEBEMAIL=$${DEBEMAIL:-packager@debian.org} conf/make-deb.sh $(BUILD) $(BUILD)/deb && \
	    tests/packages/test_deb.sh $(BUILD)/deb

# The container image: IMAGE_TOOL is what builds it (buildah bud, podman build, docker build).
IMAGE_TOOL ?= buildah bud
.PHONY: image test-image
image: all
	$(Q)conf/container/make-root.sh $(BUILD) $(BUILD)/image/root
	$(Q)$(IMAGE_TOOL) -t localhost/dlaunch:$(VERSION) -f conf/container/Containerfile $(BUILD)/image

# Network namespaces as pods, runc as their runtime (root).
test-image:
	$(Q)conf/install-deps.sh image
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)tests/pods/test_image.py $(BUILD)

# conf/kubernetes: the manifests against the schemas, and jobs in pods (root).
.PHONY: test-pods bench-pods
test-pods:
	$(Q)conf/install-deps.sh pods
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)tests/pods/test_manifests.py
	$(Q)/usr/bin/python3 -B tests/pods/test_pods.py $(BUILD)

# A real Slurm (munged, slurmctld, slurmd) in network namespaces (root): what dlaunch does in its jobs; jobs that are
# cancelled at random moments; from srun to the first worker beside plain srun; from the loss of a node to the next round.
.PHONY: test-slurm slurm-trials bench-slurm
test-slurm slurm-trials bench-slurm:
	$(Q)conf/install-deps.sh slurm
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all $(BUILD)/tests/worker
	$(Q)/usr/bin/python3 -B tests/slurm/test_slurm.py $(BUILD) $(slurm-args-$@)
slurm-args-slurm-trials = scancel $(CANCELS)
slurm-args-bench-slurm = start $(STARTS) lost $(LOST)
CANCELS ?= 500
STARTS ?= 20
LOST ?= 5

# Unmodified MPI programs: Debian's MPICH and Open MPI, clients of PMI-2 and PMIx.
.PHONY: test-mpi bench-mpi
test-mpi:
	$(Q)conf/install-deps.sh mpi
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)/usr/bin/python3 -B tests/mpi/test_mpi.py $(BUILD)

# Beside the starters of MPICH and Open MPI: RANKS ranks that say hello, and the death of a rank.
RANKS ?= 128
bench-mpi:
	$(Q)conf/install-deps.sh mpi
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)/usr/bin/python3 -B tests/mpi/test_mpi.py $(BUILD) hello
	$(Q)/usr/bin/python3 -B tests/bench/bench-mpi.py $(BUILD) $(RANKS)

.PHONY: test-etcd
test-etcd:
	$(Q)conf/install-deps.sh etcd
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)/usr/bin/python3 -B tests/etcd/test_etcd.py $(BUILD)

bench-pods: all
	$(Q)/usr/bin/python3 -B tests/pods/test_pods.py $(BUILD) recovery 50

# ------------------------------------------------------------------------------------------ demo

.PHONY: demo
demo:
	$(Q)conf/install-deps.sh build
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)examples/demo.sh $(BUILD)

# The picture of the demo in README.md, and those of doc/seeing.md.
.PHONY: picture
picture: all
	$(Q)examples/demo-picture.py $(BUILD) doc/demo.svg
	$(Q)examples/seeing-pictures.py $(BUILD) doc

# --------------------------------------------------------------------------------------- install

bindir     = $(DESTDIR)$(PREFIX)/bin
libdir     = $(DESTDIR)$(PREFIX)/lib
includedir = $(DESTDIR)$(PREFIX)/include
mandir     = $(DESTDIR)$(PREFIX)/share/man
docdir     = $(DESTDIR)$(PREFIX)/share/doc/dlaunch
bashdir    = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
unitdir    = $(DESTDIR)$(PREFIX)/lib/systemd/system
userdir    = $(DESTDIR)$(PREFIX)/lib/systemd/user
MAN       := $(wildcard man/*.[1-9])

with_prefix = sed -e 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|/usr/local/bin/|$(PREFIX)/bin/|'

.PHONY: install install-built uninstall
install: $(PRODUCTS)
	$(Q)$(MAKE) --no-print-directory install-built

# What is built already.
install-built:
	install -d $(bindir) $(libdir)/pkgconfig $(includedir) $(docdir)/examples/data $(docdir)/doc $(docdir)/kubernetes $(bashdir) $(unitdir) $(userdir)
	install $(BUILD)/dlaunch $(BUILD)/dlaunchctl $(BUILD)/dlcoll_perf $(BUILD)/dlcoll_info $(BUILD)/dlcoll_tune $(bindir)
	ln -sf dlaunch $(bindir)/dlaunchd
	install -m 644 $(BUILD)/libdlaunch.so.0 $(BUILD)/libdlcoll.so.0 $(BUILD)/libdlaunch_nccl.so $(libdir)
	ln -sf libdlaunch.so.0 $(libdir)/libdlaunch.so
	ln -sf libdlcoll.so.0 $(libdir)/libdlcoll.so
	install -m 644 launcher/api/dlaunch.h collectives/dlcoll.h collectives/dlcoll.hpp collectives/dlcoll_types.hpp $(includedir)
	$(with_prefix) conf/dlaunch.pc.in > $(libdir)/pkgconfig/dlaunch.pc
	$(with_prefix) conf/dlcoll.pc.in > $(libdir)/pkgconfig/dlcoll.pc
	$(with_prefix) conf/dlaunch@.service > $(unitdir)/dlaunch@.service
	$(with_prefix) conf/dlaunchd.service > $(userdir)/dlaunchd.service
	chmod 644 $(libdir)/pkgconfig/dlaunch.pc $(libdir)/pkgconfig/dlcoll.pc $(unitdir)/dlaunch@.service $(userdir)/dlaunchd.service
	install -m 644 conf/dlaunch.bash $(bashdir)/dlaunch
	ln -sf dlaunch $(bashdir)/dlaunchctl
	for m in $(MAN); do install -D -m 644 $$m $(mandir)/man$${m##*.}/$${m##*/} || exit 1; done
	install -m 644 README.md CHANGELOG.md LICENSE conf/dlaunch.ini $(docdir)
	install -m 644 $(wildcard doc/*.md doc/*.svg) $(docdir)/doc
	install -m 644 $(wildcard conf/kubernetes/*.yaml) $(docdir)/kubernetes
	install -m 644 $(wildcard examples/*.c examples/*.py) $(docdir)/examples
	install -m 644 $(wildcard examples/data/*) $(docdir)/examples/data
	$(if $(DESTDIR),,$(if $(filter 0,$(shell id -u)),-ldconfig))

# Only what install has put there, and folders that are its own.
uninstall:
	rm -f $(bindir)/dlaunch $(bindir)/dlaunchd $(bindir)/dlaunchctl $(bindir)/dlcoll_perf $(bindir)/dlcoll_info $(bindir)/dlcoll_tune
	rm -f $(libdir)/libdlaunch_nccl.so $(libdir)/libdlaunch.so $(libdir)/libdlaunch.so.0 $(libdir)/libdlcoll.so $(libdir)/libdlcoll.so.0
	rm -f $(includedir)/dlaunch.h $(libdir)/pkgconfig/dlaunch.pc
	rm -f $(includedir)/dlcoll.h $(includedir)/dlcoll.hpp $(includedir)/dlcoll_types.hpp $(libdir)/pkgconfig/dlcoll.pc $(unitdir)/dlaunch@.service $(userdir)/dlaunchd.service
	rm -f $(bashdir)/dlaunch $(bashdir)/dlaunchctl
	for m in $(MAN); do rm -f $(mandir)/man$${m##*.}/$${m##*/} || exit 1; done
	rm -rf $(docdir)
	$(if $(DESTDIR),,$(if $(filter 0,$(shell id -u)),-ldconfig))

.PHONY: test unit test-multihost layers corpora
unit: $(BUILD)/dlaunch $(BUILD)/tests/worker $(BUILD)/tests/gpu/cases $(FAKES) $(UNIT)
	$(Q)tests/run.sh $(UNIT)

test:
	$(Q)conf/install-deps.sh test
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-tests

# Programs that integration tests run; and what measures is built with them, lest it no longer can be.
HELPERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c) tests/multihost/store_worker.c) \
    $(patsubst %,$(BUILD)/tests/bench/coll/%,peer_dlcoll peer_limit in_job progress) $(BUILD)/tests/coll_worker $(BUILD)/tests/hang_worker $(BUILD)/tests/nccl_worker $(BUILD)/tests/gpu/cases

.PHONY: run-tests
run-tests: all $(BUILD)/tests/worker $(HELPERS) $(FAKES) $(UNIT) $(INTEGRATION) corpora
	$(Q)tests/layers.sh
	$(Q)tests/faults.sh
	$(Q)BUILD=$(BUILD) tests/run.sh $(UNIT) $(INTEGRATION) tests/integration/test_readme.py tests/integration/test_warm.py tests/integration/test_profiler_abi.sh \
	    tests/torch/test_torchrun.py tests/torch/test_torchrun_warm.py tests/torch/test_table.py

test-multihost:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-multihost

# Random programs of libdlcoll against a plain loop over the ranks: programs SEED, SEED + 1, ... until OPS
# operations are done. One that fails is run again by RANDOM_PROGRAM=n build/tests/unit/test_random_programs.
OPS  ?= 1000000
SEED ?= 1
.PHONY: random-programs
random-programs: $(BUILD)/tests/unit/test_random_programs
	$(Q)RANDOM_OPS=$(OPS) RANDOM_SEED=$(SEED) $<

# The rules of the rendezvous on a virtual clock: so many scenarios (SIM_SEEDS), on all CPUs. One that
# fails is run again by SIM_SEED=n build/tests/unit/test_rdzv_sim.
SIM_SEEDS ?= 1000000
SIM_JOBS  ?= $(shell nproc)
.PHONY: sim sim-bugs
sim: $(BUILD)/tests/unit/test_rdzv_sim
	$(Q)each=$$(( ($(SIM_SEEDS) + $(SIM_JOBS) - 1) / $(SIM_JOBS) )); \
	seq 0 $$(($(SIM_JOBS) - 1)) | xargs -P $(SIM_JOBS) -I{} sh -c \
	    "TEST_FILTER=scenarios CK_FORK=no SIM_SEEDS=$$each SIM_FROM=\$$((1 + {} * $$each)) $<" && \
	SIM_NODES=4096 SIM_SEEDS=1 TEST_FILTER=scenarios CK_FORK=no $<

# How many scenarios it takes to find each of the bugs in tests/sim/bugs: one file of the rules is built
# with the patch in it, in front of all others.
SIM_BUGS := $(patsubst tests/sim/bugs/%.patch,$(BUILD)/sim-bugs/%,$(wildcard tests/sim/bugs/*.patch))
sim-bugs: $(SIM_BUGS)
	$(Q)tests/sim/bugs.sh $^

$(BUILD)/sim-bugs/rest.a: $(TESTLIB) $(DLAUNCH_OBJ)
	$(Q)mkdir -p $(@D) && rm -f $@ && ar rcs $@ $^

$(BUILD)/sim-bugs/%: tests/sim/bugs/%.patch $(BUILD)/obj/tests/unit/test_rdzv_sim.o $(SIM_OBJ) $(BUILD)/sim-bugs/rest.a
	$(say) BUG $@
	$(Q)file=$$(sed -n 's,^+++ b/,,p' $<) && patch -s -r - -o $@.c $$file $< && \
	    $(CC) $(CPPFLAGS) $(ALL_CFLAGS) -fPIE -c -o $@.o $@.c && \
	    $(CC) $(LDFLAGS) -pie -o $@ $(filter %.o,$^) $@.o $(filter %.a,$^) $(CHECK_LIBS) $(LIBS)

# Every operation, type, reduction, count and place through every algorithm and transport (what is
# crossed with what: tests/lib/cross.h). The programs are those of `make test`, which do a part of it.
CROSS_TESTS := $(patsubst %,$(BUILD)/tests/unit/test_dlcoll_ops%,_hier _shm) $(BUILD)/tests/unit/test_dlcoll_ops
CROSS_JOBS ?= $(shell nproc)
.PHONY: cross
cross: $(CROSS_TESTS)
	$(Q)printf '%s\n' $(CROSS_TESTS) | xargs -P $(CROSS_JOBS) -n 1 env CROSS=full

.PHONY: run-multihost
run-multihost: all $(BUILD)/tests/worker $(call fake,stamps.so) $(BUILD)/tests/coll_worker $(BUILD)/tests/hang_worker $(BUILD)/tests/multihost/store_worker $(MULTIHOST)
	$(Q)JOBS=1 tests/run.sh $(MULTIHOST)
	$(Q)START=daemon JOBS=1 tests/run.sh $(BUILD)/tests/multihost/test_ssh
	$(Q)START=tree JOBS=1 tests/run.sh $(BUILD)/tests/multihost/test_ssh

# One command for many hosts: by ssh to SSH_HOSTS network namespaces with a sshd each, the head killed
# SSH_LOGINS times, and SSH_TRIALS times by connections that stay (a login takes most of the time);
# then by daemons and by a tree of ssh, DAEMON_TRIALS times; ssh-trials: only the heads killed by ssh. The
# times that it prints must keep to their bars; what else a busy machine does is kept out by chrt -r 5 make test-ssh.
# With 8 hosts, fewer trials and no bars it is part of `make test-multihost`.
SSH_HOSTS     ?= 64
SSH_LOGINS    ?= 10
SSH_TRIALS    ?= 100
DAEMON_TRIALS ?= 20
ssh-bars       = SSH_BARS=1 SSH_HOSTS=$(SSH_HOSTS)
ssh-heads      = SSH_LOGINS=$(SSH_LOGINS) SSH_TRIALS=$(SSH_TRIALS) START=ssh
.PHONY: test-ssh run-ssh ssh-trials run-ssh-trials
test-ssh ssh-trials:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-$(@:test-%=%)

run-ssh: all $(BUILD)/tests/worker $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) $(ssh-heads) $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) SSH_TRIALS=$(DAEMON_TRIALS) START=daemon $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) SSH_LOGINS=0 SSH_TRIALS=$(DAEMON_TRIALS) START=tree $(BUILD)/tests/multihost/test_ssh

run-ssh-trials: all $(BUILD)/tests/worker $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) $(ssh-heads) TEST_FILTER=killed $(BUILD)/tests/multihost/test_ssh

# The tests of failures and reports once more, the job being started by the daemon and by ssh to this
# host. Where several launchers are started by hand they run as ever; what looks into dlaunch's processes
# is skipped with a line.
START_TESTS := $(patsubst %,$(BUILD)/tests/integration/test_%,reports single faults)
.PHONY: test-starts run-starts
test-starts:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-starts

run-starts: all $(BUILD)/tests/worker $(HELPERS) $(FAKES) $(START_TESTS)
	$(Q)START=daemon tests/run.sh $(START_TESTS)
	$(Q)START=ssh CK_TIMEOUT_MULTIPLIER=3 tests/run.sh $(START_TESTS) # a login takes its time

# With real PyTorch, current and Debian's: minutes, 1.6 GB in TORCH_VENV, some of it as root. What cannot be
# installed is left out, with a line.
.PHONY: test-torch run-torch
test-torch:
	$(Q)conf/install-deps.sh test
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-torch

run-torch: all $(BUILD)/tests/bench/store_serve $(BUILD)/tests/torch/store_talk
	$(Q)BUILD=$(BUILD) tests/torch/run.sh

# On a machine with a GPU; tests/gpu/run.sh says what it needs.
.PHONY: test-gpu
test-gpu:
	$(Q)[ -x $(BUILD)/tests/gpu/cases -a -x $(BUILD)/dlaunch ] || \
	    $(MAKE) --no-print-directory $(on_all_cpus) all $(BUILD)/tests/gpu/cases
	$(Q)tests/gpu/run.sh $(BUILD); rc=$$?; [ $$rc = 77 ] || exit $$rc

layers:
	$(Q)tests/layers.sh

# ------------------------------------------------------------------------------------- fuzzing

# A fuzz target is one file. With libFuzzer: `make fuzz SECONDS=600` runs each of them that long
# (FUZZ=ini for one alone). As a plain program it replays its corpus: `make corpora`, part of `make test`.
SECONDS ?= 60
FUZZ         ?= $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_FLAGS   := CC=clang SANITIZE=fuzzer-no-link,address,undefined

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(DLAUNCH_OBJ) $(call obj,$(COLL_SRC))
	$(say) LD $@
	$(link) -fsanitize=fuzzer $^ $(LIBS)

$(BUILD)/replay/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/tests/fuzz/replay_main.o \
                   $(DLAUNCH_OBJ) $(call obj,$(COLL_SRC))
	$(say) LD $@
	$(link) $^ $(LIBS)

.PHONY: fuzz fuzz-targets corpora
fuzz-targets: $(FUZZ:%=$(BUILD)/fuzz/%)
fuzz:
	$(Q)conf/install-deps.sh fuzz
	$(Q)$(MAKE) --no-print-directory $(FUZZ_FLAGS) fuzz-targets
	$(Q)tests/fuzz/run.sh build-fuzzer-no-link-address-undefined/fuzz $(SECONDS) $(FUZZ)

corpora: $(FUZZ:%=$(BUILD)/replay/%)
	$(Q)for t in $(FUZZ); do printf '%-34s ' replay_$$t; \
	    $(BUILD)/replay/$$t tests/fuzz/corpus/$$t || exit 1; done

# ---------------------------------------------------------------------------------------- bench

bench_bin = $(BUILD)/tests/bench/$(1)

.PHONY: model bench bench-launch bench-hosts bench-restart bench-torch bench-torchrun bench-rdzv bench-store bench-stdio \
        hang-trials bench-reduce bench-coll bench-tcp bench-progress bench-job bench-faults bench-recovery bench-hostile kill-trials deps-bench
deps-bench:
	$(Q)conf/install-deps.sh bench

bench: bench-launch bench-restart bench-rdzv bench-store bench-stdio bench-reduce bench-coll bench-tcp bench-progress bench-job \
       bench-faults \
       bench-hostile

bench-launch: all $(call bench_bin,floor) $(call bench_bin,nap) $(call bench_bin,stamp)
	$(Q)tests/bench/bench-launch.py $(BUILD)

# Two hosts from a third, by the daemon and by ssh, beside mpirun and Hydra; root. What else a busy machine
# does is kept out by chrt -r 5 make bench-hosts.
bench-hosts: all $(call bench_bin,stamp)
	$(Q)conf/install-deps.sh multihost
	$(Q)tests/bench/bench-hosts.py $(BUILD)

bench-restart: all $(call bench_bin,stamp)
	$(Q)tests/bench/bench-restart.py $(BUILD)

# torchrun: the one that bench-torchrun and test-torch install, if it is there; else Debian's.
bench-faults: all $(call bench_bin,stamp)
	$(Q)python="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}/bin/python"; \
	    [ -x "$$python" ] || python=/usr/bin/python3; "$$python" tests/bench/bench-faults.py $(BUILD)

# Python with PyTorch: as for bench-torch. NAMES="gloo DDP, warm;torchrun" selects rows.
bench-recovery: all $(call bench_bin,recovery)
	$(Q)conf/install-deps.sh torch
	$(Q)venv="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}"; \
	    tests/torch/install.sh "$$venv" && "$$venv/bin/python" tests/bench/bench-recovery.py $(BUILD)

bench-store: $(call bench_bin,bench_store) $(call bench_bin,store_serve)
	$(Q)tests/bench/bench-store.sh $(BUILD)

# The backend dlcoll beside gloo.
bench-torch: all
	$(Q)conf/install-deps.sh torch
	$(Q)venv="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}"; tests/torch/install.sh "$$venv" && \
	    "$$venv/bin/python" tests/bench/bench-torch.py $(BUILD)

bench-torchrun: all
	$(Q)conf/install-deps.sh torch
	$(Q)venv="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}"; python="$$venv/bin/python"; \
	    tests/torch/install.sh "$$venv" || { conf/install-deps.sh torch-debian && python=/usr/bin/python3; } && \
	    "$$python" tests/bench/bench-torchrun.py $(BUILD)

bench-rdzv: $(call bench_bin,bench_rdzv)
	$(Q)$<
	$(Q)$< --tls 3 1024 4096

bench-reduce: $(call bench_bin,bench_reduce)
	$(Q)$<

# Collective operations beside the MPIs and Gloo, each as it is installed (QUICK=1: under 2 minutes). One
# way of measuring for all: tests/bench/coll/harness.h.
COLL_BENCH   := $(BUILD)/tests/bench/coll
COLL_HARNESS := $(call obj,tests/bench/coll/harness.c)
COLL_PEERS := $(COLL_BENCH)/peer_dlcoll $(COLL_BENCH)/peer_limit \
    $(if $(shell command -v mpicc.openmpi),$(COLL_BENCH)/peer_openmpi) \
    $(if $(shell command -v mpicc.mpich),$(COLL_BENCH)/peer_mpich) \
    $(if $(wildcard /usr/include/gloo/config.h),$(COLL_BENCH)/peer_gloo)
bench-coll: all $(COLL_PEERS)
	$(Q)tests/bench/bench-coll.py $(BUILD)

# One connection, several, without copying, by io_uring.
bench-tcp: $(call bench_bin,tcp_ways)
	$(Q)tests/bench/bench-tcp.sh $(BUILD)

# Thousands of operations by work handle at once.
bench-progress: all $(COLL_BENCH)/progress
	$(Q)run() { printf '%s\n' "$$*"; $(BUILD)/dlaunch --quiet --nproc_per_node "$$1" $(COLL_BENCH)/progress \
	    $$2 $$3 $$4; }; \
	    run 2 small && run 4 late 100 && run 4 late 800 && run 4 freed 1020 && run 4 pending 100 10 && \
	    run 4 pending 1000 10

bench-job: all $(COLL_BENCH)/in_job
	$(Q)tests/bench/bench-job.py $(BUILD)

$(COLL_BENCH)/peer_dlcoll $(COLL_BENCH)/in_job $(COLL_BENCH)/progress: $(COLL_BENCH)/%: $(BUILD)/obj/tests/bench/coll/%.o $(BUILD)/libdlcoll.so
	$(say) LD $@
	$(link) $(filter %.o,$^) -L$(BUILD) -ldlcoll -Wl,-rpath,'$$ORIGIN/../../..'
$(COLL_BENCH)/peer_dlcoll: $(COLL_HARNESS)
$(COLL_BENCH)/in_job: $(call obj,tests/lib/coll_ops.c)

$(COLL_BENCH)/peer_limit: $(call obj,tests/bench/coll/peer_limit.c tests/bench/coll/limit_private.c) $(COLL_HARNESS) $(DLCOLL_OBJ)
	$(say) LD $@
	$(link) $^ -lpthread -ldl

# The algorithms between up to 1,024 nodes, on a model of the network.
model: $(COLL_BENCH)/model
	$(Q)$<
$(COLL_BENCH)/model: $(call obj,tests/bench/coll/model.c) $(DLCOLL_OBJ)
	$(say) LD $@
	$(link) $^ -lpthread -ldl

$(COLL_BENCH)/peer_openmpi $(COLL_BENCH)/peer_mpich: $(COLL_BENCH)/peer_%: tests/bench/coll/peer_mpi.c \
                                                     $(COLL_HARNESS) tests/bench/coll/harness.h
	$(say) MPICC $@
	$(Q)mkdir -p $(@D) && mpicc.$* -O2 -I. -o $@ $< $(COLL_HARNESS)

$(COLL_BENCH)/peer_gloo: tests/bench/coll/peer_gloo.cc $(COLL_HARNESS) tests/bench/coll/harness.h
	$(say) CXX $@
	$(Q)mkdir -p $(@D) && $(CXX) -std=c++17 -O2 -I. -o $@ $< $(COLL_HARNESS) -lgloo -lpthread

# kill -9 at random moments; a short run of it is in `make test`. SEED=n repeats one.
TRIALS ?= 3000
hang-trials: all $(BUILD)/tests/hang_worker
	$(Q)tests/bench/hang-trials.py $(BUILD) $(TRIALS) $(TRIAL_PYTHON)

kill-trials: all $(call bench_bin,kill_trials)
	$(Q)$(call bench_bin,kill_trials) $(BUILD) $(TRIALS) 1 $(SEED)
	$(Q)$(call bench_bin,kill_trials) $(BUILD) $(TRIALS) 2 $(SEED)

# 10,000 strangers at the port of a running job; some hundreds of them are in `make test`.
bench-hostile: all $(call bench_bin,hostile)
	$(Q)$(call bench_bin,hostile) $(BUILD) 10000 1000

# Each of 60 planted causes in jobs of three launchers: class, rank and words on every node. SEED=n repeats one.
.PHONY: cause-trials
cause-trials: TRIALS = 1000
cause-trials: all $(BUILD)/tests/worker
	$(Q)tests/bench/cause_trials.py --build $(BUILD) --trials $(TRIALS) $(if $(SEED),--seed $(SEED))

# Every call that can fail is failed once; some of each kind are in `make test`.
.PHONY: failing-calls
failing-calls: all $(FAKES) $(BUILD)/tests/worker $(BUILD)/tests/integration/test_failing_calls
	$(Q)FAILING_CALLS=0 $(BUILD)/tests/integration/test_failing_calls

# Random faults on 4 launchers of 4 workers that train, for MINUTES. SEED=n repeats the choices of one.
MINUTES ?= 30
.PHONY: soak
soak: all
	$(Q)tests/bench/soak.py $(BUILD) $(MINUTES) $(SEED)

# Random faults of processes, networks and disks on 3 hosts that are network namespaces (root), TRIALS times.
# SEED=n repeats the faults of one run, SEED=n:k those of its trial k.
TRIALS ?= 100
TRIAL_JOBS ?= $(shell nproc)
.PHONY: net-trials
net-trials: all $(call fake,stamps.so)
	$(Q)tests/bench/net_trials.py $(BUILD) $(TRIALS) "$(SEED)" $(TRIAL_JOBS)

# Warm restarts, RESTARTS times (1,000): what is left. Twenty of them are in `make test`.
RESTARTS ?= 1000
.PHONY: warm-restarts
warm-restarts: all
	$(Q)BUILD=$(BUILD) RESTARTS=$(RESTARTS) TEST_LIMIT=7200 tests/integration/test_warm.py many_restarts

# Clean runs of --doctor on eight nodes, DOCTOR_RUNS times (100): on one host, and on hosts that are network
# namespaces (root). None may report a problem.
DOCTOR_RUNS ?= 100
.PHONY: doctor-trials
doctor-trials: all $(BUILD)/tests/integration/test_doctor $(BUILD)/tests/multihost/test_doctor_hosts
	$(Q)for t in integration/test_doctor multihost/test_doctor_hosts; do \
	    DOCTOR_RUNS=$(DOCTOR_RUNS) TEST_FILTER=clean $(BUILD)/tests/$$t || exit 1; done

bench-stdio: $(call bench_bin,bench_stdio) $(BUILD)/tests/worker
	$(Q)$<

# --------------------------------------------------------------------------------- house-keeping

.PHONY: generated format lint clean help
# The files that are made from launcher/options/options.def.
generated: $(BUILD)/dlaunch
	$(BUILD)/dlaunch --print_options ini > conf/dlaunch.ini
	$(BUILD)/dlaunch --print_completion bash > conf/dlaunch.bash
	{ sed '/^\.\\" OPTIONS begin/q' man/dlaunch.1; $(BUILD)/dlaunch --print_options mdoc; \
	  sed -n '/^\.\\" OPTIONS end/,$$p' man/dlaunch.1; } > $(BUILD)/dlaunch.1
	cp $(BUILD)/dlaunch.1 man/dlaunch.1

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cc' '*.hpp')

lint:
	$(Q)conf/install-deps.sh lint
	clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h' '*.cc' '*.hpp')
	shellcheck $$(git ls-files '*.sh') .ci/run
	mandoc -T lint -W warning man/*.[1-9]
	tests/layers.sh

clean:
	rm -rf build build-*

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
	@echo; echo 'Targets:'
	@echo '  all              build/dlaunch, build/dlaunchctl, build/libdlcoll.so, build/examples/*'
	@echo '  demo             trains a network on 2 launchers x 4 workers, one of which is killed'
	@echo '  picture          draws doc/*.svg from real runs'
	@echo '  test             unit and integration tests, layers, corpora'
	@echo '  test-multihost   network namespaces as hosts (root)'
	@echo '  test-ssh         dlaunch -H by a real sshd, and by daemons, in SSH_HOSTS network namespaces (64; 20 minutes; root)'
	@echo '  ssh-trials       the head killed there SSH_TRIALS times (100): every host clean within 1 s'
	@echo '  test-starts      the tests of failures and reports with jobs started by the daemon and by ssh'
	@echo '  sim sim-bugs     the rendezvous on a virtual clock: SIM_SEEDS scenarios (1,000,000); with bugs'
	@echo '                   planted in it, how many scenarios it takes to find them'
	@echo '  cross            every collective operation, type, reduction and count through every algorithm'
	@echo '                   and transport: how many were right (long; CROSS_SIZE=4: of 4 ranks only)'
	@echo '  random-programs  random programs of libdlcoll against a plain loop: OPS operations (1,000,000), from SEED on'
	@echo '  test-torch       with real PyTorch, current and Debian'\''s (tests/torch/run.sh has its variables)'
	@echo '  wheel test-wheel the Python package with the programs in it; installed and used in an empty environment'
	@echo '                   (ARCH=aarch64: for that processor; used under qemu-user)'
	@echo '  deb test-deb     Debian packages of the programs, the library and its headers; in a clean root (root)'
	@echo '  image test-image the container image (IMAGE_TOOL=docker build); built, and run as pods are (root)'
	@echo '  test-pods        the manifests of conf/kubernetes, and jobs in pods of less kind clusters (root)'
	@echo '  test-slurm       jobs in a real Slurm, in network namespaces (root)'
	@echo '  slurm-trials     CANCELS=500 jobs there, cancelled at random moments: nothing may be left'
	@echo '  bench-slurm      the start beside plain srun (STARTS=20), the next round after a lost node (LOST=5)'
	@echo '  test-mpi         unmodified programs of MPICH and Open MPI on one node and two (root)'
	@echo '  bench-hosts      starting on two hosts, by the daemon and by ssh, beside mpirun and Hydra (root)'
	@echo '  bench-mpi        hello of RANKS ranks (128) and the death of a rank, beside mpiexec and mpirun'
	@echo '  test-etcd        jobs that meet by real etcd servers (with hosts: root)'
	@echo '  bench-pods       from a worker'\''s death in a pod to the next round'
	@echo '  test-gpu         what only a machine with a GPU can show'
	@echo '  bench            side by side with the peers that are installed'
	@echo '  kill-trials      kill -9 at random moments, TRIALS=3000 with 1 launcher and with 2'
	@echo '  cause-trials     60 planted causes on 3 launchers, TRIALS=1000: class, rank, words, time'
	@echo '  hang-trials      hangs planted at random, TRIALS=3000: who is named on every node, and when'
	@echo '  failing-calls    every call of a launcher that can fail, failed once'
	@echo '  warm-restarts    a Python program restarted warm, RESTARTS times (1,000): what is left'
	@echo '  doctor-trials    --doctor on eight clean nodes, DOCTOR_RUNS times (100): no problem is reported (root)'
	@echo '  net-trials       random faults between 3 network namespaces that train, TRIALS times (100; root)'
	@echo '  soak             random faults on 4 launchers x 4 workers that train, for MINUTES (30)'
	@echo '  fuzz             every fuzz target for SECONDS (60)'
	@echo '  install          into PREFIX, below DESTDIR; uninstall takes it away'
	@echo '  generated        conf/dlaunch.ini, conf/dlaunch.bash and the OPTIONS of man/dlaunch.1'
	@echo '  deps deps-bench  installs what is missing'
	@echo '  lint format clean'

-include $(shell find $(BUILD) -path $(BUILD)/sysroot -prune -o -name '*.d' -print 2>/dev/null)
