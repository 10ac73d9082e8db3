#!/usr/bin/env bash
# Runs every test there is. The last line is `N passed, N failed, N skipped`: the sum of the lines above it that end so.
# Exit status 0 only if nothing failed. Logs lie in build/logs/.
#
#   scripts/test.sh                     everything
#   scripts/test.sh test_gemm ...       these only (with every compiler; the names: scripts/test.sh --list)
#
# Tests are found by their names: dev/test/*/test_*.c, fuzz_*.c, test_*.py, test_*.sh, and test_gpt2.c. Each C program
# is built and run with gcc, with clang, for any processor of this kind without OpenMP, and with AddressSanitizer and
# UndefinedBehaviorSanitizer. The CUDA programs (dev/test/*/*.cu, test_gpt2.cu, and the trainer that test_gpu_*.py run)
# are built for the emulator of dev/emu, in both precisions and with the sanitizers too, and for real where nvcc is.
# A program that crashes, hangs or ends without its closing line counts as one failure, and so does one that does not
# build.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh

readonly TIME_LIMIT=900 # seconds for one test program: the longest takes 110 of processor time, beside builds
readonly FUZZ_RUNS=2000
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
readonly WORKERS=$((cores < 8 ? cores : 8)) # tests at a time, beside a build
readonly LOGS=build/logs
# The long ones go before others, so that none is left over at the end, alone with all the cores.
readonly LONG_TESTS="test_nvcc test_gpu_ranks test_emu test_gpt2emu test_gpu_trainer test_headers
    test_data test_reproduce test_kernels test_tokenize test_faults test_options test_resume"
# These wait for processes and clocks most of their time: they have a worker of their own.
readonly WAITING_TESTS="test_comm test_kill test_multi_node test_gpu_check test_gpu_restart"

# Programs run side by side: their threads must sleep, not spin, while they wait for each other.
export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

# --- what there is -------------------------------------------------------------------------------------------------
names_of() { # glob pattern -> names without folder and suffix
    local file
    for file in $1; do
        [ -e "$file" ] || continue
        file=${file##*/}
        echo "${file%.*}"
    done
}

UNIT_TESTS=$(names_of 'dev/test/*/test_*.c')
# Those of several processes wait most of the time, and nothing in them depends on the compiler or on OpenMP: one
# compiler and the sanitizers run them.
PROCESS_TESTS=$(names_of "$(grep -lE '#include "(processes|checkpoint_group)\.h"|fork\(' dev/test/*/test_*.c)")
FUZZERS=$(names_of 'dev/test/*/fuzz_*.c')
EMULATOR_TESTS=$(for name in $(names_of 'dev/test/*/emu_*.cu'); do # test_emu.sh builds the others itself
    grep -q "$name\.cu" dev/test/emu/test_emu.sh || echo "$name"
done)
KERNEL_TESTS=$(names_of 'dev/test/*/test_*.cu')
PYTHON_TESTS=$(names_of 'dev/test/*/test_*.py')
GPU_PYTHON_TESTS=$(names_of 'dev/test/*/test_gpu_*.py')
# Those that run the program that TRAIN_GPT2 or TOKENIZE names, so that it can be a sanitized one.
PROGRAM_TESTS=$(names_of "$(grep -lE '"(TRAIN_GPT2|TOKENIZE)"|(from|import) cli' dev/test/*/test_*.py)" |
    grep -vxF "$GPU_PYTHON_TESTS")
# Those that run the emulated trainer or need another emulated program, whatever their names are.
EMULATED_PYTHON_TESTS=$(names_of "$(grep -lE 'TRAIN_GPT2CU|train_gpt2emu|import ranks|from ranks' \
    dev/test/*/test_*.py)")
SHELL_TESTS=$(names_of 'dev/test/*/test_*.sh' | grep -vx test_nvcc)
ALL_TESTS=$(printf '%s\n' test_gpt2 "$UNIT_TESTS" "$FUZZERS" "$PYTHON_TESTS" "$SHELL_TESTS" "$EMULATOR_TESTS" \
    "$KERNEL_TESTS" test_gpt2emu test_nvcc | grep .)

usage() {
    sed -n '2,/^set -u/ s/^# \{0,1\}//p' scripts/test.sh
}

wanted="" # names from the command line, or everything
for argument in "$@"; do
    case $argument in
        -h | --help) usage; exit 0 ;;
        -l | --list) echo "$ALL_TESTS"; exit 0 ;;
    esac
    name=${argument##*/}
    name=${name%.*}
    if ! grep -qx -- "$name" <<<"$ALL_TESTS"; then
        printf "scripts/test.sh: there is no test '%s'; there are:\n%s\n" "$argument" "$ALL_TESTS" >&2
        exit 1
    fi
    wanted="$wanted $name"
done

pick() { # those names of the given lists that are wanted
    local name
    # shellcheck disable=SC2048,SC2086 # lists of names: splitting is meant
    for name in $*; do
        case "$wanted " in " " | *" $name "*) echo "$name" ;; esac
    done
}

# --- jobs: a label and a command each --------------------------------------------------------------------------------
# Workers run them while this shell builds what the next ones need, so that no build waits for the last test of the one
# before. A job is a file in the folder of its lane, and its name says when it is its turn.
worker_pids=() build_pid="" install_pid=""
results=$LOGS/results # one line per finished job: passed failed skipped label
queue=$LOGS/queue.$$ jobs=0

add_job() { # label, command line
    local name=$1 lane=busy turn=10 long
    if [[ $1 =~ (test|fuzz|emu)_[a-z0-9_]+ ]]; then name=${BASH_REMATCH[0]}; fi
    case " $WAITING_TESTS " in *" $name "*) lane=waiting ;; esac
    for long in $LONG_TESTS; do
        [ "$long" != "$name" ] || break
        turn=$((turn + 1))
    done
    jobs=$((jobs + 1))
    printf '%s\n%s\n' "$1" "$2" >"$queue/new"
    mv "$queue/new" "$queue/$lane/$turn$(printf %04d $jobs)"
}

log_of() { echo "$LOGS/$(echo "$1" | tr ' /' '__').log"; }

# with_limit COMMAND: runs it in the background of the worker, so that a signal can end it. Sets status.
with_limit() {
    local limit=()
    if have timeout; then limit=(timeout -k 10 "$TIME_LIMIT"); fi
    "${limit[@]+"${limit[@]}"}" bash -c "$1" &
    job_pid=$!
    status=0
    wait "$job_pid" || status=$?
    job_pid=""
}

elapsed_since() { awk -v a="$1" -v b="${EPOCHREALTIME:-$SECONDS}" 'BEGIN { printf "%.1f", b - a }'; }

report() { # label, passed, failed, skipped, seconds, remark
    local remark=${6:+"            $6"$'\n'}
    printf '%6s s  %s: %d passed, %d failed, %d skipped\n%s' "$5" "$1" "$2" "$3" "$4" "$remark"
    echo "$2 $3 $4 $1" >>"$results"
}

run_job() { # label, command line
    local log start line numbers remark="" passed=0 failed=0 skipped=0
    log=$(log_of "$1")
    start=${EPOCHREALTIME:-$SECONDS}
    with_limit "$2" >"$log" 2>&1
    line=$(grep -E '^[^ ]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if [ -n "$line" ]; then
        numbers=${line##*: }
        passed=${numbers%% passed*}
        failed=${numbers#*passed, } failed=${failed%% failed*}
        skipped=${numbers#*failed, } skipped=${skipped%% skipped*}
    fi
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        remark="no end after $TIME_LIMIT s: $log" failed=$((failed + 1))
    elif [ -z "$line" ]; then
        remark="ended without its closing line, status $status: $log" failed=$((failed + 1))
    elif [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        remark="ended with status $status: $log" failed=1
    elif [ "$failed" -gt 0 ]; then
        remark=$log
    fi
    report "$1" "$passed" "$failed" "$skipped" "$(elapsed_since "$start")" "$remark"
}

# take_job WORKER LANE...: sets label and command. Of several workers that move a file, one succeeds.
take_job() {
    local mine=$queue/taken_$1 lane file
    shift
    for lane; do
        for file in "$queue/$lane"/*; do
            mv "$file" "$mine" 2>/dev/null || continue
            { read -r label && read -r command; } <"$mine"
            return 0
        done
    done
    return 1
}

# work WORKER LANE...: until the queue is empty and nothing more comes.
work() {
    local label command last job_pid="" status
    trap '[ -z "$job_pid" ] || kill "$job_pid" 2>/dev/null; exit 130' TERM
    while [ -d "$queue" ]; do # another run in this folder removes it
        last=no
        [ ! -e "$queue/complete" ] || last=yes
        if take_job "$@"; then
            run_job "$label" "$command"
        elif [ $last = yes ]; then
            return
        else
            sleep 0.2
        fi
    done
}

start_workers() {
    local i
    mkdir -p "$queue/busy" "$queue/waiting"
    for ((i = 0; i < WORKERS; i++)); do work $i busy waiting & worker_pids[i]=$!; done
    work $WORKERS waiting & worker_pids[WORKERS]=$!
}

# Without builds there is room for one more, as some tests wait now and then.
finish_jobs() {
    touch "$queue/complete"
    work $((WORKERS + 1)) busy waiting & worker_pids[WORKERS + 1]=$!
    wait
    worker_pids=()
    rm -rf "$queue"
}

interrupted() {
    trap - INT TERM
    for pid in $build_pid "${worker_pids[@]+"${worker_pids[@]}"}"; do kill "$pid" 2>/dev/null; done
    wait
    echo "scripts/test.sh: interrupted"
    exit 130
}
trap interrupted INT TERM

# --- what this machine lacks ---------------------------------------------------------------------------------------
install_missing() {
    local packages=()
    if ! have gcc || ! links gcc; then packages+=(gcc libc6-dev); fi
    if ! have g++ || ! links g++; then packages+=(g++); fi
    if ! have make; then packages+=(make); fi
    if ! have python3; then packages+=(python3); fi
    if ! have clang; then packages+=(clang); fi
    if have clang && links clang && ! links clang -fopenmp; then packages+=(libomp-dev); fi
    have clang || packages+=(libomp-dev)
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages "to build and test with gcc and clang" "${packages[@]}" || echo "Going on with what there is."
    fi
    if ! have mpicc mpirun; then
        install_packages "to start processes with mpirun" openmpi-bin libopenmpi-dev || echo "Going on without MPI."
    fi
    # On newer systems clang's sanitizers are a package of their own, named after the version.
    if have clang && links clang && ! links clang -fsanitize=address; then
        packages=("libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev")
        if apt-cache show "${packages[0]}" >/dev/null 2>&1; then
            install_packages "to test with clang's sanitizers" "${packages[@]}" || echo "Going on without them."
        fi
    fi
    # Debian's package is for Debian's Python, which test_plot.py finds beside another one. It is large: meanwhile, the
    # first programs are built, unless somebody may have to type a password.
    if [ -n "$(pick test_plot)" ] && ! draws python3 && ! draws /usr/bin/python3; then
        install_drawing & install_pid=$!
        [ "$(id -u)" -eq 0 ] || wait_for_install
    fi
}

install_drawing() {
    install_packages "to draw pictures of runs" python3-matplotlib || echo "Going on without pictures."
}

# Before the first Python test: what is installed may bring another Python, too.
wait_for_install() {
    [ -z "$install_pid" ] || wait "$install_pid"
    install_pid=""
}

draws() { "$1" -c 'import matplotlib' >/dev/null 2>&1; } # a Python that has what dev/plot.py needs

# --- building: every program counts as one test --------------------------------------------------------------------
# build LABEL FOLDER MAKE-ARGUMENTS...: all programs and tests (and fuzzers with sanitizers) into FOLDER, warnings being
# errors. An empty FOLDER: the programs into the root, the tests into build/.
build() {
    local folder=$2 targets=() name
    if [ -n "$(pick test_gpt2 "$PYTHON_TESTS")" ]; then
        for name in train_gpt2 test_gpt2 tokenize; do targets+=("${folder:+$folder/}$name"); done
    fi
    for name in $(pick "$UNIT_TESTS"); do targets+=("${folder:-build}/$name"); done
    case " $* " in *" SANITIZE=1 "*) for name in $(pick "$FUZZERS"); do targets+=("$folder/$name"); done ;; esac
    build_targets "$@"
}

# The same for CUDA programs, with the emulator. NAMES: a list of tests, and train_gpt2emu for the tests that run it.
build_emulated() { # label, folder, names, make arguments
    local folder=$2 targets=() name
    for name in $3; do
        case $name in
            *emu) targets+=("${folder:+$folder/}$name") ;;
            *) targets+=("${folder:-build}/emu/$name") ;;
        esac
    done
    build_targets "$1" "$2" "${@:4}"
}

# Builds what the caller's `targets` names.
build_targets() { # label, folder, make arguments
    local label="$1 build" folder=$2 target log passed=0 failed=0 remark=""
    shift 2
    local arguments=(WERROR=1 "$@")
    [ ${#targets[@]} -gt 0 ] || return 0
    if [ -n "$folder" ]; then arguments+=("BUILD=$folder" "BIN=$folder"); fi
    log=$(log_of "$label")
    local start=${EPOCHREALTIME:-$SECONDS}
    mkdir -p "${folder:-build}"
    # The Makefile removes a program before it builds it, so that one that does not build is not there.
    local status=0
    make -k -j"$((WORKERS < 2 ? 2 : WORKERS))" "${arguments[@]}" "${targets[@]}" >"$log" 2>&1 & build_pid=$!
    wait $build_pid || status=$?
    build_pid=""
    for target in "${targets[@]}"; do
        if [ -x "$target" ] && ! grep -q "needed by .$target'" "$log"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1)) remark="$remark $target"
        fi
    done
    if [ $status -ne 0 ] && [ $failed -eq 0 ]; then failed=1 remark=" something; make ended with status $status"; fi
    remark=${remark:+"does not build:$remark; $log"}
    report "$label" "$passed" "$failed" 0 "$(elapsed_since "$start")" "$remark"
}

# A program that did not build has been counted; running an old one would only confuse.
add_programs() { # label, folder of the tests, folder of the programs
    local name
    for name in $(pick test_gpt2); do
        if [ -x "$3/$name" ]; then add_job "$1 $name" "$3/$name"; fi
    done
    for name in $(pick "$UNIT_TESTS"); do
        case $1 in clang | no-openmp) grep -qx "$name" <<<"$PROCESS_TESTS" && continue ;; esac
        if [ -x "$2/$name" ]; then add_job "$1 $name" "$2/$name"; fi
    done
}

add_emulated() { # label, folder, names
    local name program
    for name in $3; do
        case $name in
            train_gpt2emu) continue ;;
            *emu) program=${2:-.}/$name ;;
            *) program=${2:-build}/emu/$name ;;
        esac
        if [ -x "$program" ]; then add_job "$1 $name" "$program"; fi
    done
}

# --- what is built, and the jobs that each build makes possible -------------------------------------------------------
add_early_tests() { # need no build
    local name precision
    for name in $(pick test_nvcc); do
        for precision in BF16 FP32; do add_job "$name $precision" "dev/test/*/$name.sh $precision"; done
    done
    for name in $(pick "$SHELL_TESTS"); do
        # They would build the emulator's own objects twice.
        if [ "$name" != test_emu ]; then add_job "$name" "dev/test/*/$name.sh"; fi
    done
}

add_python_tests() { # names
    local name
    # A thread each: the programs that they run stand beside others. The fp32 program may just be being built: what
    # compares with it comes after that.
    for name in $1; do
        if ! have python3; then
            report "$name" 0 0 1 0.0 "no python3"
        elif [ $emulator = no ] && grep -qx "$name" <<<"$GPU_PYTHON_TESTS"; then
            report "$name" 0 0 1 0.0 "no $cxx"
        else
            add_job "$name" "OMP_NUM_THREADS=1 TRAIN_GPT2CU_FP32=none python3 dev/test/programs/$name.py"
        fi
    done
}

test_first_compiler() {
    build "$first" "" CC=$first
    add_programs "$first" build .
    wait_for_install
    add_python_tests "$(pick "$(grep -vxF "$EMULATED_PYTHON_TESTS" <<<"$PYTHON_TESTS")")"
}

test_emulated() {
    local name emulated
    emulated=$(pick "$EMULATOR_TESTS" "$KERNEL_TESTS" test_gpt2emu)
    if [ -n "$(pick "$EMULATED_PYTHON_TESTS")" ]; then emulated="$emulated train_gpt2emu"; fi
    if [ $emulator = yes ]; then
        build_emulated "emulated bf16" "" "$emulated" CC=$first CXX="$cxx"
    elif [ -n "$emulated" ]; then
        report emulated 0 0 1 0.0 "no $cxx"
    fi
    add_python_tests "$(pick "$EMULATED_PYTHON_TESTS")"
    for name in $(pick test_emu); do add_job "$name" "dev/test/*/$name.sh"; done
    if [ $emulator = yes ]; then add_emulated "emulated bf16" "" "$emulated"; fi
}

# The other precision, with clang++ where it is.
test_emulated_fp32() {
    local emulated python name other=$cxx
    emulated=$(pick "$KERNEL_TESTS" test_gpt2emu)
    python=$(pick test_gpu_ranks test_gpu_fp8)
    if [ $emulator = no ] || [ -z "$emulated$python" ]; then return; fi
    if have clang++ && links clang++ -x c++; then other=clang++; fi
    build_emulated "emulated fp32" build/emu_fp32 "$emulated ${python:+train_gpt2emu}" PRECISION=FP32 CC=$first \
        CXX="$other"
    add_emulated "emulated fp32" build/emu_fp32 "$emulated"
    if ! have python3 || [ ! -x build/emu_fp32/train_gpt2emu ]; then return; fi
    for name in $python; do # those tests of it that are for the fp32 program
        add_job "emulated fp32 $name" "OMP_NUM_THREADS=1 python3 dev/test/programs/$name.py $(grep -o '\w*_in_fp32' \
            "dev/test/programs/$name.py" | head -n 1)"
    done
}

test_emulated_sanitizers() {
    local kernels precision
    kernels=$(pick "$KERNEL_TESTS")
    if [ $emulator = no ] || [ -z "$kernels" ]; then return; fi
    if ! links "$cxx" -x c++ -fsanitize=address,undefined; then
        report "emulated sanitizers" 0 0 1 0.0 "$cxx has no AddressSanitizer here"
        return
    fi
    for precision in BF16 FP32; do # optimising would take longer than it saves
        build_emulated "emulated sanitizers $precision" build/emu_sanitize_$precision "$kernels" SANITIZE=1 \
            PRECISION=$precision CFLAGS="-O0 -g1" CC=$first CXX="$cxx"
        add_emulated "emulated sanitizers $precision" build/emu_sanitize_$precision "$kernels"
    done
}

test_sanitizers() {
    local name leaks
    if ! links $first -fsanitize=address,undefined; then
        report sanitizers 0 0 1 0.0 "$first has no AddressSanitizer here"
        return
    fi
    build sanitizers build/sanitize CC=$first SANITIZE=1
    if have python3 && [ -x build/sanitize/train_gpt2 ]; then
        for name in $(pick "$PROGRAM_TESTS"); do
            # Looking for leaks takes half the time of a short run: test_resume's runs are enough.
            leaks=0
            [ "$name" != test_resume ] || leaks=1
            add_job "sanitizers $name" "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=$leaks \
                TRAIN_GPT2=build/sanitize/train_gpt2 TOKENIZE=build/sanitize/tokenize \
                python3 dev/test/programs/$name.py"
        done
    fi
    add_programs sanitizers build/sanitize build/sanitize
    for name in $(pick "$FUZZERS"); do
        if [ -x "build/sanitize/$name" ]; then
            add_job "$name" "build/sanitize/$name $FUZZ_RUNS && echo '$name: 1 passed, 0 failed, 0 skipped'"
        fi
    done
}

test_clang() {
    [ $first != clang ] || return 0
    if ! have clang || ! links clang; then
        report clang 0 0 1 0.0 "no clang"
        return
    fi
    build clang build/clang CC=clang
    add_programs clang build/clang build/clang
}

test_no_openmp() {
    build no-openmp build/serial CC=$first OPENMP=0 CFLAGS=-Og ARCH=
    add_programs no-openmp build/serial build/serial
}

rm -rf "$LOGS"
mkdir -p "$LOGS"
: >"$results"
install_missing
if ! have make || { ! have gcc && ! have clang; }; then
    echo "scripts/test.sh: no make, or neither gcc nor clang: nothing can be built"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
first=gcc
have gcc || first=clang
cxx=${first/gcc/g++} cxx=${cxx/clang/clang++}
emulator=no
if links "$cxx" -x c++; then emulator=yes; fi

# First what the longest tests need, last what has only short ones.
start_workers
add_early_tests
test_first_compiler
test_emulated
test_emulated_fp32
test_sanitizers
test_emulated_sanitizers
test_clang
test_no_openmp
finish_jobs
for name in $(pick test_nvcc); do dev/test/programs/test_nvcc.sh --table 2>/dev/null; done

# --- the sum -------------------------------------------------------------------------------------------------------
if grep -hs '^skip ' "$LOGS"/*.log >"$LOGS/skipped"; then
    echo "== skipped"
    sort -u "$LOGS/skipped" | sed 's/^skip /  /'
fi
if awk '$2 > 0 { found = 1 } END { exit !found }' "$results"; then
    echo "== failed"
    while read -r _ failed _ label; do
        [ "$failed" -gt 0 ] || continue
        echo "  $label ($(log_of "$label"))"
        grep -E -m 5 '^FAIL |^make.*Error|error:|ERROR: |runtime error' "$(log_of "$label")" | sed 's/^/      /'
    done <"$results"
fi
echo "== $SECONDS s"
awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' "$results"
