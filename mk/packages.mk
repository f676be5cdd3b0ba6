# Packages, images, installation

# The wheel is self-contained but for the C library and OpenSSL 3, which jobs on several hosts need.
## wheel: the Python package with the programs in it (ARCH=aarch64: for that processor)
wheel:
	$(Q)$(if $(cross),conf/make-sysroot.sh $(cross) $(SYSROOT))
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)conf/make-wheel.py $(BUILD) $(BUILD)/wheel

# ARCH=aarch64 on x86-64: under qemu's emulation of that processor.
## test-wheel: installed and used in an empty environment (ARCH=aarch64: under qemu-user)
test-wheel:
	$(Q)conf/install-deps.sh wheel $(if $(cross),cross-$(cross))
	$(Q)$(if $(cross),conf/make-sysroot.sh $(cross) $(SYSROOT))
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)wheel=$$(conf/make-wheel.py $(BUILD) $(BUILD)/wheel) && tests/packages/test_wheel.py "$$wheel" $(SYSROOT)

## deb: Debian packages of the programs, the library and its headers
deb: all
	$(Q)conf/make-deb.sh $(BUILD) $(BUILD)/deb

# A minute and 200 MB: a clean Debian root is made for it.
## test-deb: installed and used in a clean root (root)
test-deb:
	$(Q)conf/install-deps.sh deb
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)DEBEMAIL=$${DEBEMAIL:-packager@debian.org} conf/make-deb.sh $(BUILD) $(BUILD)/deb && \
	    tests/packages/test_deb.sh $(BUILD)/deb

# The container image: IMAGE_TOOL is what builds it (buildah bud, podman build, docker build).
IMAGE_TOOL ?= buildah bud
## image: the container image (IMAGE_TOOL=docker build)
image: all
	$(Q)conf/container/make-root.sh $(BUILD) $(BUILD)/image/root
	$(Q)$(IMAGE_TOOL) -t localhost/dlaunch:$(VERSION) -f conf/container/Containerfile $(BUILD)/image

# Network namespaces as pods, runc as their runtime (root).
## test-image: built, and run as pods are (root)
test-image:
	$(Q)conf/install-deps.sh image
	$(Q)$(MAKE) --no-print-directory $(on_all_cpus) all
	$(Q)tests/pods/test_image.py $(BUILD)

bindir     = $(DESTDIR)$(PREFIX)/bin
libdir     = $(DESTDIR)$(PREFIX)/lib
libexecdir = $(DESTDIR)$(PREFIX)/libexec/dlaunch
includedir = $(DESTDIR)$(PREFIX)/include
mandir     = $(DESTDIR)$(PREFIX)/share/man
docdir     = $(DESTDIR)$(PREFIX)/share/doc/dlaunch
bashdir    = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
unitdir    = $(DESTDIR)$(PREFIX)/lib/systemd/system
userdir    = $(DESTDIR)$(PREFIX)/lib/systemd/user
MAN       := $(wildcard man/*.[1-9])

with_prefix = sed -e 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|/usr/local/bin/|$(PREFIX)/bin/|'

## install: into PREFIX, below DESTDIR
install: $(PRODUCTS)
	$(Q)$(MAKE) --no-print-directory install-built

# What is built already.
## install-built: the same without a build
install-built:
	install -d $(bindir) $(libexecdir) $(libdir)/pkgconfig $(includedir) $(docdir)/examples/data $(docdir)/doc $(docdir)/kubernetes $(bashdir) $(unitdir) $(userdir)
	install $(BUILD)/dlaunch $(BUILD)/dlaunchctl $(BUILD)/dlcoll_perf $(BUILD)/dlcoll_info $(BUILD)/dlcoll_tune $(bindir)
	ln -sf dlaunch $(bindir)/dlaunchd
	install $(BUILD)/dlaunch-inspect $(libexecdir)
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
## uninstall: takes away what install has put there
uninstall:
	rm -f $(bindir)/dlaunch $(bindir)/dlaunchd $(bindir)/dlaunchctl $(bindir)/dlcoll_perf $(bindir)/dlcoll_info $(bindir)/dlcoll_tune
	rm -rf $(libexecdir)
	rm -f $(libdir)/libdlaunch_nccl.so $(libdir)/libdlaunch.so $(libdir)/libdlaunch.so.0 $(libdir)/libdlcoll.so $(libdir)/libdlcoll.so.0
	rm -f $(includedir)/dlaunch.h $(libdir)/pkgconfig/dlaunch.pc
	rm -f $(includedir)/dlcoll.h $(includedir)/dlcoll.hpp $(includedir)/dlcoll_types.hpp $(libdir)/pkgconfig/dlcoll.pc $(unitdir)/dlaunch@.service $(userdir)/dlaunchd.service
	rm -f $(bashdir)/dlaunch $(bashdir)/dlaunchctl
	for m in $(MAN); do rm -f $(mandir)/man$${m##*.}/$${m##*/} || exit 1; done
	rm -rf $(docdir)
	$(if $(DESTDIR),,$(if $(filter 0,$(shell id -u)),-ldconfig))

