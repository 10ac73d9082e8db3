#!/usr/bin/env bash
# Builds, tests and measures the GPU trainer on a machine with GPUs, in 9 minutes on one and on eight. It needs make,
# gcc or clang, and nvcc. It uses PyTorch and nsys where they are.
#
#   dev/gpu_check.sh OUTDIR [NAME=VALUE ...]    NAME=VALUE: for make, e.g. GPU_ARCH=90
#
# OUTDIR gets results.md, a table to commit under dev/bench/results/, and a log of each part. Every part has its own
# time limit, and none stops the others. The status is 1 if a part failed. GPU_CHECK_EMULATED=1 takes the emulated
# programs and a tiny model: a test of this script. GPU_CHECK_SECONDS=900 grants more time in all.
set -u
out=$(mkdir -p "${1:?OUTDIR is missing}" && cd "$1" && pwd) && cd "$(dirname "$0")/.." && shift || exit 1
export LC_ALL=C PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"
total=${GPU_CHECK_SECONDS:-530} failed=0 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

row() { printf '| %s | %s | %d s | %s |\n' "$@" | tee -a "$out/results.md"; }

# The step of median time in a log, without the first three. A log without steps: its last line.
said() {
    sed -n 's/^step .*| *\([0-9.]* ms |.*\) | .* left$/\1/p' "$1" | sed 1,3d | sort -n >"$work/steps"
    sed -n "$((($(wc -l <"$work/steps") + 1) / 2))p" "$work/steps" 2>/dev/null | grep . || tail -n 1 "$1"
}

# part NAME SECONDS COMMAND ...: a row of the table. What this machine cannot do is no failure, nor is what PyTorch
# does.
part() {
    local limit=$2 start=$SECONDS status=0 verdict=ok text
    local cannot='matrix multiplies need|built without NCCL|memory plan: needs'
    log=$out/$(tr -c 'A-Za-z0-9\n' _ <<<"$1").log
    [ "$limit" -le $((total - SECONDS)) ] || limit=$((total - SECONDS))
    [ "$limit" -ge 3 ] || { row "$1" skip 0 "no time left" && return 1; }
    timeout -k 5 "$limit" "${@:3}" </dev/null >"$log" 2>&1 || status=$?
    [ $status != 0 ] && verdict=FAIL
    [ $status != 0 ] && { [[ $1 = PyTorch* ]] || grep -qE "$cannot" "$log"; } && verdict=skip
    [ $verdict != FAIL ] || failed=1
    text=$(said "$log" | sed 's: | :, :g')
    [ $status != 124 ] || text="no end within $limit s"
    row "$1" $verdict $((SECONDS - start)) "$text"
    return $status
}

# train NAME SECONDS GPUS OPTIONS ...: the trainer, one process a GPU.
train() {
    local launch=("$trainer")
    [ "$3" = 1 ] || launch=(scripts/multi_node/local_ranks.sh 0 "$3" "$trainer" --num-processes "$3" --nccl-init fs
        --nccl-fs-path "$(mktemp -d "$work/start.XXXXXX")" --start-timeout 20)
    part "$1" "$2" "${launch[@]}" --val-every 0 --sample-every 0 --seed 1 "${@:4}"
}

# ---- The machine. What nvidia-smi does not say is left open; of a card in slices (MIG) a process sees one ----
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
nvidia-smi -L >"$work/gpus" 2>/dev/null
gpus=$(grep -c '^GPU ' "$work/gpus")
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
if grep -q '^ *MIG ' "$work/gpus"; then gpus=1 gpu="a MIG slice of $gpu"; fi
[ "$gpus" -ge 1 ] || gpus=1
cuda=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
{
    printf '# gpt2.c %s on %s\n\n' "$(git describe --always --dirty 2>/dev/null)" "${gpu:-a GPU without a name}"
    printf '%d GPUs, CUDA %s, %s UTC\n\n' "$gpus" "${cuda:-unknown}" "$(date -u '+%Y-%m-%d %H:%M')"
    printf '| part | verdict | time | median step, else the last line |\n|---|---|---|---|\n'
} | tee "$out/results.md"

# ---- Programs and tests ----
data=(--train-data "$work/tokens.bin" --seq-len 1024) d12=(--init d12) d48=(--init d48) few=4 many=64 steps=20
trainer=./train_gpt2cu tests=build/cuda/test_kernels groups=()
if [ "${GPU_CHECK_EMULATED:-0}" = 1 ]; then
    data=(--train-data LICENSE --seq-len 32) d12=(--layers 1 --heads 1 --channels 32 --context 32) d48=("${d12[@]}")
    trainer=./train_gpt2emu tests=build/emu/gpu_tests groups=(gelu) few=1 many=4 steps=5
else
    # 8 Mi random tokens below 32768, behind the header of a shard.
    printf '\x88\xd8\x34\x01\1\0\0\0\0\0\x80\0' >"$work/tokens.bin"
    head -c 1012 /dev/zero >>"$work/tokens.bin"
    head -c 16777216 /dev/urandom | tr '\200-\377' '\000-\177' >>"$work/tokens.bin"
    part "build the trainer" 60 make "$@" train_gpt2cu
    part "build the tests" 150 make -j2 "$@" test_gpt2cu $tests
    part "test_gpt2cu" 60 ./test_gpt2cu
fi
part "all terms of sums" 40 $tests terms
part "kernels" 60 $tests ${groups[@]+"${groups[@]}"}

# ---- Ranks: every stage of sharding makes equal weights, because each rank has one micro-batch in a step ----
for count in $(printf '%d\n' 1 2 4 "$gpus" | sort -nu); do
    [ "$count" -le "$gpus" ] || break
    first=""
    for stage in 0 1 2 3; do
        [ "$count" -gt 1 ] || [ $stage = 0 ] || break
        train "d12 on $count, stage $stage" 30 "$count" "${data[@]}" "${d12[@]}" -b $few -x 8 -z $stage || continue
        hash=$(sed -n 's/^weights hash //p' "$log")
        [ "$hash" = "${first:=$hash}" ] && continue
        failed=1 && row "weights on $count" FAIL 0 "$hash in stage $stage, $first before"
    done
done
muon=("$gpus" "${data[@]}" "${d12[@]}" -b "$few" -x 8 --optimizer muon -z 1)
train "Muon on $gpus" 30 "${muon[@]}"
train "Muon on $gpus in 8 bits" 30 "${muon[@]}" --fp8 1

# ---- One GPU: the batches that README predicts, where the time goes, and PyTorch with its own largest batch ----
for bits in 0 1; do
    train "d12, batch $many, --fp8 $bits" 40 1 "${data[@]}" "${d12[@]}" -b $many -x $steps --fp8 $bits
    train "d48, batch $((many / 4)), --fp8 $bits" 40 1 "${data[@]}" "${d48[@]}" -b $((many / 4)) -x $steps --fp8 $bits
done
if command -v nsys >/dev/null; then
    part "kernels' times by nsys" 50 nsys profile --trace cuda --stats true --output "$work/trace" $trainer \
        "${data[@]}" "${d12[@]}" -b $many -x 8 --val-every 0 --sample-every 0 &&
        sed -n '/cuda_gpu_kern_sum/,/^\[/p' "$log" >"$out/kernels.txt"
else
    row "kernels' times" skip 0 "no nsys here; it comes with the CUDA toolkit"
fi
if timeout 20 python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    for model in "d12 128" "d12 64" "d12 32" "d12 16" "d48 32" "d48 16" "d48 8" "d48 4"; do
        [ "${model% *}" != "${done_model:-}" ] || continue
        part "PyTorch ${model/ /, batch }" 90 python3 dev/bench/bench_torch.py --attention flash "${data[@]}" \
            --init "${model% *}" --batch-size "${model#* }" --steps $steps && done_model=${model% *}
    done
else
    row "PyTorch" skip 0 "no python3 with a PyTorch that sees the GPU"
fi
exit $failed
