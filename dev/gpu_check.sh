#!/usr/bin/env bash
# The one command for a machine with a GPU: builds, tests and measures the GPU trainer, in under 9 minutes: GPT-2 124M
# and 1558M beside PyTorch and the targets, a step kernel by kernel, and what each option of the trainer is worth.
#
#   dev/gpu_check.sh OUTDIR [MAKE-ARGUMENT...]              e.g. GPU_ARCH=90
#   dev/gpu_check.sh OUTDIR --emulate [MAKE-ARGUMENT...]    the same steps with emulated programs and a tiny model, on
#                                                           any machine: a test of this script, its times mean nothing
#
# It needs make, gcc or clang, and nvcc; compute-sanitizer, CUPTI and a python3 with PyTorch are used when they are
# there. No network. Every part has a time limit; a part that fails does not stop the others, and what there is no time
# for is skipped, the least valuable first. At the end stand tables, and the status is 1 if anything failed (a missed
# target is no failure). OUTDIR gets summary.txt, results.csv (part, what, value, unit), kernels.csv (each kernel's time
# and floor), steps.csv (the kernels of whole steps) and the logs. CUDA_VISIBLE_DEVICES chooses GPUs: the first, and all
# of them where several train together. GPU_CHECK_SECONDS=900 grants more time; GPU_CHECK_MODELS=d12 measures one model.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

readonly TOTAL_SECONDS=${GPU_CHECK_SECONDS:-525} # parts that do not fit any more are skipped, and that is said
readonly RESERVED_SECONDS=50                    # for the sanitizers and the emulator, which come last
readonly TORCH_SECONDS=200                      # from the start: PyTorch must have compiled by then
readonly ASK_SECONDS=20                         # for a question to nvidia-smi, Python or the trainer's --plan
readonly GIB=1073741824

usage() { sed -n '2,/^set -u/ s/^# \{0,1\}//p' dev/gpu_check.sh; }
stop() {
    echo "dev/gpu_check.sh: $*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

out="" emulate=no make_arguments=()
for argument in "$@"; do
    case $argument in
        -h | --help) usage; exit 0 ;;
        --emulate | --dry-run) emulate=yes ;;
        -*) stop "no option '$argument'; see --help" ;;
        *=*) make_arguments+=("$argument") ;;
        *) [ -z "$out" ] || stop "two folders, '$out' and '$argument'; see --help"
           out=$argument ;;
    esac
done
[ -n "$out" ] || stop "the folder for the results is missing: dev/gpu_check.sh OUTDIR"
mkdir -p "$out" || stop "cannot make the folder $out"
out=$(cd "$out" && pwd)
rm -f "$out"/{summary.txt,results.csv,kernels.csv,steps.csv,build.log,tests.log,sanitizer.log,train.log}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX") || stop "cannot make a temporary folder"
children=() watchers=()
finish() {
    for pid in "${children[@]+"${children[@]}"}" "${watchers[@]+"${watchers[@]}"}"; do kill "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# --- what a part reports -------------------------------------------------------------------------------------------
echo "part,what,value,unit" >"$out/results.csv"
: >"$work/parts"
failures=0 part="" part_start=0

result() { # what, value, unit
    echo "$part,$1,$2,$3" >>"$out/results.csv"
}
begin() {
    part=$1 part_start=$SECONDS
    echo "== $part"
}
verdict() { # ok | FAIL | skip, remark
    local seconds=$((SECONDS - part_start))
    [ "$1" != FAIL ] || failures=$((failures + 1))
    printf '%-4s %-22s %4d s  %s\n' "$1" "$part" "$seconds" "$2" | tee -a "$work/parts"
    result verdict "$1" ""
    result time "$seconds" s
}
table_row() { printf '%-34s %6s %9s %10s %7s %20s\n' "$@" | tee -a "$work/table"; }

deadline=$TOTAL_SECONDS
remaining() { echo $((deadline - SECONDS)); }
# enough SECONDS: is there so much time, and what the last parts need?
enough() { [ "$(remaining)" -ge $(($1 + RESERVED_SECONDS)) ]; }

# limited SECONDS LOG COMMAND...: the command with what time is left, at most SECONDS; all it says goes to LOG.
limited() {
    local seconds=$1 log=$2 left
    shift 2
    left=$(remaining)
    [ "$seconds" -le "$left" ] || seconds=$left
    echo "\$ $*" >>"$log"
    if [ "$seconds" -lt 1 ]; then
        echo "no time left" >>"$log"
        return 124
    fi
    timeout -k 5 "$seconds" "$@" >>"$log" 2>&1
}
describe_status() { # status -> words
    case $1 in
        124 | 137) echo "no end within its time limit" ;;
        *) echo "status $1" ;;
    esac
}

# --- the machine ---------------------------------------------------------------------------------------------------
gpu_query() {
    timeout "$ASK_SECONDS" nvidia-smi --id="$gpu" --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1
}

# The version of a PyTorch that sees the GPU, in torch; else the reason in no_torch. The import may hang for minutes.
find_torch() {
    local status=0 limit=$((TOTAL_SECONDS / 10))
    local version='import torch; print(torch.__version__ if torch.cuda.is_available() else "")'
    torch="" no_torch="no python3 with a PyTorch that sees the GPU"
    have python3 || return 0
    torch=$(timeout -k 5 $limit python3 -c "$version" 2>/dev/null) || status=$?
    [ $status -ne 124 ] && [ $status -ne 137 ] || no_torch="importing PyTorch takes longer than $limit s"
}

check_machine() {
    begin machine
    gpu=${CUDA_VISIBLE_DEVICES:-0}
    gpu=${gpu%%,*}
    torch=""
    if [ $emulate = yes ]; then
        free_bytes=$((4 * GIB)) gpu_name="emulated GPU" compute_capability=9.0
        no_torch="not with emulated programs"
        verdict ok "emulated: a test of this script, not of a GPU"
        return
    fi
    have nvidia-smi || stop "no nvidia-smi: there is no NVIDIA driver here (--emulate tries this script without one)"
    gpu_name=$(gpu_query name)
    [ -n "$gpu_name" ] || stop "nvidia-smi shows no GPU $gpu; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    free_bytes=$(($(gpu_query memory.free) * 1048576))
    have nvcc || PATH=$PATH:${CUDA_HOME:+$CUDA_HOME/bin:}/usr/local/cuda/bin:/opt/cuda/bin
    have nvcc || stop "no nvcc in PATH or /usr/local/cuda/bin: install the CUDA toolkit, 12 or later"
    find_torch
    nvcc_release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    result gpu "$gpu_name" ""
    compute_capability=$(gpu_query compute_cap)
    result compute_capability "$compute_capability" ""
    result driver "$(gpu_query driver_version)" ""
    result cuda "$nvcc_release" ""
    result torch "${torch:-none}" ""
    result free_memory "$free_bytes" bytes
    verdict ok "$gpu_name, $((free_bytes / 1048576)) MiB free, driver $(gpu_query driver_version), CUDA \
$nvcc_release, PyTorch ${torch:-none}, $(date -u +%Y-%m-%d)"
}

# --- building ------------------------------------------------------------------------------------------------------
# Where the programs of a precision lie. With --emulate they are those of the usual build, which need not be made again.
folder_of() { if [ $emulate = yes ]; then echo build; else echo "build/gpu_check_$1"; fi; }
program() { # precision, name
    local folder
    folder=$(folder_of "$1")
    if [ $emulate = yes ]; then
        case $2 in
            test_kernels | emulated_test_kernels) echo "$folder/emu/test_kernels" ;;
            bench_gpu) echo "$folder/emu/$2" ;;
            *) echo "./$2emu" ;;
        esac
    else
        case $2 in
            test_kernels | bench_gpu) echo "$folder/cuda/$2" ;;
            emulated_test_kernels) echo "$folder/emu/test_kernels" ;;
            *) echo "$folder/$2cu" ;;
        esac
    fi
}

make_programs() { # precision, program's name...
    local precision=$1 name targets=() folder make_line
    shift
    folder=$(folder_of "$precision")
    for name in "$@"; do targets+=("$(program "$precision" "$name" | sed 's|^\./||')"); done
    make_line=(make -k "-j$cores" "PRECISION=$precision" "${make_arguments[@]+"${make_arguments[@]}"}")
    [ $emulate = yes ] || make_line+=("BUILD=$folder" "BIN=$folder")
    limited 240 "$work/build_$precision" "${make_line[@]}" "${targets[@]}"
}

# The trainer first and alone, which is what a user waits for.
check_build_trainer() {
    local status=0 start
    begin "build trainer"
    cores=$(nproc 2>/dev/null || echo 2)
    start=$(date +%s%N)
    make_programs BF16 train_gpt2 || status=$?
    build_seconds=$(calculate %.1f "($(date +%s%N) - $start) / 1e9")
    if [ $status -ne 0 ]; then
        build_seconds=""
        verdict FAIL "make: BF16 ($(describe_status $status)), see build.log"
        grep -E -m 5 'error|Error' "$work/build_BF16" | sed 's/^/     /'
    else
        result "one program" "$build_seconds" s
        verdict ok "$build_seconds s"
    fi
}

check_build() {
    local precision status pids=() bad="" names
    begin build
    for precision in $precisions; do
        names="test_kernels $whole_model_test"
        [ $emulate = yes ] || names="$names emulated_test_kernels"
        [ "$precision" != BF16 ] || names="$names bench_gpu"
        # shellcheck disable=SC2086 # a list of names
        make_programs "$precision" $names &
        pids+=($!)
    done
    for precision in $precisions; do
        status=0
        wait "${pids[0]}" || status=$?
        pids=("${pids[@]:1}")
        cat "$work/build_$precision" >>"$out/build.log"
        [ $status -eq 0 ] || bad="$bad $precision ($(describe_status $status))"
    done
    if [ -n "$bad" ]; then
        verdict FAIL "make:$bad, see build.log"
        grep -E -m 5 'error|Error' "$out/build.log" | sed 's/^/     /'
    else
        verdict ok "$precisions, $(grep -c 'warning' "$out/build.log") warnings"
    fi
}

# --- tests ---------------------------------------------------------------------------------------------------------
# run_test PROGRAM LOG ARGUMENTS...: a verdict from its status and its closing line.
run_test() {
    local program=$1 log=$2 status=0 line
    shift 2
    if ! [ -x "$program" ]; then
        verdict FAIL "$program was not built"
        return
    fi
    limited 90 "$log" "$program" "$@" || status=$?
    line=$(grep -E '^[^ ]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if [ $status -ne 0 ]; then
        verdict FAIL "$(describe_status $status); ${line:-no closing line}; see tests.log"
        grep -E -m 5 '^FAIL |failed:|^emu:' "$log" | sed 's/^/     /'
    elif [ -z "$line" ]; then
        verdict FAIL "it ended without its closing line; see tests.log"
    else
        verdict ok "$line"
    fi
    cat "$log" >>"$out/tests.log"
}

check_tests() {
    local precision
    for precision in $precisions; do
        begin "kernels $precision"
        # shellcheck disable=SC2086 # a list of names
        run_test "$(program "$precision" test_kernels)" "$work/kernels_$precision" --hashes $groups
        [ -n "$whole_model_test" ] || continue
        begin "test_gpt2 $precision"
        run_test "$(program "$precision" test_gpt2)" "$work/test_gpt2_$precision"
    done
}

# --- emulator against hardware -------------------------------------------------------------------------------------
# Started early, on the CPU, beside parts that measure nothing.
start_emulator() {
    local precision
    for precision in $precisions; do
        [ -x "$(program "$precision" emulated_test_kernels)" ] || continue
        # shellcheck disable=SC2086 # a list of names
        limited 200 "$work/emulated_$precision" "$(program "$precision" emulated_test_kernels)" --hashes $groups &
        children+=($!)
    done
}

# Hashes of results, in pairs: equal or not. Only sums and roundings can be equal: exp, tanh and square roots of GPU
# and CPU differ in their last bits, and a tensor core's order of summation is its own. Those agree within the tests'
# tolerances, since both programs pass them.
compare_hashes() { # hardware's log, emulator's log -> lines "same|other|alone name"
    awk '$1 == "hash" {
        hex = $NF; name = $2
        for (i = 3; i < NF; i++) { name = name " " $i }
        key = name "#" ++count[FILENAME, name]
        if (FILENAME == ARGV[1]) { first[key] = hex; next }
        verdict = "alone"
        if (key in first) { verdict = first[key] == hex ? "same" : "other" }
        print verdict, name
    }' "$1" "$2"
}
readonly EXACT='checksum|embedding|sum_losses|global norm|residual_forward|params_from_master|backward_bias|fp8_quantize'

check_emulator() {
    local precision same other wrong
    for precision in $precisions; do
        begin "emulator $precision"
        if ! grep -q '^hash ' "$work/emulated_$precision" 2>/dev/null; then
            verdict FAIL "the emulated test_kernels printed no hash"
            tail -n 3 "$work/emulated_$precision" 2>/dev/null | sed 's/^/     /'
            continue
        fi
        compare_hashes "$work/kernels_$precision" "$work/emulated_$precision" >"$work/hashes"
        same=$(grep -c '^same' "$work/hashes")
        other=$(grep '^other' "$work/hashes" | cut -d' ' -f2- | sort -u | tr '\n' ',' | sed 's/,$//; s/,/, /g')
        wrong=$(grep '^other' "$work/hashes" | grep -E "$EXACT" | cut -d' ' -f2- | sort -u | tr '\n' ',')
        result equal_hashes "$same" ""
        result other_hashes "$(grep -c '^other' "$work/hashes")" ""
        if [ -n "$wrong" ]; then
            verdict FAIL "other bits where they must be equal: ${wrong%,}"
        elif [ "$same" -eq 0 ]; then
            verdict FAIL "no hash is equal; other bits: ${other:-none to compare}"
        else
            verdict ok "$same hashes equal; within tolerance but with other bits: ${other:-none}"
        fi
        sed "s/^/emulator $precision: /" "$work/hashes" >>"$out/tests.log"
    done
}

# --- compute-sanitizer ---------------------------------------------------------------------------------------------
readonly SANITIZERS="memcheck racecheck initcheck synccheck"
# The tools report errors in kernels of NVIDIA's libraries that are none. They judge ours only: library kernels are
# left out by parts of their names, which no kernel of ours has. initcheck does not see what a left out kernel writes
# either, so it does not run the groups of test_kernels that call a library.
readonly LIBRARY_KERNELS="cublas cutlass xmma nvjet gemm gemv splitK cudnn fmha"
readonly LIBRARY_GROUPS="matmul tune fp8 cudnn graph"

# sanitize TOOL SECONDS: test_kernels under a tool.
sanitize() {
    local option=--kernel-name-exclude tests groups=() group part filter=""
    compute-sanitizer --help 2>&1 | grep -q -e "$option" || option=--kernel-regex-exclude # its name before 2023
    for part in $LIBRARY_KERNELS; do filter=$filter${filter:+,}kns=$part; done
    tests=$(program BF16 test_kernels)
    if [ "$1" = initcheck ]; then
        for group in $("$tests" --list); do
            case " $LIBRARY_GROUPS " in *" $group "*) ;; *) groups+=("$group") ;; esac
        done
    fi
    limited "$2" "$work/$1" compute-sanitizer --tool "$1" --error-exitcode 97 "$option" "$filter" "$tests" \
        "${groups[@]+"${groups[@]}"}"
}

check_sanitizers() {
    local tool pids=() limit
    [ $emulate = no ] || { begin sanitizer; verdict skip "the emulator's own checks are on in every part"; return; }
    if ! have compute-sanitizer; then
        begin sanitizer
        verdict skip "no compute-sanitizer here; it comes with the CUDA toolkit"
        return
    fi
    begin sanitizer
    limit=$(($(remaining) - 15))
    [ $limit -le 110 ] || limit=110
    # Side by side: they test, they do not measure.
    for tool in $SANITIZERS; do
        sanitize "$tool" "$limit" &
        pids+=($!)
    done
    for tool in $SANITIZERS; do
        local status=0
        wait "${pids[0]}" || status=$?
        pids=("${pids[@]:1}")
        part=$tool
        sanitizer_verdict "$tool" $status
        cat "$work/$tool" >>"$out/sanitizer.log"
    done
}

sanitizer_verdict() { # tool, status
    local log=$work/$1 errors refusal
    errors=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')
    refusal=$(grep -i -E -m 1 'not supported|unable to|LibraryNotLoaded|internal sanitizer error|cannot find' "$log")
    if [ "$2" -eq 0 ]; then
        verdict ok "${errors:-no errors}"
    elif [ "$2" -ne 97 ] && [ -n "$refusal" ] && ! grep -q '^ok  ' "$log"; then
        verdict skip "it refuses: ${refusal#========= }"
    elif [ "$2" -eq 124 ] || [ "$2" -eq 137 ]; then
        if grep -q -E '^========= (Invalid|Uninit|Error|Warning|Barrier|Race)' "$log"; then
            verdict FAIL "errors, and no end within its time limit; see sanitizer.log"
        else
            verdict skip "no error in $(grep -c '^ok  ' "$log") tests, then its time was up"
        fi
    else
        verdict FAIL "$(describe_status "$2"); ${errors:-no summary}; see sanitizer.log"
        grep -E -m 3 '^========= (Invalid|Uninit|Error|Warning|Barrier|Race)|^FAIL ' "$log" | sed 's/^/     /'
    fi
}

# --- models and what is known of them ------------------------------------------------------------------------------
calculate() { awk "BEGIN { printf(\"$1\", $2) }"; } # format, expressions
is_true() { [ "$(calculate %d "$1")" = 1 ]; }        # an expression

# Random tokens: what a step takes does not depend on the text. The same ones each time.
make_tokens() {
    cat >"$work/tokens.c" <<'C'
#include "llmc/base/rand.h"
#include <stdio.h>
int main(void) {
    int header[256] = {20240520, 1, 8 << 20};
    fwrite(header, 4, 256, stdout);
    for (int i = 0; i < header[2]; i++) {
        unsigned short token = (unsigned short)(rand_u64(1, 1, (uint64_t)i) % 50257);
        fwrite(&token, 2, 1, stdout);
    }
    return ferror(stdout) || fflush(stdout);
}
C
    local compiler
    for compiler in gcc clang cc; do
        if have $compiler; then break; fi
    done
    $compiler -O2 -I. -o "$work/tokens" "$work/tokens.c" -lm && "$work/tokens" >"$work/tokens.bin"
}

# All runs of a model have the same batch: at most `cap` sequences, for which PyTorch has room on a GPU of 141 GB.
# torch_gib: what PyTorch takes, about: for the model, and for each sequence.
set_model() { # name
    model=$1
    seq_len=1024 vocab=50257 data=$work/tokens.bin left_out=5
    case $model in
        tiny) layers=2 channels=64 vocab=257 seq_len=32 steps=3 few_steps=3 cap=2 left_out=1 data=LICENSE ;;
        d12) layers=12 channels=768 steps=30 few_steps=20 cap=64 torch_gib="2 + 1.5" ;;
        d48) layers=48 channels=1600 steps=15 few_steps=12 cap=16 torch_gib="30 + 4.2" left_out=4 ;;
        *) stop "GPU_CHECK_MODELS: no model '$model', there are d12 and d48" ;;
    esac
    shape=(--init "$model" --seq-len "$seq_len")
    [ "$model" != tiny ] || shape=(--layers 2 --heads 1 --channels 64 --context 32 --seq-len 32)
    shape+=(--train-data "$data" --val-every 0 --sample-every 0 --seed 1)
}

# 6 operations for each weight of a multiply and token, and 6 L C T for causal attention.
flops_per_token() {
    echo $((6 * (12 * layers * channels * channels + vocab * channels) + 6 * layers * channels * seq_len))
}

prepare_training() {
    trainer=$(program BF16 train_gpt2)
    export XDG_CACHE_HOME=$work/cache # what the trainer keeps from run to run
    mkdir "$work/cache"
    timeout "$ASK_SECONDS" "$trainer" --help >"$work/help" 2>&1
    [ $emulate = yes ] || make_tokens
}

knows() { grep -q -E -e "(^|[ ,])$1( |\$)" "$work/help"; } # --option: does the trainer have it?
usable() { # --option: and can this GPU do it?
    knows "$1" && { [ "$1" != --fp8 ] || is_true "${compute_capability:-0} >= 8.9"; }
}

# planned_bytes BATCH OPTION...: what the plan says that takes on the GPU: its first total. Nothing if it says none.
planned_bytes() {
    local size=$1
    shift
    timeout "$ASK_SECONDS" "$trainer" "${shape[@]}" --batch-size "$size" "$@" --plan >"$work/plan" 2>&1
    sed -n 's/^total \([0-9]*\) bytes.*/\1/p' "$work/plan" | head -n 1
}

# Does what is planned, and a gibibyte for CUDA itself, fit what is free?
fits() { # BATCH OPTION...
    local bytes
    bytes=$(planned_bytes "$@")
    [ -n "$bytes" ] && [ $((bytes + GIB)) -le "$free_bytes" ]
}

# --- the kernels' times --------------------------------------------------------------------------------------------
check_kernel_times() { # model
    local status=0 line csv=$work/kernels_$1.csv
    set_model "$1"
    begin "kernel times $1"
    if ! enough 25; then
        verdict skip "no time left"
        return
    fi
    : >"$work/bench"
    limited 60 "$work/bench" "$(program BF16 bench_gpu)" --csv "$csv" --model "$1" --batch-size "$cap" || status=$?
    cat "$work/bench" >>"$out/tests.log"
    peak_teraflops=$(sed -n 's/^datasheet: \([0-9.]*\) .*/\1/p' "$work/bench" | head -n 1)
    if [ $status -ne 0 ]; then
        verdict FAIL "$(describe_status $status): $(tail -n 1 "$work/bench")"
        return
    fi
    sed -n '/^kernel /,$p' "$work/bench"
    sed -n '/^device:/p; /^shapes:/p; /^kernel /,$p' "$work/bench" >>"$work/kernel_table"
    sed "${header_is_there:+1d}" "$csv" >>"$out/kernels.csv"
    header_is_there=yes
    awk -F, 'NR > 1 { print $1 "," $6 "," $12 }' "$csv" | while IFS=, read -r name us percent; do
        result "$name" "$us" us
        result "$name of floor" "$percent" percent
    done
    line=$(awk -F, 'NR > 3 { print $12 "," $1 " " $12 "%" }' "$csv" | sort -n | head -n 3 |
        cut -d, -f2 | tr '\n' ',' | sed 's/,$//; s/,/, /g')
    verdict ok "farthest from their floors: $line"
}

# --- a training run ------------------------------------------------------------------------------------------------
watch_memory() { # file: MiB in use, several times a second
    if [ $emulate = yes ]; then return; fi
    while gpu_query memory.used >>"$1"; do sleep 0.1; done &
    watchers+=($!)
}

watch_first_step() { # ns since the epoch of the start: seconds until the first step's line go to $work/first
    while ! grep -q '^step ' "$work/run"; do sleep 0.02; done 2>/dev/null &&
        calculate %.2f "($(date +%s%N) - $1) / 1e9" >"$work/first" &
    first_watcher=$!
    children+=($!)
}

# The median of the milliseconds in a run's step lines, the first steps left out; nothing if there are none.
median_ms() {
    sed -n 's/^step .*| \([0-9.]*\) ms |.*/\1/p' "$1" | tail -n "+$((left_out + 1))" | sort -n |
        awk '{ ms[NR] = $1 } END { if (NR > 0) { print (ms[int((NR + 1) / 2)] + ms[int(NR / 2) + 1]) / 2 } }'
}

# train BATCH OPTION...: a run of ours of the model that is set. Sets ms; 1 if it fails, with the reason in why.
train() {
    local size=$1 status=0 log=$work/run
    shift
    : >"$log"
    ms="" why=""
    limited 90 "$log" "${traced[@]+"${traced[@]}"}" "$trainer" "${shape[@]}" --batch-size "$size" --steps "$steps" \
        "$@" || status=$?
    cat "$log" >>"$out/train.log"
    if [ $status -ne 0 ]; then
        why="batch $size${*:+ $*}: $(describe_status $status): $(tail -n 1 "$log")"
        return 1
    fi
    ms=$(median_ms "$log")
    if [ -z "$ms" ] || grep -q -E '^step.*\| *(-[0-9.]+|0\.00) ms' "$log"; then
        why="batch $size${*:+ $*}: not every step took a positive time, see train.log"
        return 1
    fi
    if ! grep -q "^step *$steps/$steps " "$log" || grep -q -i -E '^step.*loss -?(nan|inf)' "$log"; then
        why="batch $size${*:+ $*}: not every step has a finite loss, see train.log"
        return 1
    fi
}

# watched_train BATCH OPTION...: the same, not to be timed: looking takes time. Sets first_seconds, and used_mib: the
# memory at its peak, as nvidia-smi shows it.
watched_train() {
    local before peak pid status=0
    : >"$work/memory" && : >"$work/run" && : >"$work/first"
    first_seconds="" used_mib=""
    before=$(gpu_query memory.used)
    watch_memory "$work/memory"
    watch_first_step "$(date +%s%N)"
    train "$@" || status=$?
    [ -z "$ms" ] || wait "$first_watcher" # it need only look once more
    for pid in "${watchers[@]+"${watchers[@]}"}" "$first_watcher"; do kill "$pid" && wait "$pid"; done 2>/dev/null
    watchers=()
    first_seconds=$(cat "$work/first")
    peak=$(sort -n "$work/memory" | tail -n 1)
    [ -z "$before" ] || [ -z "$peak" ] || used_mib=$((peak - before))
    return $status
}

# What CUDA itself takes of the GPU beside a plan, in MiB: what a tiny model's run shows.
measure_context() {
    local bytes kept=("${shape[@]}") kept_steps=$steps
    context_mib=""
    [ $emulate = no ] || return 0
    shape=(--layers 1 --heads 1 --channels 64 --context 64 --seq-len 64 --train-data "$data" --val-every 0)
    shape+=(--sample-every 0)
    steps=1000
    watched_train 1 || echo "the context could not be measured: $why" >>"$out/train.log"
    bytes=$(planned_bytes 1)
    [ -z "$used_mib" ] || [ -z "$bytes" ] || context_mib=$((used_mib - bytes / 1048576))
    shape=("${kept[@]}") steps=$kept_steps
}

# speed_row NAME BATCH MS MEMORY: prints and records what a run reached.
speed_row() {
    local tokens mfu="-"
    tokens=$(calculate %.0f "1000 * $2 * $seq_len / $3")
    if is_true "${peak_teraflops:-0} > 0"; then
        mfu=$(calculate %.1f "$tokens * $(flops_per_token) / ${peak_teraflops} / 1e10")%
        result "$1 mfu" "${mfu%\%}" percent
    fi
    table_row "$1" "$2" "$(calculate %.2f "$3")" "$tokens" "$mfu" "$4"
    result "$1 batch" "$2" sequences
    result "$1 step" "$3" ms
    result "$1 speed" "$tokens" tokens/s
}

tokens_per_second() { calculate %.0f "1000 * $batch * $seq_len / $1"; } # ms of a step
mean() { awk '{ for (i = 1; i <= NF; i++) { sum += $i } if (NF > 0) { print sum / NF } }' <<<"$*"; }

# --- the targets' runs: ours and PyTorch's by turns ----------------------------------------------------------------
# The largest batch that both have room for. PyTorch's was found while it compiled, see warm_torch.
choose_batch() {
    batch=$(cat "$work/torch_batch_$model" 2>/dev/null)
    batch=${batch:-$cap}
    while [ "$batch" -gt 0 ] && ! fits "$batch"; do batch=$((batch / 2)); done
}

run_torch() { # batch, steps, log. Sets torch_ms, torch_bytes.
    local status=0
    : >"$3"
    limited 130 "$3" python3 -u dev/bench/bench_torch.py --train-data "$data" --init "$model" --seq-len "$seq_len" \
        --batch-size "$1" --steps "$2" --attention flash || status=$?
    cat "$3" >>"$out/train.log"
    torch_ms=$(median_ms "$3")
    torch_bytes=$(sed -n 's/^peak memory: \([0-9]*\) bytes allocated.*/\1/p' "$3")
    [ $status -eq 0 ] && [ -n "$torch_ms" ]
}

# Compiles the model for PyTorch while our programs are built, and finds the batch that it has room for. What it leaves
# in its cache serves the runs that count.
warm_torch() { # model
    local size
    set_model "$1"
    size=$cap
    while [ $size -gt 1 ] && is_true "($torch_gib * $size) * $GIB > $free_bytes"; do size=$((size / 2)); done
    left_out=0
    while ! run_torch "$size" 2 "$work/warm_$1"; do
        if [ "$size" -eq 1 ] || ! grep -q -i 'out of.* memory' "$work/warm_$1"; then return; fi
        size=$((size / 2))
    done
    echo "$size" >"$work/torch_batch_$1"
}

# In the background. What PyTorch has not compiled by its deadline is measured without it.
warm_torch_models() {
    [ "$TORCH_SECONDS" -gt "$deadline" ] || deadline=$TORCH_SECONDS
    for name in $models; do warm_torch "$name"; done
}

start_torch() {
    [ -n "$torch" ] || return 0
    export TORCHINDUCTOR_CACHE_DIR=$work/inductor TORCHINDUCTOR_FX_GRAPH_CACHE=1 TORCHINDUCTOR_AUTOGRAD_CACHE=1
    warm_torch_models &
    torch_pid=$!
    children+=("$torch_pid")
}

# A turn of ours. 1 if it fails.
our_turn() { # number
    train "$batch" || return 1
    speed_row "gpt2.c $model turn $1" "$batch" "$ms" "-"
    ours="$ours $ms"
}

# Memory and the seconds to the first step, in a short run of their own, once the multiplies have been timed.
measure_memory() {
    local plan kept_steps=$steps
    if ! enough 20; then
        echo "     memory: no time left"
        return
    fi
    steps=$((left_out + 3))
    watched_train "$batch" || memory_why="; the run for its memory: $why"
    steps=$kept_steps
    plan=$(planned_bytes "$batch")
    measured[$model first]=$first_seconds
    result "gpt2.c first step" "${first_seconds:-0}" s
    [ -n "$used_mib" ] && [ -n "$plan" ] && [ -n "$context_mib" ] || return
    measured[$model memory]=$(((used_mib - context_mib) * 1048576))
    measured[$model plan]=$plan
    table_row "gpt2.c $model memory" "$batch" - - - \
        "$(calculate "%.2f, %.2f GiB" "${measured[$model memory]} / $GIB, $plan / $GIB")"
    result "gpt2.c peak memory" "${measured[$model memory]}" bytes
    result "gpt2.c planned memory" "$plan" bytes
}

torch_turn() { # number
    if ! [ -s "$work/torch_batch_$model" ] || ! run_torch "$batch" "$steps" "$work/torch"; then return; fi
    speed_row "PyTorch $model turn $1" "$batch" "$torch_ms" "$(calculate "%.2f GiB" "${torch_bytes:-0} / $GIB")"
    result "PyTorch turn $1 peak memory" "${torch_bytes:-0}" bytes
    measured[$model torch_memory]=$torch_bytes
    theirs="$theirs $torch_ms"
}

fp8_turn() {
    if ! usable --fp8; then return; fi
    if ! enough 20; then
        echo "     --fp8: no time left"
    elif train "$batch" --fp8; then
        speed_row "gpt2.c $model fp8" "$batch" "$ms" "-"
        measured[$model fp8]=$(tokens_per_second "$ms")
    else
        fp8_why="; --fp8: $why"
    fi
}

check_training() { # model
    local turn start ours="" theirs="" fp8_why="" memory_why=""
    set_model "$1"
    begin "training $1"
    if ! [ -x "$trainer" ]; then
        verdict FAIL "$trainer was not built"
        return
    fi
    choose_batch
    if [ "$batch" -eq 0 ]; then
        verdict FAIL "no batch fits, or --plan says nothing: $(tail -n 1 "$work/plan")"
        return
    fi
    [ -n "${context_mib+set}" ] || measure_context
    [ -s "$work/table" ] || table_row run batch "step ms" tokens/s MFU "memory used, planned"
    for turn in 1 2; do
        start=$SECONDS
        our_turn $turn || { verdict FAIL "$why"; return; }
        torch_turn $turn
        [ $turn -gt 1 ] || measure_memory
        if [ -z "$theirs" ] || ! enough $((SECONDS - start)); then break; fi
    done
    fp8_turn
    training_verdict
}

training_verdict() {
    local tokens ratio="" mean_ours mean_theirs
    mean_ours=$(mean "$ours") mean_theirs=$(mean "$theirs")
    tokens=$(tokens_per_second "$mean_ours")
    measured[$model bf16]=$tokens
    echo "$batch" >"$work/batch_$model"
    if [ -n "$mean_theirs" ]; then
        ratio=$(calculate %.3f "$mean_theirs / $mean_ours")
        measured[$model ratio]=$ratio
        result ratio_to_torch "$ratio" ""
    elif [ -n "$torch" ]; then
        ratio="none: $(tail -n 1 "$work/warm_$model")"
    fi
    if [ -n "$fp8_why$memory_why" ]; then
        local reasons=$fp8_why$memory_why
        verdict FAIL "${reasons#; }"
    else
        verdict ok "batch $batch, $tokens tokens/s, ratio to PyTorch ${ratio:-not measured: $no_torch}"
    fi
}

# --- one step, kernel by kernel ------------------------------------------------------------------------------------
# first_of PATH...: the first that exists.
first_of() {
    local path
    for path in "$@"; do
        if [ -e "$path" ]; then echo "$path" && return; fi
    done
}

# Builds the library that the driver loads into the trainer. Sets trace_library, or no_trace: why there is none. CUPTI
# is looked for in the CUDA toolkit, then in the packages that come with PyTorch.
build_trace_library() {
    local cuda folder root headers=() libraries=() header library compiler=${CXX:-g++}
    trace_library="" no_trace="the emulator has no CUPTI"
    [ $emulate = no ] || return 0
    cuda=$(cd "$(dirname "$(readlink -f "$(command -v nvcc)")")/.." && pwd)
    root=$(timeout "$ASK_SECONDS" python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
    for folder in "$cuda/extras/CUPTI" "$cuda" ${root:+"$root"/cu1? "$root/cuda_cupti"}; do
        headers+=("$folder/include/cupti.h")
        libraries+=("$folder"/lib64/libcupti.so* "$folder"/lib/libcupti.so*)
    done
    header=$(first_of "${headers[@]}") library=$(first_of "${libraries[@]}")
    no_trace="no cupti.h and libcupti.so in $cuda or $cuda/extras/CUPTI; they come with the CUDA toolkit"
    [ -n "$header" ] && [ -n "$library" ] || return 0
    no_trace="the library does not build, see build.log"
    have "$compiler" || compiler=clang++
    limited 60 "$out/build.log" "$compiler" -std=c++17 -O1 -shared -fPIC -I. -isystem "$(dirname "$header")" \
        -isystem "$cuda/include" -o "$work/libtrace.so" dev/bench/trace_kernels.cpp "$library" \
        "-Wl,-rpath,$(dirname "$library")" && trace_library=$work/libtrace.so
}

# trace NAME OPTION...: a run whose steps are written down in $work/step_NAME.csv; how: in what precision, with which
# attention. 1 if it fails, with the reason in why.
trace() {
    local csv=$work/step_$1.csv status=0
    shift
    traced=(env "CUDA_INJECTION64_PATH=$trace_library" "TRACE_KERNELS=$csv" "TRACE_KERNELS_SKIP=$left_out")
    train "$batch" "$@" || status=$?
    traced=()
    [ $status -eq 0 ] || return 1
    if ! [ -s "$csv" ]; then
        why=$(grep '^trace_kernels: ' "$work/run" | tail -n 1)
        why=${why:-the library wrote nothing}
        return 1
    fi
    how=$(sed -n 's/^precision *//p' "$work/run" | head -n 1)
}

add_steps() { # name, csv: to steps.csv
    [ -s "$out/steps.csv" ] || echo "step,$(head -n 1 "$2")" >"$out/steps.csv"
    sed "1d; s/^/$1,/" "$2" >>"$out/steps.csv"
}

# predict OPTION...: what such a step is predicted to take of this GPU, kernel by kernel, to $work/predicted.
predict() {
    timeout "$ASK_SECONDS" "$trainer" "${shape[@]}" --batch-size "$batch" "$@" --plan --gpu "$gpu_name" \
        >"$work/predicted" 2>&1 || echo "     no prediction: $(tail -n 1 "$work/predicted")"
}

# record_predictions PREFIX CSV: each kernel's time in a step and the predicted one, to results.csv.
record_predictions() {
    local kernel ms predicted ratio
    [ -s "$2" ] || return 0
    while IFS=, read -r kernel ms predicted ratio; do
        result "$1$kernel" "$ms" ms
        result "$1$kernel predicted" "$predicted" ms
        result "$1$kernel of its prediction" "$ratio" ""
    done < <(sed 1d "$2")
}

show_step() { # title, csv, prefix in results.csv, option...
    local joined=$2.joined csv=$2 prefix=$3 title=$1
    shift 3
    {
        echo
        echo "A step of $title, batch $batch:"
        predict "$@"
        dev/bench/step_table.sh "$csv" "$work/predicted" "$work/kernels_$model.csv" "$joined"
    } | tee -a "$work/steps"
    record_predictions "$prefix" "$joined"
}

# Milliseconds of a step that attention takes; with a second argument: only by these kernels.
attention_ms() { # csv
    awk -F, -v which="${2:-attention|fmha|flash|cudnn}" '$1 ~ which { ms += $4 }
        END { if (ms > 0) { print ms } }' "$1"
}

check_step() { # model
    local how="" csv=$work/step_$1.csv
    set_model "$1"
    begin "step $1"
    batch=$(cat "$work/batch_$1" 2>/dev/null)
    if [ -z "$trace_library" ]; then
        verdict skip "$no_trace"
        return
    elif [ -z "$batch" ]; then
        verdict skip "our training did not run"
        return
    elif ! enough 25; then
        verdict skip "no time left"
        return
    fi
    steps=$few_steps
    if ! trace "$1"; then
        case $why in
            *"nothing is traced") verdict skip "$why" ;;
            *) verdict FAIL "$why" ;;
        esac
        return
    fi
    show_step "$1 ($how)" "$csv" ""
    add_steps "$1" "$csv"
    compare_attention "$1" "$csv"
    trace_fp8 "$1"
    verdict ok "$(awk -F, '/^\(step/ { ms = $4 } /^\(gap/ { printf "%.2f ms, %.1f%% of it idle", ms, $5 }' "$csv")"
}

# Ours beside cuDNN's, where the step above used that.
compare_attention() { # model, csv
    local cudnn own
    cudnn=$(attention_ms "$2" 'fmha|flash|cudnn')
    if [ -z "$cudnn" ] || ! knows --attention || ! enough 15; then return; fi
    cudnn=$(attention_ms "$2")
    trace "$1_own" --attention own || { echo "     --attention own: $why"; return; }
    show_step "$1, --attention own ($how)" "$work/step_$1_own.csv" "own attention: " --attention own
    add_steps "$1 own attention" "$work/step_$1_own.csv"
    own=$(attention_ms "$work/step_$1_own.csv")
    measured[$1 attention]=$(calculate %.1f "100 * $cudnn / $own")
    result "attention by cuDNN" "$cudnn" ms
    result "attention of our own" "$own" ms
    echo "attention: cuDNN $cudnn ms, our own $own ms a step: ${measured[$1 attention]}% of cuDNN's speed" |
        tee -a "$work/steps"
}

trace_fp8() { # model
    if ! usable --fp8 || ! enough 15; then return; fi
    trace "$1_fp8" --fp8 || { echo "     --fp8: $why"; return; }
    show_step "$1, --fp8 ($how)" "$work/step_$1_fp8.csv" "fp8: " --fp8
    add_steps "$1 fp8" "$work/step_$1_fp8.csv"
}

# --- what each option is worth -------------------------------------------------------------------------------------
readonly EMULATED_VARIANTS="--gelu-fusion 1
--recompute 3"
readonly VARIANTS="--cuda-graph 0
--attention own
--deterministic 0
--matmul-tune 0
--matmul-tune 2
--gelu-fusion 0
--gelu-fusion 2
--fp8 1
--head-overlap 1
--head-rows 8192
--recompute 1
--recompute 2
--recompute 3"
readonly VARIANTS_A_DEFAULT=3 # between two runs with the defaults, which show how the machine drifts

# option_run OPTION...: appends "options|ms" to $work/options, or says why not. 1: no time left.
option_run() {
    if ! enough $((option_seconds + 3)); then
        echo "     ${*:-defaults}: no time left"
        return 1
    fi
    local start=$SECONDS
    if [ $# -gt 0 ] && ! fits "$batch" "$@"; then
        echo "     $*: $(grep -m 1 '^train_gpt2' "$work/plan" || echo "does not fit the memory")"
        return 0
    fi
    if train "$batch" "$@"; then
        echo "${*:-defaults}|$ms" >>"$work/options"
        printf '     %-20s %9.2f ms\n' "${*:-defaults}" "$ms"
    else
        echo "     $why"
        option_failures="$option_failures${option_failures:+; }$why"
    fi
    option_seconds=$((SECONDS - start))
}

# The runs with one option changed, in between runs with the defaults; each ratio is to the mean of the ones around it.
option_ratios() {
    awk -F '|' '
        $1 == "defaults" { defaults[++n] = $2; next }
        { name[++m] = $1; ms[m] = $2; after[m] = n }
        END {
            for (i = 1; i <= m; i++) {
                b = defaults[after[i]]; a = after[i] < n ? defaults[after[i] + 1] : b
                printf "%s|%s|%.3f|%.3f\n", name[i], ms[i], (a + b) / 2, 2 * ms[i] / (a + b)
            }
        }' "$work/options"
}

option_loop() {
    local variant count=0 variants=$VARIANTS
    [ $emulate = no ] || variants=$EMULATED_VARIANTS
    option_run || return 1
    while IFS= read -r variant; do
        if ! usable "${variant%% *}"; then
            echo "     $variant: this trainer, or this GPU, has no such option"
            continue
        fi
        # shellcheck disable=SC2086 # an option and its value
        option_run $variant </dev/null || return 1
        count=$((count + 1))
        [ $((count % VARIANTS_A_DEFAULT)) -ne 0 ] || option_run </dev/null || return 1
    done <<<"$variants"
    [ $((count % VARIANTS_A_DEFAULT)) -eq 0 ] || option_run
}

check_options() { # model
    local option_failures="" option_seconds=5 time_is_up="" name ms_of default times spread
    set_model "$1"
    begin "options $1"
    batch=$(cat "$work/batch_$1" 2>/dev/null)
    if [ -z "$batch" ]; then
        verdict skip "our training did not run"
        return
    fi
    : >"$work/options"
    steps=$few_steps
    option_loop || time_is_up=", then the time was up"
    if ! [ -s "$work/options" ]; then
        verdict "$([ -n "$option_failures" ] && echo FAIL || echo skip)" "${option_failures:-no time left}"
        return
    fi
    spread=$(awk -F '|' '$1 == "defaults" { if (!n++ || $2 < least) { least = $2 } if ($2 > most) { most = $2 } }
        END { printf "%.1f", 100 * (most / least - 1) }' "$work/options")
    {
        echo
        echo "$1, batch $batch: one option changed, beside the defaults before and after (which differ by $spread%)"
        printf '%-20s %10s %10s %8s\n' option "ms a step" defaults "time x"
        option_ratios | while IFS='|' read -r name ms_of default times; do
            printf '%-20s %10.2f %10.2f %8.3f\n' "$name" "$ms_of" "$default" "$times"
            result "$name" "$times" "of the defaults' time"
        done
    } | tee -a "$work/option_table"
    result "defaults differ by" "$spread" percent
    if [ -n "$option_failures" ]; then
        verdict FAIL "$option_failures"
    else
        verdict ok "$(option_ratios | wc -l | tr -d ' ') options$time_is_up; the defaults differ by $spread%"
    fi
}

# --- several GPUs --------------------------------------------------------------------------------------------------
count_gpus() {
    if [ $emulate = yes ]; then
        echo 2
    elif [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
    else
        timeout "$ASK_SECONDS" nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c .
    fi
}

# train_ranks STAGE: a process for each GPU, which find each other by a folder. Their words go to $work/rank_<number>;
# returns the status of one that failed.
train_ranks() {
    local rank pid pids=() status=0 folder=$work/stage_$1
    mkdir "$folder"
    for ((rank = 0; rank < ranks; rank++)); do
        : >"$work/rank_$rank"
        limited 60 "$work/rank_$rank" "$trainer" "${shape[@]}" --steps "$steps" "${ranks_batch[@]}" \
            --zero-stage "$1" --nccl-init fs --nccl-fs-path "$folder" --num-processes "$ranks" \
            --process-rank "$rank" --start-timeout 30 &
        pids+=($!)
        children+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    for ((rank = 0; rank < ranks; rank++)); do cat "$work/rank_$rank" >>"$out/train.log"; done
    return "$status"
}

weights_hash() { sed -n 's/^weights hash //p' "$1"; }
last_loss() { sed -n 's/^step .*| loss \([0-9.]*\) .*/\1/p' "$1" | tail -n 1; }

# same_losses: is the last loss of all GPUs within a hundredth of that of one? Their sums are made in another order.
same_losses() {
    awk -v a="$(last_loss "$work/rank_0")" -v b="$(last_loss "$work/alone")" \
        'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 <= (b / 100) ^ 2) }'
}

# check_stage STAGE: its run, whose weights must be those of stage 0. 1 if it fails, with the reason in why.
check_stage() {
    local status=0 hash
    train_ranks "$1" || status=$?
    hash=$(weights_hash "$work/rank_0") ms=$(median_ms "$work/rank_0")
    if [ $status -ne 0 ]; then
        why=$(grep -h '^train_gpt2cu: ' "$work"/rank_* | head -n 1)
        why="stage $1: $(describe_status $status): ${why:-see train.log}"
        return 1
    fi
    [ "$1" -gt 0 ] || ranks_hash=$hash
    if [ -z "$hash" ] || [ "$hash" != "$ranks_hash" ]; then
        why="stage $1: weights hash '$hash', '$ranks_hash' in stage 0"
        return 1
    fi
    result "stage $1 step" "$ms" ms
    ranks_ms="$ranks_ms $ms"
}

check_stages() {
    local stage
    for stage in 0 1 2 3; do
        if ! check_stage $stage; then
            case $why in
                *"built without NCCL"*) verdict skip "$ranks GPUs, but built without NCCL" ;;
                *) verdict FAIL "$why" ;;
            esac
            return
        fi
    done
    if same_losses; then
        verdict ok "$ranks GPUs, the same weights in stages 0 to 3; ms a step:$ranks_ms"
    else
        verdict FAIL "last loss $(last_loss "$work/rank_0") on $ranks GPUs, $(last_loss "$work/alone") on one"
    fi
}

# Every stage of sharding makes the same weights, to the bit, since each rank has one micro-batch in a step; and one GPU
# alone, which takes the same batch in parts, nearly the same losses.
check_ranks() {
    begin "several GPUs"
    ranks=$(count_gpus)
    [ "$ranks" -le 8 ] || ranks=8
    if [ "$ranks" -lt 2 ]; then
        verdict skip "one GPU here"
        return
    fi
    set_model "${models%% *}"
    local share=$((cap < 4 ? cap : 4))
    ranks_batch=(--batch-size "$share" --total-batch "$((share * seq_len * ranks))")
    : >"$work/alone"
    if ! limited 60 "$work/alone" "$trainer" "${shape[@]}" --steps "$steps" "${ranks_batch[@]}"; then
        verdict FAIL "one GPU alone: $(tail -n 1 "$work/alone")"
        return
    fi
    result ranks "$ranks" GPUs
    result "alone step" "$(median_ms "$work/alone")" ms
    check_stages
}

# --- the targets ---------------------------------------------------------------------------------------------------
# target NAME RELATION WANTED MEASURED UNIT: a row, met or missed. RELATION: at least or at most.
target() {
    local word="not measured" sign='>='
    [ "$2" = "at least" ] || sign='<='
    if [ -n "$4" ]; then
        word=missed
        if is_true "$4 $sign $3"; then word=met; fi
        result "$1" "$4" "$5"
    fi
    result "$1 target" "$word" ""
    printf '%-44s %8s %7s %-9s %10s  %s\n' "$1" "$2" "$3" "$5" "${4:--}" "$word"
}

# percent_of A B: A in percent of B, nothing where one of them was not measured.
percent_of() { [ -z "$1" ] || [ -z "$2" ] || calculate %.1f "100 * $1 / $2"; }

model_targets() { # model, its name, tokens/s, fp8 tokens/s, ratio to PyTorch
    local memory=${measured[$1 memory]-} plan=${measured[$1 plan]-} off=""
    target "$2 bf16" "at least" "$3" "${measured[$1 bf16]-}" tokens/s
    target "$2 bf16 as a multiple of PyTorch" "at least" "$5" "${measured[$1 ratio]-}" ""
    target "$2 fp8" "at least" "$4" "${measured[$1 fp8]-}" tokens/s
    target "$2 peak memory of PyTorch's" "at most" 70 "$(percent_of "$memory" "${measured[$1 torch_memory]-}")" %
    [ -z "$memory" ] || off=$(calculate %.2f "100 * ($memory > $plan ? $memory - $plan : $plan - $memory) / $plan")
    target "$2 peak memory off its plan" "at most" 2 "$off" %
    target "$2 first step after the start" "at most" 3 "${measured[$1 first]-}" s
    target "$2 own attention of cuDNN's speed" "at least" 70 "${measured[$1 attention]-}" %
}

check_targets() {
    part=targets
    case $gpu_name in
        *H100* | *H200*) echo "Targets, $gpu_name:" ;;
        *) echo "Targets, which are for one H100 or H200; this is $gpu_name:" ;;
    esac
    model_targets d12 "GPT-2 124M" 600000 660000 1.25
    model_targets d48 "GPT-2 1558M" 62000 80000 1.2
    target "building the trainer" "at most" 20 "$([ $emulate = yes ] || echo "$build_seconds")" s
}

# --- all of it -----------------------------------------------------------------------------------------------------
precisions="BF16 FP32" groups="" whole_model_test=test_gpt2 # no groups of test_kernels: all
models=${GPU_CHECK_MODELS:-d12 d48}
[ $emulate = no ] || precisions=BF16 groups="embedding gelu" whole_model_test="" models=tiny
for log in build tests sanitizer train; do : >"$out/$log.log"; done
for table in table plan steps option_table kernel_table; do : >"$work/$table"; done
gpu="" gpu_name="" torch="" no_torch="" free_bytes=0 batch=0 peak_teraflops="" compute_capability="" build_seconds=""
traced=() header_is_there=""
ranks=0 ranks_batch=() ranks_hash="" ranks_ms="" torch_pid="" trace_library="" no_trace="" trainer=""
unset context_mib
declare -A measured=()

for model in $models; do set_model "$model"; done
check_machine
check_build_trainer
if ! prepare_training; then
    begin tokens
    verdict FAIL "the tokens for training could not be made with gcc, clang or cc"
fi
start_torch
check_build
build_trace_library
check_tests
# What follows is measured: PyTorch must have compiled by now.
[ -z "$torch_pid" ] || wait "$torch_pid"
check_kernel_times "${models%% *}"
for model in $models; do check_training "$model"; done
check_step "${models%% *}"
check_options "${models%% *}"
for model in ${models#"${models%% *}"}; do
    check_kernel_times "$model"
    check_step "$model"
    check_options "$model"
done
check_ranks
start_emulator
check_sanitizers
wait_for_emulator() { for pid in "${children[@]+"${children[@]}"}"; do wait "$pid" 2>/dev/null; done; }
wait_for_emulator
check_emulator
check_targets >"$work/targets"

part=all
result time "$SECONDS" s
result failures "$failures" ""
{
    echo "gpt2.c $(git rev-parse --short HEAD 2>/dev/null) on $gpu_name, $(date -u '+%Y-%m-%d %H:%M') UTC"
    echo
    if [ -s "$work/kernel_table" ]; then cat "$work/kernel_table" && echo; fi
    cat "$work/steps" "$work/option_table"
    echo
    cat "$work/parts"
    echo
    cat "$work/table"
    echo
    cat "$work/targets"
    echo
    echo "$SECONDS s, $failures failed"
} >"$out/summary.txt"
echo
cat "$out/summary.txt"
[ "$failures" -eq 0 ]
