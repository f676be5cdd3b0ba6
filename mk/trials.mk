# Trials: proofs by many runs with random faults

trial_bin = $(BUILD)/tests/trials/$(1)

# kill -9 at random moments; a short run of it is in `make test`. SEED=n repeats one.
## hang-trials: hangs planted at random, TRIALS times (3,000): who is named on every node, and when
hang-trials: TRIALS ?= 3000
hang-trials: all $(BUILD)/tests/hang_worker
	$(Q)tests/trials/hang_trials.py $(BUILD) $(TRIALS) $(TRIAL_PYTHON)

## kill-trials: kill -9 at random moments, TRIALS times (3,000) with 1 launcher and with 2
kill-trials: TRIALS ?= 3000
kill-trials: all $(call trial_bin,kill_trials)
	$(Q)$(call trial_bin,kill_trials) $(BUILD) $(TRIALS) 1 $(SEED)
	$(Q)$(call trial_bin,kill_trials) $(BUILD) $(TRIALS) 2 $(SEED)

# Each of 60 planted causes in jobs of three launchers: class, rank and words on every node. SEED=n repeats one.
## cause-trials: 60 planted causes on 3 launchers, TRIALS times (1,000): class, rank, words, time
cause-trials: TRIALS ?= 1000
cause-trials: all $(BUILD)/tests/worker
	$(Q)tests/trials/cause_trials.py --build $(BUILD) --trials $(TRIALS) $(if $(SEED),--seed $(SEED))

# Every call that can fail is failed once; some of each kind are in `make test`.
## failing-calls: every call of a launcher that can fail, failed once
failing-calls: all $(FAKES) $(BUILD)/tests/worker $(BUILD)/tests/integration/test_failing_calls
	$(Q)FAILING_CALLS=0 $(BUILD)/tests/integration/test_failing_calls

# Random faults on 4 launchers of 4 workers that train, for MINUTES. SEED=n repeats the choices of one.
MINUTES ?= 30
## soak: random faults on 4 launchers x 4 workers that train, for MINUTES (30)
soak: all
	$(Q)tests/trials/soak.py $(BUILD) $(MINUTES) $(SEED)

# Random faults of processes, networks and disks on 3 hosts that are network namespaces (root), TRIALS times.
# SEED=n repeats the faults of one run, SEED=n:k those of its trial k.
TRIAL_JOBS ?= $(shell nproc)
## net-trials: random faults between 3 network namespaces that train, TRIALS times (100), TRIAL_JOBS at a time (CPUs; root)
net-trials: TRIALS ?= 100
net-trials: all $(call fake,stamps.so)
	$(Q)tests/trials/net_trials.py $(BUILD) $(TRIALS) "$(SEED)" $(TRIAL_JOBS)

# Warm restarts, RESTARTS times (1,000): what is left. Twenty of them are in `make test`.
RESTARTS ?= 1000
## warm-restarts: a Python program restarted warm, RESTARTS times (1,000): what is left
warm-restarts: all
	$(Q)BUILD=$(BUILD) RESTARTS=$(RESTARTS) TEST_LIMIT=7200 tests/integration/test_warm.py many_restarts

# Clean runs of --doctor on eight nodes, DOCTOR_RUNS times (100): on one host, and on hosts that are network
# namespaces (root). None may report a problem.
DOCTOR_RUNS ?= 100
## doctor-trials: --doctor on eight clean nodes, DOCTOR_RUNS times (100): no problem is reported (root)
doctor-trials: all $(BUILD)/tests/integration/test_doctor $(BUILD)/tests/multihost/test_doctor_hosts
	$(Q)for t in integration/test_doctor multihost/test_doctor_hosts; do \
	    DOCTOR_RUNS=$(DOCTOR_RUNS) TEST_FILTER=clean $(BUILD)/tests/$$t || exit 1; done
