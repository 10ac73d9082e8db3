#!/bin/sh
# Prints what the compilers here can do, as words for the Makefile, each one NAME+=value.
#
#   CC=gcc dev/probe_compiler.sh arch openmp        ARCH: the flag for this machine's processor; OPENMP_FLAGS and
#                                                   OPENMP_LIBS: what CC needs for OpenMP. Nothing where it has none
#   CXX=g++ dev/probe_compiler.sh cxx_openmp        CXX_OPENMP: the flag of CXX
#
# A flag counts if a program links with it, since a compiler can know a flag and lack its library.
set -u
export LC_ALL=C
probe=$(mktemp -d "${TMPDIR:-/tmp}/gpt2c_probe.XXXXXX") || exit 1
trap 'rm -rf "$probe"' EXIT
echo 'int main(void) { return 0; }' >"$probe/empty"
printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' >"$probe/openmp"

links() { # COMPILER LANGUAGE SOURCE FLAG...: does it build this source with these flags?
    compiler=$1 language=$2 source=$3
    shift 3
    $compiler -x "$language" "$probe/$source" -x none -o "$probe/program" "$@" >/dev/null 2>&1
}

words() { # NAME WORD...
    name=$1
    shift
    for word in "$@"; do echo "$name+=$word"; done
}

find_arch() {
    flags="-march=native -mcpu=native"
    case $(uname -m) in arm* | aarch64) flags="-mcpu=native -march=native" ;; esac
    for flag in $flags; do
        if links "$CC" c empty "$flag"; then words ARCH "$flag" && return; fi
    done
}

# gcc brings libgomp. clang needs libomp (Debian: libomp-dev). Apple's clang needs Homebrew's libomp, and its
# preprocessor must be told of OpenMP.
find_openmp() {
    if links "$CC" c openmp -fopenmp; then
        words OPENMP_FLAGS -fopenmp
    elif [ "$(uname -s)" = Darwin ]; then
        libomp=$(brew --prefix libomp 2>/dev/null)
        if links "$CC" c openmp -Xpreprocessor -fopenmp "-I$libomp/include" "-L$libomp/lib" -lomp; then
            words OPENMP_FLAGS -Xpreprocessor -fopenmp "-I$libomp/include"
            words OPENMP_LIBS "-L$libomp/lib" -lomp
        fi
    fi
}

for what in "$@"; do
    case $what in
        arch) find_arch ;;
        openmp) find_openmp ;;
        cxx_openmp) if links "$CXX" c++ openmp -fopenmp; then words CXX_OPENMP -fopenmp; fi ;;
        *) echo "probe_compiler.sh: '$what': expected arch, openmp or cxx_openmp" >&2 && exit 1 ;;
    esac
done
