#!/usr/bin/env bash
# Builds the programs and runs the tests with pytest. The last line is `N passed, N failed, N skipped`. The exit status
# is 0 only if nothing failed.
#
#   scripts/test.sh                          most tests once, in one configuration
#   scripts/test.sh --all                    every compiler, precision and sanitizer, and the long runs
#   scripts/test.sh --changed                what the changes since origin/main touch, for work at the desk
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

all=no changed=""
case ${1:-} in
    -h | --help) sed -n '2,/^set -u/ s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --all) all=yes; shift ;;
    --changed) changed=--changed; shift ;;
esac

# --- what this machine lacks -----------------------------------------------------------------------------------------
install_missing() {
    local packages=()
    if ! have gcc || ! links gcc; then packages+=(gcc libc6-dev); fi
    if ! have g++ || ! links g++; then packages+=(g++); fi
    have make || packages+=(make)
    if [ $all = yes ] && ! { have clang && links clang -fopenmp; }; then packages+=(clang libomp-dev); fi
    have mpicc mpirun || packages+=(openmpi-bin libopenmpi-dev)
    have python3 || packages+=(python3)
    if [ -z "$(find_python)" ]; then packages+=(python3-pytest python3-pytest-xdist python3-pytest-timeout); fi
    if ! counts python3 && ! counts /usr/bin/python3; then packages+=(python3-numpy); fi
    if ! draws python3 && ! draws /usr/bin/python3; then packages+=(python3-matplotlib); fi
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages "to build and test" "${packages[@]}" || echo "Going on with what there is."
    fi
    # On newer systems clang's sanitizers are a package of their own, named after the version.
    if [ $all = yes ] && have clang && ! links clang -fsanitize=address; then
        packages=("libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev")
        apt-cache show "${packages[0]}" >/dev/null 2>&1 && install_packages "for clang's sanitizers" "${packages[0]}"
    fi
}

counts() { "$1" -c 'import numpy' >/dev/null 2>&1; } # dev/hf.py needs it
draws() { "$1" -c 'import matplotlib' >/dev/null 2>&1; }

# A Python that has pytest, its two plugins and numpy; one that also draws comes first.
find_python() {
    local wanted python
    for wanted in 'pytest, xdist, pytest_timeout, numpy, matplotlib' 'pytest, xdist, pytest_timeout, numpy'; do
        for python in python3 /usr/bin/python3 build/venv/bin/python3; do
            if "$python" -c "import $wanted" >/dev/null 2>&1; then echo "$python"; return; fi
        done
    done
}

# Where the system has no package of pytest: in a folder of its own, with pip.
install_with_pip() {
    echo "Installing pytest into build/venv ..."
    python3 -m venv --system-site-packages build/venv &&
        build/venv/bin/python3 -m pip install --quiet pytest pytest-xdist pytest-timeout numpy
}

# --- building --------------------------------------------------------------------------------------------------------
# A build is a target of one makefile, so that all share the cores. Each has a folder, make's arguments and programs.
targets="" rules="" builds=""

# add_build FOLDER ARGUMENTS PROGRAMS: a program with @ belongs into BUILD, one without into BIN.
add_build() {
    local folder=$1 bin=$1/ flags=$2 program names=""
    [ "$folder" != build ] || bin=""
    for program in $3; do
        case $program in
            @*) names+=" $folder/${program#@}" ;;
            *) names+=" $bin$program" ;;
        esac
    done
    targets+=" $names"
    builds=${builds:+$builds,}$folder
    rules+="all: $folder"$'\n'"$folder:"$'\n'
    # The emulator first: else make compiles its longest programs last, with one core.
    case $3 in *emu/*) add_command "$folder/emu.ready" ;; esac
    add_command "$names"
}

add_command() { # GOALS: to the rule for add_build's $folder
    rules+=$'\t'"+\$(MAKE) -f Makefile -k BUILD=$folder BIN=${bin%/} $flags $1 >>\$(LOGS)/${folder//\//_}.log 2>&1"$'\n'
}

names_in() { printf '%s\n' "$@" | sed 's#.*/##; s#\.[^.]*$##'; } # FILE...: without folder and ending

choose_builds() {
    local emulated="train_gpt2emu train_llama3emu test_llama3emu @emu/gpu_tests @emu/book"
    local units="train_gpt2 train_llama3 tokenize @unit_tests @test_trainer @test_llama3 @test_comm"
    local fuzzers ladders chapters="" source folder sanitizer="CC=$cc CXX=$cxx" fp32="CXX=$cxx"
    fuzzers=$(names_in dev/test/*/fuzz_*.c | grep -v fuzz_evaluate | sed 's/^/@/' | tr '\n' ' ') # test_trainer has it
    ladders=$(names_in dev/cuda/*.cu | sed 's#^#@emu/ladder_#' | tr '\n' ' ')
    emulated+=" $(names_in dev/test/emu/emu_*.cu | sed 's#^#@emu/#' | tr '\n' ' ')"
    if [ $all = no ]; then
        emulated="${emulated/@emu\/emu_numbers/} @emu/ladder_layernorm" # all conversions of numbers would take 4 s
        add_build build QUICK=1 "$emulated $units"
        add_build build/sanitize "QUICK=1 SANITIZE=1" "@unit_tests $fuzzers"
        add_build build/grid "PRECISION=FP32 CFLAGS=-O0" "train_gpt2emu train_llama3emu" # for test_grid.py
        return
    fi
    if have clang clang++ && links clang -fsanitize=address; then sanitizer="CC=clang CXX=clang++"; fi
    ! have clang++ || fp32="CXX=clang++"
    for source in dev/exercises/*/chapter.c*; do # each as its reader builds it
        folder=""
        [ "${source%u}" = "$source" ] || folder=emu/
        source=${source%/*}
        chapters+=" @${folder}chapter_${source##*/} @${folder}solved_${source##*/}"
    done
    add_build build "" "$emulated $ladders $chapters test_gpt2 @ladder $units"
    units="train_gpt2 @unit_tests @test_trainer @test_llama3 @test_comm"
    add_build build/sanitize "SANITIZE=1 $sanitizer" "$units $fuzzers"
    emulated="train_gpt2emu train_llama3emu test_llama3emu @emu/gpu_tests"
    add_build build/emu_fp32 "QUICK=1 PRECISION=FP32 $fp32" "$emulated"
    add_build build/serial "OPENMP=0 CFLAGS=-Og ARCH=" "train_gpt2 @test_simd"
}

install_missing
cc=gcc cxx=g++
have gcc || cc=clang cxx=clang++
python=$(find_python)
[ -n "$python" ] || { install_with_pip && python=$(find_python); }
if [ -z "$python" ] || ! have make $cc; then
    echo "scripts/test.sh needs make, gcc or clang, and pytest with two plugins. Please install pytest and start again:"
    echo "    apt-get install python3-pytest python3-pytest-xdist python3-pytest-timeout"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
export WERROR=1 CC=$cc CXX=$cxx # also for what tests call make for, so that it finds what is built here
choose_builds
mkdir -p "$LOGS"
rm -f "$LOGS"/*.log
printf 'LOGS = %s\n.PHONY: all %s\n%s' "$LOGS" "${builds//,/ }" "$rules" >"$LOGS/builds.mk"
"$python" -m pytest --collect-only -q dev/test >/dev/null 2>&1 & # keeps what pytest makes of the test files
make -k -j"$((cores < 2 ? 2 : cores))" -f "$LOGS/builds.mk" all ||
    grep -hE '^make.*Error|error:|warning:' "$LOGS"/*.log | head -n 20
wait
echo "== built after $SECONDS s"

quick=--quick
[ $all = no ] || quick=""
# Three processes more than cores, because many tests mostly wait: for a time limit, or for programs that start.
case ${1:--} in -*) set -- dev/test "$@" ;; esac
# shellcheck disable=SC2086 # empty words are none
TEST_TARGETS="$targets" "$python" -m pytest --builds="$builds" $quick $changed -n $((cores + 3)) -q "$@"
