#!/usr/bin/env bash
# Builds the programs and runs the tests with pytest. The last line is `N passed, N failed, N skipped`. The exit status
# is 0 only if nothing failed.
#
#   scripts/test.sh                          most tests once, in one configuration
#   scripts/test.sh --all                    every compiler, precision and sanitizer, and the long runs
#   scripts/test.sh dev/test/base -k json    builds, and hands the arguments to pytest
#
# Without --all: gcc, the emulated GPU programs in bf16, AddressSanitizer and UndefinedBehaviorSanitizer for the unit
# tests and the fuzzers, and one compile with nvcc where nvcc is. --all adds what doc/tests.md lists.
# Logs of the builds are in build/logs/.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh

readonly LOGS=build/logs
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
cores=$((cores < 8 ? cores : 8))
all=no
case ${1:-} in
    -h | --help) sed -n '2,/^set -u/ s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --all) all=yes; shift ;;
esac

# --- what this machine lacks -----------------------------------------------------------------------------------------
readonly NEEDED="pytest, xdist, pytest_timeout, numpy" LIBRARIES="huggingface_hub, pyarrow" # dev/data needs these
readonly VENV=build/venv/bin/python3

imports() { "$1" -c "import $2" >/dev/null 2>&1; } # PYTHON MODULES

find_python() { # sets python: one that has what is needed, with what few tests need before one without
    for modules in "$NEEDED, matplotlib, markdown_it" "$NEEDED, matplotlib" "$NEEDED"; do
        for python in $VENV python3 /usr/bin/python3; do ! imports "$python" "$modules" || return 0; done
    done
    python=""
}

install_missing() {
    local packages=()
    links gcc || packages+=(gcc libc6-dev)
    links g++ || packages+=(g++)
    have make || packages+=(make)
    [ $all = no ] || links clang -fopenmp || packages+=(clang libomp-dev)
    have mpicc mpirun || packages+=(openmpi-bin libopenmpi-dev)
    find_python
    [ -n "$python" ] || packages+=(python3-pytest python3-pytest-xdist python3-pytest-timeout python3-numpy)
    imports "${python:-python3}" matplotlib || packages+=(python3-matplotlib)
    imports "${python:-python3}" markdown_it || packages+=(python3-markdown-it)
    [ ${#packages[@]} = 0 ] || install_packages "to build and test" "${packages[@]}" || echo "Going on without."
    # On newer systems these are a package of their own.
    [ $all = no ] || links clang -fsanitize=address || install_packages "clang's sanitizers" libclang-rt-dev
    find_python
    [ -n "$python" ] || install_with_pip pytest pytest-xdist pytest-timeout numpy
    # Without them the tests of dev/data say "skipped". From 21 on pyarrow needs NumPy 2, which a system may not have.
    [ $all = no ] || imports "$python" "$LIBRARIES" ||
        { install_with_pip huggingface_hub pyarrow && imports $VENV "$LIBRARIES"; } ||
        install_with_pip huggingface_hub "pyarrow<21"
    find_python
}

install_with_pip() { # PACKAGE...: into a folder of its own
    echo "Installing $* into build/venv ..."
    [ -x $VENV ] || "${python:-python3}" -m venv --system-site-packages build/venv
    $VENV -m pip install --quiet --retries 1 "$@" && imports $VENV "$NEEDED"
}

# --- building --------------------------------------------------------------------------------------------------------
# A build is a target of one makefile, so that all share the cores. Each has a folder, make's arguments and programs.
targets="" rules="" builds=""

# add_build FOLDER ARGUMENTS PROGRAMS: a program with @ belongs into BUILD, one without into BIN.
add_build() {
    local bin=$1/ names="" program goals first=()
    [ "$1" != build ] || bin=""
    for program in $3; do
        case $program in @*) names+=" $1/${program#@}" ;; *) names+=" $bin$program" ;; esac
    done
    targets+=" $names"
    builds=${builds:+$builds,}$1
    rules+="all: $1"$'\n'"$1:"$'\n'
    # The emulator first: else make compiles its longest programs last, with one core.
    case $3 in *emu/*) first=("$1/emu.ready") ;; esac
    for goals in "${first[@]+"${first[@]}"}" "$names"; do
        rules+=$'\t'"+\$(MAKE) -f Makefile -k BUILD=$1 BIN=${bin%/} $2 $goals >>\$(LOGS)/${1//\//_}.log 2>&1"$'\n'
    done
}

names_in() { printf '%s\n' "${@:2}" | sed "s#.*/##; s#\.[^.]*\$##; s#^#$1#" | paste -sd ' '; } # PREFIX FILE...

choose_builds() {
    local emulated="train_gpt2emu train_llama3emu test_llama3emu @emu/gpu_tests"
    local units="train_gpt2 @unit_tests @test_trainer @test_llama3 @test_comm" fuzzers features
    local sanitizer="CC=$CC CXX=$CXX" fp32="CXX=$CXX" cpu=(dev/exercises/*/chapter.c) gpu=(dev/exercises/*/chapter.cu)
    fuzzers=$(names_in @ dev/test/*/fuzz_*.c)
    features="@emu/book $(names_in @emu/ dev/test/emu/emu_*.cu)"
    if [ $all = no ]; then
        features="${features/@emu\/emu_numbers/} @emu/ladder_layernorm" # all conversions of numbers would take 4 s
        add_build build QUICK=1 "$emulated $features train_llama3 tokenize $units"
        add_build build/sanitize "QUICK=1 SANITIZE=1" "@unit_tests $fuzzers"
        add_build build/grid "PRECISION=FP32 CFLAGS=-O0" "train_gpt2emu train_llama3emu" # for test_grid.py
        return
    fi
    ! links clang -fsanitize=address || sanitizer="CC=clang CXX=clang++"
    ! have clang++ || fp32="CXX=clang++"
    features+=" $(names_in @chapter_ "${cpu[@]%/*}") $(names_in @emu/chapter_ "${gpu[@]%/*}")"
    features+=" $(names_in @emu/ladder_ dev/cuda/*.cu) test_gpt2 @ladder"
    add_build build "" "$emulated $features train_llama3 tokenize $units"
    add_build build/sanitize "SANITIZE=1 $sanitizer" "$units $fuzzers"
    add_build build/emu_fp32 "QUICK=1 PRECISION=FP32 $fp32" "$emulated"
    add_build build/serial "OPENMP=0 CFLAGS=-Og ARCH=" "train_gpt2 @test_simd"
}

install_missing
export WERROR=1 CC=gcc CXX=g++ # also for what tests call make for, so that it finds what is built here
have gcc || export CC=clang CXX=clang++
if [ -z "$python" ] || ! have make $CC; then
    echo "scripts/test.sh needs make, gcc or clang, and numpy and pytest with pytest-xdist and pytest-timeout."
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
choose_builds
mkdir -p "$LOGS"
rm -f "$LOGS"/*.log
printf 'LOGS = %s\n.PHONY: all %s\n%s' "$LOGS" "${builds//,/ }" "$rules" >"$LOGS/builds.mk"
"$python" -m pytest --collect-only -q dev/test >/dev/null 2>&1 & # keeps what pytest makes of the test files
make -k -j"$((cores < 2 ? 2 : cores))" -f "$LOGS/builds.mk" all ||
    grep -hE '^make.*Error|error:|warning:' "$LOGS"/*.log | head -n 20
wait
echo "== built after $SECONDS s"

case ${1:--} in -*) set -- dev/test "$@" ;; esac
[ $all = yes ] || set -- --quick "$@"
# Three processes more than cores, because many tests mostly wait: for a time limit, or for programs that start.
TEST_TARGETS="$targets" "$python" -m pytest --builds="$builds" --durations=5 -n $((cores + 3)) -q "$@"
