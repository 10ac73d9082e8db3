#!/usr/bin/env bash
# Builds the programs and runs the tests with pytest. The last line is `N passed, N failed, N skipped`. The exit status
# is 0 only if nothing failed.
#
#   scripts/test.sh                          everything once, in one configuration
#   scripts/test.sh --all                    every compiler, precision and sanitizer, and the long runs
#   scripts/test.sh dev/test/base -k json    builds, and hands the arguments to pytest
#
# Without --all: gcc, the emulated GPU programs in bf16, AddressSanitizer and UndefinedBehaviorSanitizer for the unit
# tests, the fuzzers and the fault runs, and one compile with nvcc where nvcc is. --all adds what doc/tests.md lists.
# Logs of the builds are in build/logs/.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh
. scripts/settings.sh

readonly LOGS=build/logs
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
cores=$((cores < 8 ? cores : 8))

all=no
case ${1:-} in
    -h | --help) sed -n '2,/^set -u/ s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --all) all=yes; shift ;;
esac
note_settings TRAIN_SECONDS
note_run_settings

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

draws() { "$1" -c 'import matplotlib' >/dev/null 2>&1; }

# A Python that has pytest and its two plugins; one that also draws comes first.
find_python() {
    local wanted python
    for wanted in 'pytest, xdist, pytest_timeout, matplotlib' 'pytest, xdist, pytest_timeout'; do
        for python in python3 /usr/bin/python3 build/venv/bin/python3; do
            if "$python" -c "import $wanted" >/dev/null 2>&1; then echo "$python"; return; fi
        done
    done
}

# Where the system has no package of pytest: in a folder of its own, with pip.
install_with_pip() {
    echo "Installing pytest into build/venv ..."
    python3 -m venv --system-site-packages build/venv &&
        build/venv/bin/python3 -m pip install --quiet pytest pytest-xdist pytest-timeout
}

# --- building --------------------------------------------------------------------------------------------------------
# A build is a target of one makefile, so that all share the cores. Each has a folder, make's arguments and programs.
readonly UNITS="train_gpt2 tokenize test_gpt2 @unit_tests @ladder"
targets="" rules="" builds=""

# add_build FOLDER AFTER ARGUMENTS PROGRAMS: a program with @ belongs into BUILD, one without into BIN.
add_build() {
    local folder=$1 bin=$1/ program names=""
    [ "$folder" != build ] || bin=""
    for program in $4; do
        case $program in
            @*) names+=" $folder/${program#@}" ;;
            *) names+=" $bin$program" ;;
        esac
    done
    targets+=" $names"
    builds=${builds:+$builds,}$folder
    rules+="all: $folder"$'\n'"$folder: $2"$'\n'$'\t'"+\$(MAKE) -f Makefile -k WERROR=1 BUILD=$folder \
BIN=${bin%/} $3 $names >$LOGS/${folder//\//_}.log 2>&1"$'\n'
}

choose_builds() {
    local kernels="@emu/test_kernels" fuzzers clang="" sanitize="SANITIZE=1 CC=$cc CXX=$cxx"
    fuzzers=$(printf '%s\n' dev/test/*/fuzz_*.c | sed 's#.*/\(.*\)\.c#@\1#' | tr '\n' ' ')
    ! have clang++ || clang="CXX=clang++"
    local not_sanitized emulated="train_gpt2emu test_gpt2emu $kernels @emu/emu_cublaslt @emu/emu_numbers"
    if [ $all = no ]; then # the unit tests once: with sanitizers, but for those that take too long with them
        not_sanitized=$(sed -n 's/^NOT_SANITIZED = //p' dev/test/conftest.py | tr -d '(",)' | sed 's/test_/@&/g')
        add_build build "" "CC=$cc CXX=$cxx" "$emulated train_gpt2 tokenize test_gpt2 @test_comm $not_sanitized"
        add_build build/sanitize "" "$sanitize" "train_gpt2 @unit_tests $fuzzers"
        return
    fi
    add_build build "" "CC=$cc CXX=$cxx" "$emulated $UNITS @test_comm"
    add_build build/sanitize "" "$sanitize" "$UNITS @test_comm $fuzzers"
    add_build build/emu_fp32 build "PRECISION=FP32 CC=$cc ${clang:-CXX=$cxx}" "train_gpt2emu test_gpt2emu $kernels"
    add_build build/emu_sanitize_BF16 build "$sanitize PRECISION=BF16 CFLAGS='-O0 -g1'" "$kernels"
    add_build build/emu_sanitize_FP32 build/emu_sanitize_BF16 "$sanitize PRECISION=FP32 CFLAGS='-O0 -g1'" "$kernels"
    ! have clang || add_build build/clang "" "CC=clang" "$UNITS"
    add_build build/serial "" "CC=$cc OPENMP=0 CFLAGS=-Og ARCH=" "$UNITS"
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
choose_builds
rm -rf "$LOGS"
mkdir -p "$LOGS"
printf '.PHONY: all %s\n%s' "${builds//,/ }" "$rules" | make -k -j"$((cores < 2 ? 2 : cores))" -f - all ||
    grep -hE '^make.*Error|error:|warning:' "$LOGS"/*.log | head -n 20
echo "== built after $SECONDS s"

quick=--quick
[ $all = no ] || quick=""
# Two processes more than cores, because many tests mostly wait: for a time limit, or for programs that start.
case ${1:--} in -*) set -- dev/test "$@" ;; esac
# shellcheck disable=SC2086 # an empty word is none
TEST_TARGETS="$targets" "$python" -m pytest --builds="$builds" $quick -n $((cores + 2)) -q "$@"
