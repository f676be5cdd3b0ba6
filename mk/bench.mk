# Benches: times, beside the peers that are installed

bench_bin = $(BUILD)/tests/bench/$(1)

## deps-bench: installs the peers that benches compare with
deps-bench:
	$(Q)conf/install-deps.sh bench

## bench: the benches that need no root and no PyTorch, one after the other, beside the peers that are installed
bench:
	$(Q)for b in launch restart rdzv store stdio reduce coll tcp progress job faults hostile; do \
	    $(MAKE) --no-print-directory bench-$$b || exit 1; done

## bench-launch: workers that do nothing, from start to exit
bench-launch: all $(call bench_bin,floor) $(call bench_bin,nap) $(call bench_bin,stamp)
	$(Q)tests/bench/bench-launch.py $(BUILD)

# Two hosts from a third, by the daemon and by ssh, beside mpirun and Hydra; root. What else a busy machine
# does is kept out by chrt -r 5 make bench-hosts.
## bench-hosts: starting on two hosts, by the daemon and by ssh, beside mpirun and Hydra (root)
bench-hosts: all $(call bench_bin,stamp)
	$(Q)conf/install-deps.sh multihost
	$(Q)tests/bench/bench-hosts.py $(BUILD)

## bench-restart: from a killed worker to its successors
bench-restart: all $(call bench_bin,stamp)
	$(Q)tests/bench/bench-restart.py $(BUILD)

# torchrun: the one that bench-torchrun and test-torch install, if it is there; else Debian's.
## bench-faults: from a worker, launcher or host that is lost until all know, and until the next round runs
bench-faults: all $(call bench_bin,stamp)
	$(Q)python="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}/bin/python"; \
	    [ -x "$$python" ] || python=/usr/bin/python3; "$$python" tests/bench/bench-faults.py $(BUILD)

# Python with PyTorch: as for bench-torch. NAMES="gloo DDP, warm;torchrun" selects rows.
## bench-recovery: from kill -9 of a rank to the first all_reduce of the next round (PyTorch)
bench-recovery: all $(call bench_bin,recovery)
	$(Q)conf/install-deps.sh torch
	$(Q)venv="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}"; \
	    tests/torch/install.sh "$$venv" && "$$venv/bin/python" tests/bench/bench-recovery.py $(BUILD)

## bench-store: the workers' store beside PyTorch's
bench-store: $(call bench_bin,bench_store) $(call bench_bin,store_serve)
	$(Q)tests/bench/bench-store.sh $(BUILD)

# The backend dlcoll beside gloo.
## bench-torch: torch.distributed with the backend dlcoll beside gloo
bench-torch: all
	$(Q)conf/install-deps.sh torch
	$(Q)venv="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}"; tests/torch/install.sh "$$venv" && \
	    "$$venv/bin/python" tests/bench/bench-torch.py $(BUILD)

## bench-torchrun: first line, restart, lost launcher and host beside torchrun
bench-torchrun: all
	$(Q)conf/install-deps.sh torch
	$(Q)venv="$${TORCH_VENV:-$${XDG_CACHE_HOME:-$$HOME/.cache}/dlaunch/torch}"; python="$$venv/bin/python"; \
	    tests/torch/install.sh "$$venv" || { conf/install-deps.sh torch-debian && python=/usr/bin/python3; } && \
	    "$$python" tests/bench/bench-torchrun.py $(BUILD)

## bench-rdzv: up to 65,536 simulated nodes that meet
bench-rdzv: $(call bench_bin,bench_rdzv)
	$(Q)$<
	$(Q)$< --tls 3 1024 4096

## bench-reduce: the reduction kernels beside memcpy
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
## bench-coll: collective operations beside MPI and Gloo (QUICK=1: under 2 minutes)
bench-coll: all $(COLL_PEERS)
	$(Q)tests/bench/bench-coll.py $(BUILD)

# One connection, several, without copying, by io_uring.
## bench-tcp: ways of moving bytes over TCP
bench-tcp: $(call bench_bin,tcp_ways)
	$(Q)tests/bench/bench-tcp.sh $(BUILD)

# Thousands of operations by work handle at once.
## bench-progress: thousands of operations by work handle at once
bench-progress: all $(COLL_BENCH)/progress
	$(Q)run() { printf '%s\n' "$$*"; $(BUILD)/dlaunch --quiet --nproc_per_node "$$1" $(COLL_BENCH)/progress \
	    $$2 $$3 $$4; }; \
	    run 2 small && run 4 late 100 && run 4 late 800 && run 4 freed 1020 && run 4 pending 100 10 && \
	    run 4 pending 1000 10

## bench-job: libdlcoll in a job: its start, a killed rank, the training example, what watching for hangs costs
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
## model: the algorithms between up to 1,024 nodes, on a model of the network
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

# 10,000 strangers at the port of a running job; some hundreds of them are in `make test`.
## bench-hostile: 10,000 strangers at the port of a running job
bench-hostile: all $(call bench_bin,hostile)
	$(Q)$(call bench_bin,hostile) $(BUILD) 10000 1000

## bench-stdio: forwarding of the workers' output
bench-stdio: $(call bench_bin,bench_stdio) $(BUILD)/tests/worker
	$(Q)$<
