# Tests

run_tests = BUILD=$(BUILD) tests/run.sh
FIXTURES  := $(patsubst %,tests/lib/%.c,member_script pump rdzv_nodes rdzv_script)
TESTLIB   := $(call obj,$(filter-out tests/lib/worker.c tests/lib/coll_worker.c tests/lib/hang_worker.c tests/lib/nccl_worker.c $(FIXTURES),$(wildcard tests/lib/*.c)))
test_bins  = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/$(1)/test_*.c))
UNIT        := $(call test_bins,unit)
INTEGRATION := $(call test_bins,integration)
MULTIHOST   := $(call test_bins,multihost)
FUZZ        ?= $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

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
$(patsubst %,$(BUILD)/tests/integration/test_%,console elastic failover heartbeats wants): $(call obj,tests/integration/elastic_nodes.c)

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
$(BUILD)/tests/nccl_worker: $(call obj,tests/lib/nccl_worker.c collectives/bootstrap/job_segment.c core/err.c core/fd.c core/reserve.c)
	$(say) LD $@
	$(link) $^ -ldl
$(BUILD)/tests/coll_worker $(BUILD)/tests/hang_worker:
	$(say) LD $@
	$(link) $(filter %.o,$^) -L$(BUILD) -ldlcoll -lpthread -Wl,-rpath,'$$ORIGIN/..'

# Libraries that a test machine lacks, as far as is needed: one file each, under the real name.
fake = $(BUILD)/tests/fake/$(1)
FAKES := $(call fake,profiler.so) $(call fake,clock.so) $(call fake,failing_calls.so) $(call fake,stamps.so) $(call fake,libnvidia-ml.so.1) $(call fake,libnccl.so.2) $(call fake,libnccl-old.so.2)
reducing := $(patsubst %,$(BUILD)/pic/collectives/reduce/%.o,reduce reduce_pairs reduce_user reduce_portable reduce_avx2 reduce_avx512) \
            $(patsubst %,$(BUILD)/pic/%.o,collectives/base/dtype collectives/base/task collectives/base/fiber core/err core/fd core/futex)
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

## unit: unit tests only
unit: $(BUILD)/dlaunch $(BUILD)/tests/worker $(BUILD)/tests/gpu/cases $(FAKES) $(UNIT)
	$(Q)$(run_tests) $(UNIT)

## test: unit and integration tests, layers, corpora (JOBS=1: one program at a time; STOP=1: until one fails)
test:
	$(Q)conf/install-deps.sh test
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-tests

# T is a path below tests/, a C program without its ending. What the tests of its folder start is built, too.
one := $(patsubst tests/%,%,$(T))
## check: T=unit/test_plan (T=integration/test_warm.py) [CASE=name] [REPEAT=100]: one test, until it fails
check: all $(BUILD)/tests/worker $(BUILD)/tests/gpu/cases $(FAKES) $(if $(filter-out unit/%,$(one)),$(HELPERS)) \
       $(patsubst %.c,$(BUILD)/%,$(wildcard tests/$(one).c))
	$(Q)BUILD=$(BUILD) tests/check.sh "$(if $(suffix $(one)),tests/$(one),$(one:%=$(BUILD)/tests/%))" "$(REPEAT)" "$(CASE)"

## retest: the programs that failed in the last run of tests
retest: $(filter $(BUILD)/%,$(shell cat $(BUILD)/tests/failed 2>/dev/null))
	$(Q)[ -s $(BUILD)/tests/failed ] || { echo 'No test failed in the last run.'; exit 0; }; \
	    $(run_tests) $$(cat $(BUILD)/tests/failed)

coverage_tests = $(patsubst %,$(BUILD)/tests/%,$(TESTS))$(if $(TESTS),,$(UNIT))
# In a folder of its own, without optimisation: a line that is executed is one that was written. Processes that are
# killed, or that end by _exit(), do not count.
## coverage: lines that the unit tests execute, a figure for each room, in build-coverage (TESTS="unit/test_plan": by these)
coverage:
	$(Q)conf/install-deps.sh test
	$(Q)find build-coverage -name '*.gcda' -delete 2>/dev/null; \
	    $(MAKE) --no-print-directory $(on_all_cpus) BUILD=build-coverage CFLAGS='-O0 -g --coverage' LDFLAGS=--coverage HARDEN= run-coverage
	$(Q)tests/coverage.py build-coverage

## run-coverage: the tests that `coverage` counts
run-coverage: $(BUILD)/dlaunch $(BUILD)/tests/worker $(BUILD)/tests/gpu/cases $(FAKES) $(coverage_tests)
	-$(Q)$(run_tests) $(coverage_tests)


# Programs that integration tests run; and what measures is built with them, lest it no longer can be.
HELPERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c tests/trials/*.c) tests/multihost/store_worker.c) \
    $(patsubst %,$(BUILD)/tests/bench/coll/%,peer_dlcoll peer_limit in_job progress) $(BUILD)/tests/coll_worker $(BUILD)/tests/hang_worker $(BUILD)/tests/nccl_worker $(BUILD)/tests/gpu/cases \
    $(if $(SANITIZE),,$(BUILD)/tests/sim_all) # which has a memory of its own

## run-tests: what test does once packages are installed
run-tests: all $(BUILD)/tests/worker $(HELPERS) $(FAKES) $(UNIT) $(INTEGRATION) corpora
	$(Q)tests/layers.sh
	$(Q)tests/faults.sh
	$(Q)$(run_tests) $(UNIT) $(INTEGRATION) tests/integration/test_readme.py tests/integration/test_warm.py tests/integration/test_profiler_abi.sh \
	    tests/torch/test_torchrun.py tests/torch/test_torchrun_warm.py tests/torch/test_table.py

## test-multihost: network namespaces as hosts (root)
test-multihost:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-multihost

# Random programs of libdlcoll against a plain loop over the ranks: programs SEED, SEED + 1, ... until OPS
# operations are done. One that fails is run again by RANDOM_PROGRAM=n build/tests/unit/test_random_programs.
OPS ?= 1000000
## random-programs: random programs of libdlcoll against a plain loop: OPS operations (1,000,000), from SEED (1) on
random-programs: SEED ?= 1
random-programs: $(BUILD)/tests/unit/test_random_programs
	$(Q)RANDOM_OPS=$(OPS) RANDOM_SEED=$(SEED) $<

# The rules of the rendezvous on a virtual clock: so many scenarios (SIM_SEEDS), on all CPUs. One that
# fails is run again by SIM_SEED=n build/tests/unit/test_rdzv_sim.
SIM_SEEDS ?= 1000000
SIM_JOBS  ?= $(shell nproc)
## sim: the rendezvous on a virtual clock: SIM_SEEDS scenarios (1,000,000)
sim: $(BUILD)/tests/unit/test_rdzv_sim
	$(Q)each=$$(( ($(SIM_SEEDS) + $(SIM_JOBS) - 1) / $(SIM_JOBS) )); \
	seq 0 $$(($(SIM_JOBS) - 1)) | xargs -P $(SIM_JOBS) -I{} sh -c \
	    "TEST_FILTER=scenarios CK_FORK=no SIM_SEEDS=$$each SIM_FROM=\$$((1 + {} * $$each)) $<" && \
	SIM_NODES=4096 SIM_SEEDS=1 TEST_FILTER=scenarios CK_FORK=no $<

# How many scenarios it takes to find each of the bugs in tests/sim/bugs: one file of the rules is built
# with the patch in it, in front of all others.
SIM_BUGS := $(patsubst tests/sim/bugs/%.patch,$(BUILD)/sim-bugs/%,$(wildcard tests/sim/bugs/*.patch))
## sim-bugs: how many scenarios find each of the bugs that are planted in the rules
sim-bugs: $(SIM_BUGS)
	$(Q)tests/sim/bugs.sh $^

$(BUILD)/sim-bugs/rest.a: $(TESTLIB) $(DLAUNCH_OBJ)
	$(Q)mkdir -p $(@D) && rm -f $@ && ar rcs $@ $^

$(BUILD)/sim-bugs/%: tests/sim/bugs/%.patch $(BUILD)/obj/tests/unit/test_rdzv_sim.o $(SIM_OBJ) $(BUILD)/sim-bugs/rest.a
	$(say) BUG $@
	$(Q)file=$$(sed -n 's,^+++ b/,,p' $<) && patch -s -r - -o $@.c $$file $< && \
	    $(CC) $(CPPFLAGS) $(ALL_CFLAGS) -fPIE -c -o $@.o $@.c && \
	    $(CC) $(LDFLAGS) -pie -o $@ $$(printf '%s\n' $(filter %.o,$^) | grep -vx "$(BUILD)/obj/$${file%.c}.o") $@.o \
	        $(filter %.a,$^) $(CHECK_LIBS) $(LIBS)

# All states of small jobs, without sampling. Each of forget_*.c includes one file of the rules, which therefore
# is not taken from the archive. What is on the stack must not differ by chance: it is part of messages.
ALL_OBJ  := $(call obj,$(wildcard tests/sim/all/*.c))
ALL_WRAP := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc free strdup strndup getrandom)
ALL_LINK  = $(CC) $(LDFLAGS) -pie -o $@ $(filter %.o,$^) $(filter %.a,$^) $(CHECK_LIBS) $(LIBS) $(ALL_WRAP)
$(ALL_OBJ): private ALL_CFLAGS += -ftrivial-auto-var-init=zero -Wno-unused-function
$(BUILD)/tests/sim_all: $(ALL_OBJ) $(SIM_OBJ) $(BUILD)/sim-bugs/rest.a
	$(say) LD $@
	$(Q)$(ALL_LINK)

## sim-all: all states of small jobs with faults: how many there are (on a quiet machine, up to 20 minutes)
sim-all: $(BUILD)/tests/sim_all
	$(Q)tests/sim/all/all.sh $<

# The patched file stands in a tree of its own, in which it is found before the other one.
ALL_BUGS := $(patsubst tests/sim/bugs/%.patch,$(BUILD)/sim-all-bugs/%,$(wildcard tests/sim/bugs/*.patch))
## sim-all-bugs: which of the bugs that are planted in the rules the search of all states finds
sim-all-bugs: $(ALL_BUGS)
	$(Q)tests/sim/all/bugs.sh $^

$(BUILD)/sim-all-bugs/%: tests/sim/bugs/%.patch $(ALL_OBJ) $(SIM_OBJ) $(BUILD)/sim-bugs/rest.a
	$(say) BUG $@
	$(Q)file=$$(sed -n 's,^+++ b/,,p' $<) && mkdir -p $@.tree/$$(dirname $$file) && \
	    patch -s -r - -o $@.tree/$$file $$file $< && \
	    held=$$(grep -l "include \"$$file\"" tests/sim/all/*.c || echo $@.tree/$$file) && \
	    $(CC) -I$@.tree $(CPPFLAGS) -DDLAUNCH_CHECKED $(ALL_CFLAGS) -ftrivial-auto-var-init=zero -Wno-unused-function \
	        -fPIE -c -o $@.o $$held && \
	    $(CC) $(LDFLAGS) -pie -o $@ $@.o $$(printf '%s\n' $(filter %.o,$^) | \
	        grep -vx -e "$(BUILD)/obj/$${held%.c}.o" -e "$(BUILD)/obj/$${file%.c}.o") \
	        $(filter %.a,$^) $(CHECK_LIBS) $(LIBS) $(ALL_WRAP)

# Every operation, type, reduction, count and place through every algorithm and transport (what is
# crossed with what: tests/lib/cross.h). The programs are those of `make test`, which do a part of it.
CROSS_TESTS := $(patsubst %,$(BUILD)/tests/unit/test_dlcoll_ops%,_hier _shm) $(BUILD)/tests/unit/test_dlcoll_ops
CROSS_JOBS ?= $(shell nproc)
## cross: every collective operation, type, reduction and count through every algorithm and transport: how many were right (long; CROSS_SIZE=4: of 4 ranks only)
cross: $(CROSS_TESTS)
	$(Q)printf '%s\n' $(CROSS_TESTS) | xargs -P $(CROSS_JOBS) -n 1 env CROSS=full

## run-multihost: what test-multihost does once packages are installed
run-multihost: all $(BUILD)/tests/worker $(call fake,stamps.so) $(BUILD)/tests/coll_worker $(BUILD)/tests/hang_worker $(BUILD)/tests/multihost/store_worker $(MULTIHOST)
	$(Q)JOBS=1 $(run_tests) $(MULTIHOST)
	$(Q)START=daemon JOBS=1 $(run_tests) $(BUILD)/tests/multihost/test_ssh
	$(Q)START=tree JOBS=1 $(run_tests) $(BUILD)/tests/multihost/test_ssh

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
## test-ssh: dlaunch -H by a real sshd, and by daemons, in SSH_HOSTS network namespaces (64; 20 minutes; root)
## ssh-trials: the head killed there SSH_TRIALS times (100): every host clean within 1 s
test-ssh ssh-trials:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-$(@:test-%=%)

## run-ssh: what test-ssh does once packages are installed
run-ssh: all $(BUILD)/tests/worker $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) $(ssh-heads) $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) SSH_TRIALS=$(DAEMON_TRIALS) START=daemon $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) SSH_LOGINS=0 SSH_TRIALS=$(DAEMON_TRIALS) START=tree $(BUILD)/tests/multihost/test_ssh

## run-ssh-trials: what ssh-trials does once packages are installed
run-ssh-trials: all $(BUILD)/tests/worker $(BUILD)/tests/multihost/test_ssh
	$(Q)$(ssh-bars) $(ssh-heads) TEST_FILTER=killed $(BUILD)/tests/multihost/test_ssh

# The tests of failures and reports once more, the job being started by the daemon and by ssh to this
# host. Where several launchers are started by hand they run as ever; what looks into dlaunch's processes
# is skipped with a line.
START_TESTS := $(patsubst %,$(BUILD)/tests/integration/test_%,reports single faults)
## test-starts: the tests of failures and reports with jobs started by the daemon and by ssh
test-starts:
	$(Q)conf/install-deps.sh multihost
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-starts

## run-starts: what test-starts does once packages are installed
run-starts: all $(BUILD)/tests/worker $(HELPERS) $(FAKES) $(START_TESTS)
	$(Q)START=daemon $(run_tests) $(START_TESTS)
	$(Q)START=ssh CK_TIMEOUT_MULTIPLIER=3 $(run_tests) $(START_TESTS) # a login takes its time

# With real PyTorch, current and Debian's: minutes, 1.6 GB in TORCH_VENV, some of it as root. What cannot be
# installed is left out, with a line.
## test-torch: with real PyTorch, current and Debian's (tests/torch/run.sh has its variables)
test-torch:
	$(Q)conf/install-deps.sh test
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) run-torch

## run-torch: what test-torch does once packages are installed
run-torch: all $(BUILD)/tests/bench/store_serve $(BUILD)/tests/torch/store_talk
	$(Q)BUILD=$(BUILD) tests/torch/run.sh

# On a machine with a GPU; tests/gpu/run.sh says what it needs.
## test-gpu: what only a machine with a GPU can show
test-gpu:
	$(Q)[ -x $(BUILD)/tests/gpu/cases -a -x $(BUILD)/dlaunch ] || \
	    $(MAKE) --no-print-directory $(on_all_cpus) all $(BUILD)/tests/gpu/cases
	$(Q)tests/gpu/run.sh $(BUILD); rc=$$?; [ $$rc = 77 ] || exit $$rc

## test-headers: the declarations of NCCL and CUDA beside NVIDIA's headers of many versions (downloads them)
test-headers:
	$(Q)CC="$(CC)" tests/packages/headers.sh

## everything: all programs of the products, tests and benches, without running one
everything: all $(BUILD)/tests/worker $(HELPERS) $(FAKES) $(UNIT) $(INTEGRATION) $(MULTIHOST) $(FUZZ:%=$(BUILD)/replay/%)

## layers: who may include whom, and whether what CONTRIBUTING.md names exists
layers:
	$(Q)tests/layers.sh

# conf/kubernetes: the manifests against the schemas, and jobs in pods (root).
## test-pods: the manifests of conf/kubernetes, and jobs in pods of less kind clusters (root)
test-pods:
	$(Q)conf/install-deps.sh pods
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)tests/pods/test_manifests.py
	$(Q)/usr/bin/python3 -B tests/pods/test_pods.py $(BUILD)

# A real Slurm (munged, slurmctld, slurmd) in network namespaces (root): what dlaunch does in its jobs; jobs that are
# cancelled at random moments; from srun to the first worker beside plain srun; from the loss of a node to the next round.
## test-slurm: jobs in a real Slurm, in network namespaces (root)
## slurm-trials: CANCELS jobs there (500), cancelled at random moments: nothing may be left
## bench-slurm: the start beside plain srun (STARTS=20), the next round after a lost node (LOST=5)
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
## test-mpi: unmodified programs of MPICH and Open MPI on one node and two (root)
test-mpi:
	$(Q)conf/install-deps.sh mpi
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)/usr/bin/python3 -B tests/mpi/test_mpi.py $(BUILD)

# Beside the starters of MPICH and Open MPI: RANKS ranks that say hello, and the death of a rank.
RANKS ?= 128
## bench-mpi: hello of RANKS ranks (128) and the death of a rank, beside mpiexec and mpirun
bench-mpi:
	$(Q)conf/install-deps.sh mpi
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)/usr/bin/python3 -B tests/mpi/test_mpi.py $(BUILD) hello
	$(Q)/usr/bin/python3 -B tests/bench/bench-mpi.py $(BUILD) $(RANKS)

## test-etcd: jobs that meet by real etcd servers (with hosts: root)
test-etcd:
	$(Q)conf/install-deps.sh etcd
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)/usr/bin/python3 -B tests/etcd/test_etcd.py $(BUILD)

## bench-pods: from a worker's death in a pod to the next round (root)
bench-pods: all
	$(Q)/usr/bin/python3 -B tests/pods/test_pods.py $(BUILD) recovery 50

# ------------------------------------------------------------------------------------- fuzzing

# A fuzz target is one file. With libFuzzer: `make fuzz SECONDS=600` runs each of them that long
# (FUZZ=ini for one alone). As a plain program it replays its corpus: `make corpora`, part of `make test`.
SECONDS ?= 60
FUZZ_FLAGS   := CC=clang SANITIZE=fuzzer-no-link,address,undefined

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(DLAUNCH_OBJ) $(call obj,$(COLL_SRC))
	$(say) LD $@
	$(link) -fsanitize=fuzzer $^ $(LIBS)

$(BUILD)/replay/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/tests/fuzz/replay_main.o \
                   $(DLAUNCH_OBJ) $(call obj,$(COLL_SRC))
	$(say) LD $@
	$(link) $^ $(LIBS)

## fuzz-targets: builds them (with CC=clang SANITIZE=fuzzer-no-link,address,undefined)
fuzz-targets: $(FUZZ:%=$(BUILD)/fuzz/%)
## fuzz: every fuzz target (FUZZ=ini: this one) for SECONDS (60)
fuzz:
	$(Q)conf/install-deps.sh fuzz
	$(Q)$(MAKE) --no-print-directory $(FUZZ_FLAGS) fuzz-targets
	$(Q)tests/fuzz/run.sh build-fuzzer-no-link-address-undefined/fuzz $(SECONDS) $(FUZZ)

## corpora: replays what the fuzz targets have found
corpora: $(FUZZ:%=$(BUILD)/replay/%)
	$(Q)for t in $(FUZZ); do printf '%-34s ' replay_$$t; \
	    $(BUILD)/replay/$$t tests/fuzz/corpus/$$t || exit 1; done

