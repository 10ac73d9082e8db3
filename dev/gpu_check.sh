#!/usr/bin/env bash
# The one command for a machine with a GPU: builds, tests and measures the GPU trainer, in under 8 minutes.
#
#   dev/gpu_check.sh OUTDIR [MAKE-ARGUMENT...]              e.g. GPU_ARCH=90
#   dev/gpu_check.sh OUTDIR --emulate [MAKE-ARGUMENT...]    the same steps with emulated programs and a tiny model, on
#                                                           any machine: a test of this script, its times mean nothing
#
# It needs make, gcc or clang, and nvcc; compute-sanitizer and a python3 with PyTorch are used when they are there. No
# network. Every part has a time limit; a part that fails does not stop the others. At the end stands a table, and the
# status is 1 if anything failed. OUTDIR gets summary.txt, results.csv (part, what, value, unit), kernels.csv (each
# kernel's time and floor) and the logs. CUDA_VISIBLE_DEVICES chooses GPUs: the first, and all of them where several
# train together. GPU_CHECK_SECONDS=900 grants more time.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

readonly TOTAL_SECONDS=${GPU_CHECK_SECONDS:-465} # parts that do not fit any more are skipped, and that is said
readonly STEPS_LEFT_OUT=5                       # at the start of a run, from its median: clocks and caches warm up
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
rm -f "$out"/{summary.txt,results.csv,kernels.csv,build.log,tests.log,sanitizer.log,train.log,torch.log}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX") || stop "cannot make a temporary folder"
children=()
finish() {
    for pid in "${children[@]+"${children[@]}"}"; do kill "$pid" 2>/dev/null; done
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

remaining() { echo $((TOTAL_SECONDS - SECONDS)); }

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
gpu_query() { nvidia-smi --id="$gpu" --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1; }

check_machine() {
    begin machine
    gpu=${CUDA_VISIBLE_DEVICES:-0}
    gpu=${gpu%%,*}
    torch=""
    if [ $emulate = yes ]; then
        free_bytes=$((4 * GIB)) gpu_name="emulated GPU"
        verdict ok "emulated: a test of this script, not of a GPU"
        return
    fi
    have nvidia-smi || stop "no nvidia-smi: there is no NVIDIA driver here (--emulate tries this script without one)"
    gpu_name=$(gpu_query name)
    [ -n "$gpu_name" ] || stop "nvidia-smi shows no GPU $gpu; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    free_bytes=$(($(gpu_query memory.free) * 1048576))
    have nvcc || PATH=$PATH:${CUDA_HOME:+$CUDA_HOME/bin:}/usr/local/cuda/bin:/opt/cuda/bin
    have nvcc || stop "no nvcc in PATH or /usr/local/cuda/bin: install the CUDA toolkit, 12 or later"
    if have python3; then
        torch=$(python3 -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "")' 2>/dev/null)
    fi
    nvcc_release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    result gpu "$gpu_name" ""
    result compute_capability "$(gpu_query compute_cap)" ""
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

build_precision() { # precision, log
    local folder targets=() name make_line
    folder=$(folder_of "$1")
    for name in test_kernels train_gpt2 bench_gpu $whole_model_test; do
        targets+=("$(program "$1" "$name" | sed 's|^\./||')")
    done
    make_line=(make -k "-j$cores" "PRECISION=$1" "${make_arguments[@]+"${make_arguments[@]}"}")
    if [ $emulate = no ]; then
        make_line+=("BUILD=$folder" "BIN=$folder")
        targets+=("$(program "$1" emulated_test_kernels)")
    fi
    limited 240 "$2" "${make_line[@]}" "${targets[@]}"
}

check_build() {
    local precision status pids=() bad=""
    begin build
    cores=$(nproc 2>/dev/null || echo 2)
    for precision in $precisions; do
        build_precision "$precision" "$work/build_$precision" &
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
readonly EXACT='checksum|encoder|sum_losses|global norm|residual_forward|params_from_master|backward_bias'

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
        limited "$limit" "$work/$tool" compute-sanitizer --tool "$tool" --error-exitcode 97 \
            "$(program BF16 test_kernels)" &
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

# --- the kernels' times --------------------------------------------------------------------------------------------
check_kernel_times() {
    local status=0 arguments=(--csv "$out/kernels.csv") line
    begin "kernel times"
    [ $emulate = no ] || arguments+=(--model tiny)
    limited 60 "$work/bench" "$(program BF16 bench_gpu)" "${arguments[@]}" || status=$?
    cat "$work/bench" >>"$out/tests.log"
    peak_teraflops=$(sed -n 's/^datasheet: \([0-9.]*\) .*/\1/p' "$work/bench" | head -n 1)
    if [ $status -ne 0 ]; then
        verdict FAIL "$(describe_status $status): $(tail -n 1 "$work/bench")"
        return
    fi
    sed -n '/^kernel /,$p' "$work/bench"
    awk -F, 'NR > 1 { print $1 "," $6 "," $12 }' "$out/kernels.csv" | while IFS=, read -r name us percent; do
        result "$name" "$us" us
        result "$name of floor" "$percent" percent
    done
    line=$(awk -F, 'NR > 3 { print $12 "," $1 " " $12 "%" }' "$out/kernels.csv" | sort -n | head -n 3 |
        cut -d, -f2 | tr '\n' ',' | sed 's/,$//; s/,/, /g')
    verdict ok "farthest from their floors: $line"
}

# --- training ------------------------------------------------------------------------------------------------------
# Random tokens: what a step takes does not depend on the text. The same ones each time.
make_tokens() {
    cat >"$work/tokens.c" <<'C'
#include "llmc/rand.h"
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

prepare_training() {
    trainer=$(program BF16 train_gpt2)
    if [ $emulate = yes ]; then
        layers=2 channels=64 vocab=257 seq_len=32 steps=7 largest=2 data=LICENSE
        shape=(--layers 2 --heads 1 --channels 64 --context 32 --seq-len 32)
    else
        layers=12 channels=768 vocab=50257 seq_len=1024 steps=30 largest=1024 data=$work/tokens.bin
        shape=(--init d12 --seq-len 1024)
        make_tokens || return 1
    fi
    shape+=(--train-data "$data" --val-every 0 --sample-every 0 --seed 1)
}

# What the plan says a batch takes on the GPU: its first total is the GPU's. Nothing if the program fails.
planned_bytes() {
    timeout 20 "$trainer" "${shape[@]}" --batch-size "$1" --plan >"$work/plan" 2>&1
    sed -n 's/^total \([0-9]*\) bytes.*/\1/p' "$work/plan" | head -n 1
}

# The largest power of two whose plan, and a gibibyte for CUDA itself, fit what is free. 0: none, or no plan.
largest_batch() {
    local batch=1 best=0 bytes
    while [ $batch -le $largest ]; do
        bytes=$(planned_bytes $batch)
        if [ -z "$bytes" ] || [ $((bytes + GIB)) -gt "$free_bytes" ]; then break; fi
        best=$batch batch=$((2 * batch))
    done
    echo $best
}

watch_memory() { # file: MiB in use, five times a second
    if [ $emulate = yes ]; then return; fi
    while gpu_query memory.used >>"$1"; do sleep 0.2; done &
    watcher=$!
    children+=("$watcher")
}

# The median of the milliseconds in a run's step lines, the first steps left out; nothing if there are none.
median_ms() {
    sed -n 's/^step .*| \([0-9.]*\) ms |.*/\1/p' "$1" | tail -n "+$((STEPS_LEFT_OUT + 1))" | sort -n |
        awk '{ ms[NR] = $1 } END { if (NR > 0) { print (ms[int((NR + 1) / 2)] + ms[int(NR / 2) + 1]) / 2 } }'
}

# 6 operations for each weight of a multiply and token, and attention's 12 L C T/2.
flops_per_token() {
    echo $((6 * (12 * layers * channels * channels + vocab * channels) + 6 * layers * channels * seq_len))
}

calculate() { awk "BEGIN { printf(\"$1\", $2) }"; } # format, expressions

# speed_row NAME BATCH MS MEMORY: prints and records what a run reached.
speed_row() {
    local tokens mfu="-"
    tokens=$(calculate %.0f "1000 * $2 * $seq_len / $3")
    if [ "$(calculate %d "${peak_teraflops:-0} > 0")" = 1 ]; then
        mfu=$(calculate %.1f "$tokens * $(flops_per_token) / ${peak_teraflops} / 1e10")%
        result "$1 mfu" "${mfu%\%}" percent
    fi
    table_row "$1" "$2" "$(calculate %.2f "$3")" "$tokens" "$mfu" "$4"
    result "$1 batch" "$2" sequences
    result "$1 step" "$3" ms
    result "$1 speed" "$tokens" tokens/s
}

# train NAME BATCH: a run of ours. Sets ms; 1 if it fails, with the reason in why.
train() {
    local status=0 before peak plan memory="-" log=$work/run
    : >"$log"
    : >"$work/memory"
    ms="" why=""
    before=$(gpu_query memory.used 2>/dev/null)
    watch_memory "$work/memory"
    limited 90 "$log" "$trainer" "${shape[@]}" --batch-size "$2" --steps "$steps" || status=$?
    [ $emulate = yes ] || { kill "$watcher" && wait "$watcher"; } 2>/dev/null
    cat "$log" >>"$out/train.log"
    ms=$(median_ms "$log")
    if [ $status -ne 0 ]; then
        why="batch $2: $(describe_status $status): $(tail -n 1 "$log")"
        return 1
    fi
    if [ -z "$ms" ] || grep -q -E '^step.*\| *(-[0-9.]+|0\.00) ms' "$log"; then
        why="batch $2: not every step took a positive time, see train.log"
        return 1
    fi
    if ! grep -q "^step *$steps/$steps " "$log" || grep -q -i -E '^step.*loss -?(nan|inf)' "$log"; then
        why="batch $2: not every step has a finite loss, see train.log"
        return 1
    fi
    plan=$(planned_bytes "$2")
    result "$1 planned memory" "${plan:-0}" bytes
    if [ -n "$before" ] && [ -s "$work/memory" ] && [ -n "$plan" ]; then
        peak=$(sort -n "$work/memory" | tail -n 1)
        result "$1 peak memory" "$(((peak - before) * 1048576))" bytes
        memory=$(calculate "%.2f, %.2f GiB" "($peak - $before) / 1024, $plan / $GIB")
    fi
    speed_row "$1" "$2" "$ms" "$memory"
}

check_training() {
    if [ $emulate = yes ]; then begin "training tiny"; else begin "training d12"; fi
    batch=0
    if ! [ -x "$(program BF16 train_gpt2)" ]; then
        verdict FAIL "$(program BF16 train_gpt2) was not built"
        return
    fi
    prepare_training || { verdict FAIL "the tokens could not be made"; return; }
    batch=$(largest_batch)
    echo "largest batch by plan: $batch" >>"$out/train.log"
    if [ "$batch" -eq 0 ]; then
        verdict FAIL "no batch fits, or --plan says nothing: $(tail -n 1 "$work/plan")"
        return
    fi
    table_row run batch "step ms" tokens/s MFU "memory used, planned"
    if train "gpt2.c largest batch" "$batch"; then
        verdict ok "batch $batch, $steps steps, $ms ms each"
    else
        verdict FAIL "$why"
    fi
}

# --- several GPUs --------------------------------------------------------------------------------------------------
count_gpus() {
    if [ $emulate = yes ]; then
        echo 2
    elif [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
    else
        nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c .
    fi
}

# train_ranks STAGE: a process for each GPU, which find each other by a folder. Their words go to $work/rank_<number>;
# returns the status of one that failed.
train_ranks() {
    local rank pid pids=() status=0 folder=$work/stage_$1
    mkdir "$folder"
    for ((rank = 0; rank < ranks; rank++)); do
        : >"$work/rank_$rank"
        limited 60 "$work/rank_$rank" "$trainer" "${shape[@]}" "${ranks_batch[@]}" --zero-stage "$1" --nccl-init fs \
            --nccl-fs-path "$folder" --num-processes "$ranks" --process-rank "$rank" --start-timeout 30 &
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
    elif [ "${batch:-0}" -eq 0 ]; then
        verdict skip "nothing to compare: our training did not run"
        return
    fi
    local share=$((batch < 4 ? batch : 4))
    ranks_batch=(--batch-size "$share" --total-batch "$((share * seq_len * ranks))" --steps "$steps")
    : >"$work/alone"
    if ! limited 60 "$work/alone" "$trainer" "${shape[@]}" "${ranks_batch[@]}"; then
        verdict FAIL "one GPU alone: $(tail -n 1 "$work/alone")"
        return
    fi
    result ranks "$ranks" GPUs
    result "alone step" "$(median_ms "$work/alone")" ms
    check_stages
}

# --- PyTorch, by turns with ours -----------------------------------------------------------------------------------
# PyTorch holds a whole batch's logits, twice in fp32: about 1.2 GiB for a sequence of GPT-2 124M.
torch_batch() {
    local size=1
    while [ $((2 * size * GIB * 6 / 5)) -le "$free_bytes" ] && [ $((2 * size)) -le "$batch" ]; do
        size=$((2 * size))
    done
    echo $size
}

run_torch() { # batch, log. Sets torch_ms, torch_memory.
    local status=0
    : >"$2"
    limited 170 "$2" python3 -u dev/bench/bench_torch.py --train-data "$data" --init d12 --seq-len "$seq_len" \
        --batch-size "$1" --steps "$steps" || status=$?
    cat "$2" >>"$out/torch.log"
    torch_ms=$(median_ms "$2")
    torch_memory=$(sed -n 's/^peak memory: .* allocated, \([0-9]*\) bytes reserved.*/\1/p' "$2")
    [ $status -eq 0 ] && [ -n "$torch_ms" ]
}

check_torch() {
    local size ours=() theirs=() turn start
    begin PyTorch
    if [ -z "$torch" ]; then
        local reason="no python3 with a PyTorch that sees the GPU"
        [ $emulate = no ] || reason="not with emulated programs"
        verdict skip "$reason"
        return
    fi
    if [ "${batch:-0}" -eq 0 ]; then
        verdict skip "nothing to compare: our training did not run"
        return
    fi
    size=$(torch_batch)
    for turn in 1 2; do
        start=$SECONDS
        train "gpt2.c turn $turn" "$size" || { verdict FAIL "$why"; return; }
        ours+=("$ms")
        while ! run_torch "$size" "$work/torch"; do
            if [ ${#theirs[@]} -gt 0 ] || [ "$size" -eq 1 ]; then break; fi
            grep -q -i 'out of.* memory' "$work/torch" || break
            size=$((size / 2))
            train "gpt2.c turn $turn" "$size" || { verdict FAIL "$why"; return; }
            ours=("$ms")
        done
        [ -n "$torch_ms" ] || break
        theirs+=("$torch_ms")
        speed_row "PyTorch turn $turn" "$size" "$torch_ms" \
            "$(calculate "%.2f GiB" "${torch_memory:-0} / $GIB")"
        result "PyTorch turn $turn peak memory" "${torch_memory:-0}" bytes
        if [ "$(remaining)" -lt $((SECONDS - start + 60)) ]; then break; fi # leaves some for the sanitizers
    done
    torch_verdict "$size" "${ours[*]}" "${theirs[*]-}"
}

torch_verdict() { # batch, our times, theirs
    local ratio
    if [ -z "$3" ]; then
        verdict skip "the twin did not run: $(tail -n 1 "$work/torch")"
        return
    fi
    ratio=$(awk -v ours="$2" -v theirs="$3" 'BEGIN { n = split(ours, a); m = split(theirs, b)
        for (i in a) { x += a[i] / n }
        for (i in b) { y += b[i] / m }
        printf "%.3f", y / x }')
    table_row "speed, PyTorch = 1" "$1" "" "" "" "$ratio"
    result ratio_to_torch "$ratio" ""
    verdict ok "PyTorch $torch: ours is $ratio times as fast at batch $1"
}

# --- all of it -----------------------------------------------------------------------------------------------------
precisions="BF16 FP32" groups="" whole_model_test=test_gpt2 # no groups of test_kernels: all
[ $emulate = no ] || precisions=BF16 groups="encoder gelu" whole_model_test=""
for log in build tests sanitizer train torch; do : >"$out/$log.log"; done
: >"$work/table"
: >"$work/plan"
gpu="" gpu_name="" torch="" free_bytes=0 batch=0 peak_teraflops="" watcher=""
ranks=0 ranks_batch=() ranks_hash="" ranks_ms=""

check_machine
check_build
check_tests
check_kernel_times
check_training
check_ranks
check_torch
start_emulator
check_sanitizers
wait_for_emulator() { for pid in "${children[@]+"${children[@]}"}"; do wait "$pid" 2>/dev/null; done; }
wait_for_emulator
check_emulator

part=all
result time "$SECONDS" s
result failures "$failures" ""
{
    echo "gpt2.c $(git rev-parse --short HEAD 2>/dev/null) on $gpu_name, $(date -u '+%Y-%m-%d %H:%M') UTC"
    echo
    cat "$work/parts"
    echo
    cat "$work/table"
    echo
    if [ -s "$out/kernels.csv" ]; then sed -n '/^device:/p; /^kernel /,$p' "$work/bench"; fi
    echo
    echo "$SECONDS s, $failures failed"
} >"$out/summary.txt"
echo
cat "$out/summary.txt"
[ "$failures" -eq 0 ]
