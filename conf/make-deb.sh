#!/bin/bash
# Packs a build into Debian packages: dlaunch (programs, and libdlaunch, which needs them), libdlcoll0 (the library),
# libdlcoll-dev (headers of both libraries).
#   conf/make-deb.sh BUILD OUT
# DEBFULLNAME and DEBEMAIL name the packager. Needs dpkg-dev, binutils and patchelf. The packages are written into the folder OUT, and their paths printed.
set -eu
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
version=$(cat VERSION)
revision=$version-1
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
maintainer="${DEBFULLNAME:-dlaunch packager} <${DEBEMAIL:-root@$(hostname -f)}>"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
all=$work/all
make --no-print-directory -s BUILD="$build" PREFIX=/usr DESTDIR="$all" install-built >"$work/install.log"

# What every package has: its documents and its control files.
finish() { # package, description (first line, then the rest)
    local dir=$work/$1 doc=$work/$1/usr/share/doc/$1
    mkdir -p "$doc" "$dir/DEBIAN"
    cat >"$doc/copyright" <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: dlaunch
Source: the source tree that this package was built from

Files: *
Copyright: 2026 the dlaunch authors
License: Apache-2.0

Files: examples/data/*
Copyright: UCI Machine Learning Repository
License: CC-BY-4.0
 See https://creativecommons.org/licenses/by/4.0/legalcode

License: Apache-2.0
 On Debian systems the full text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
COPYRIGHT
    printf 'dlaunch (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the source.\n\n -- %s  %s\n' \
        "$revision" "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.Debian.gz"
    # This is not an upload to Debian's archive, which would close a request for the package.
    mkdir -p "$dir/usr/share/lintian/overrides"
    echo "$1: initial-upload-closes-no-bugs" >"$dir/usr/share/lintian/overrides/$1"
    (cd "$dir" && find . -type f ! -path "./DEBIAN/*" -printf "%P\0" | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    {
        echo "Package: $1"
        echo "Source: dlaunch"
        echo "Version: $revision"
        echo "Architecture: $arch"
        echo "Maintainer: $maintainer"
        echo "Installed-Size: $(du -sk --apparent-size "$dir/usr" | cut -f 1)"
        echo "$2"
    } >"$dir/DEBIAN/control"
    find "$dir" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz -b "$dir" "$out" >/dev/null
    echo "$out/$1_${revision}_$arch.deb"
}

compress_pages() { find "$1" -type f -name '*.[1-9]' -exec gzip -9n {} +; }

# The library.
lib=$work/libdlcoll0
mkdir -p "$lib/usr/lib/$multiarch" "$lib/DEBIAN"
cp "$all/usr/lib/libdlcoll.so.0" "$lib/usr/lib/$multiarch/"
strip --strip-unneeded "$lib/usr/lib/$multiarch/libdlcoll.so.0"
chmod 644 "$lib/usr/lib/$multiarch/libdlcoll.so.0"
echo "libdlcoll 0 libdlcoll0 (>= $version)" >"$lib/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$lib/DEBIAN/triggers"
finish libdlcoll0 "Depends: libc6 (>= 2.34)
Section: libs
Priority: optional
Multi-Arch: same
Description: collective operations between the workers of a job
 libdlcoll gives programs collective operations and messages: shared memory
 inside a node, TCP between nodes, NCCL on GPUs.
 .
 This package has the shared library."

# Headers.
dev=$work/libdlcoll-dev
mkdir -p "$dev/usr/include" "$dev/usr/lib/$multiarch/pkgconfig" "$dev/usr/share/man"
cp "$all"/usr/include/dl* "$dev/usr/include/"
for name in dlaunch dlcoll; do
    sed "s|^libdir=.*|libdir=\${prefix}/lib/$multiarch|" "$all/usr/lib/pkgconfig/$name.pc" \
        >"$dev/usr/lib/$multiarch/pkgconfig/$name.pc"
    ln -s lib$name.so.0 "$dev/usr/lib/$multiarch/lib$name.so"
done
mv "$all/usr/share/man/man3" "$dev/usr/share/man/"
compress_pages "$dev/usr/share/man"
finish libdlcoll-dev "Depends: libdlcoll0 (= $revision), dlaunch (= $revision)
Section: libdevel
Priority: optional
Multi-Arch: same
Description: collective operations between the workers of a job (headers)
 libdlcoll gives programs collective operations and messages: shared memory
 inside a node, TCP between nodes, NCCL on GPUs.
 .
 This package has what is needed to compile C and C++ programs."

# Programs.
app=$work/dlaunch
mkdir -p "$app/usr/share/doc/dlaunch" "$app/lib/systemd"
cp -r "$all/usr/bin" "$all/usr/libexec" "$app/usr/"
mkdir -p "$app/usr/lib/$multiarch" "$app/DEBIAN"
cp "$all/usr/lib/libdlaunch.so.0" "$app/usr/lib/$multiarch/"
chmod 644 "$app/usr/lib/$multiarch/libdlaunch.so.0"
# No program links it: it has a folder of its own.
mkdir -p "$app/usr/lib/dlaunch"
cp "$all/usr/lib/libdlaunch_nccl.so" "$app/usr/lib/dlaunch/"
chmod 644 "$app/usr/lib/dlaunch/libdlaunch_nccl.so"
find "$app/usr/bin" "$app/usr/libexec" -type f -exec strip {} + # dlaunchd is a link
strip --strip-unneeded "$app/usr/lib/$multiarch/libdlaunch.so.0" "$app/usr/lib/dlaunch/libdlaunch_nccl.so"
echo "libdlaunch 0 dlaunch (>= $version)" >"$app/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$app/DEBIAN/triggers"
for program in "$app"/usr/bin/dlcoll_*; do
    # The library is where the system's loader finds it.
    patchelf --remove-rpath "$program"
done
cp -r "$all/usr/share/man" "$all/usr/share/bash-completion" "$app/usr/share/"
compress_pages "$app/usr/share/man"
ln -s dlaunch.1.gz "$app/usr/share/man/man1/dlaunchd.1.gz"
cp -r "$all/usr/share/doc/dlaunch/." "$app/usr/share/doc/dlaunch/"
rm "$app/usr/share/doc/dlaunch/LICENSE"
gzip -9n "$app/usr/share/doc/dlaunch/CHANGELOG.md"
mv "$app/usr/share/doc/dlaunch/CHANGELOG.md.gz" "$app/usr/share/doc/dlaunch/changelog.gz"
cp -r "$all/usr/lib/systemd/system" "$app/lib/systemd/"
mkdir -p "$app/usr/lib/systemd"
cp -r "$all/usr/lib/systemd/user" "$app/usr/lib/systemd/"
finish dlaunch "Depends: libc6 (>= 2.34), libdlcoll0 (= $revision)
Recommends: libhwloc15, libssl3, libdw1
Section: net
Priority: optional
Description: launcher for distributed jobs
 dlaunch starts the workers of a distributed job on every node, watches them
 together with the other nodes, restarts them after a failure, and reports
 which worker failed first and why. It accepts torchrun's command line and
 speaks torchrun's protocols, is written in C and needs no Python."
