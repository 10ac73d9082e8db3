#!/usr/bin/env bash
# Two tables of a training step: its longest kernels and the gaps between them, and how far each launcher is from its
# floor.
#
#   dev/bench/step_table.sh STEP.CSV KERNELS.CSV LAYERS CHANNELS VOCABULARY TOKENS
#
# STEP.CSV is written by trace_kernels.cpp; KERNELS.CSV by bench_gpu: the bytes and operations of each launch at least,
# of the same model and sequence length, and what this GPU's memory and arithmetic reach. Missing or empty: no second
# table.
set -eu
export LC_ALL=C
if [ $# -ne 6 ]; then
    echo "step_table.sh: $# arguments, expected 6: STEP.CSV KERNELS.CSV LAYERS CHANNELS VOCABULARY TOKENS" >&2
    exit 1
fi
if ! [ -s "$1" ]; then
    echo "step_table.sh: $1: not there or empty, expected what trace_kernels.cpp writes" >&2
    exit 1
fi

print_kernels() {
    awk -F, '
        NR == 1 { printf "%8s %6s %7s %9s %9s  %s\n", "ms/step", "%", "calls", "us each", "idle us", "kernel" }
        $1 ~ /^\(gap/ {
            printf "%8.3f %5.1f%% %7.1f gaps of %.2f us by the median, the largest of %.1f us\n", $4, $5, $2, $3, $6
        }
        $1 ~ /^\(two/ { printf "%8.3f %5.1f%% of it a second time, beside others\n", $4, $5 }
        NR == 1 || $1 ~ /^\((gap|two)/ { next }
        shown < 31 { printf "%8.3f %5.1f%% %7.1f %9.2f %9.2f  %s\n", $4, $5, $2, $3, $6, $1; shown++; next }
        { rest += $4; percent += $5; others++ }
        END { if (others) { printf "%8.3f %5.1f%% %27s  %d others\n", rest, percent, "", others } }' "$1"
}

# A kernel belongs to the row of KERNELS.CSV with the longest name that its own begins with. The matrix multiplies of
# cuBLASLt are one row, whose operations are those of the model, and cuDNN's attention another.
print_launchers() {
    awk -F, -v layers="$3" -v channels="$4" -v vocab="$5" -v tokens="$6" '
        function row_of(kernel,    name, best) {
            if (kernel ~ /fmha|flash|cudnn/) { return "attention by cuDNN" }
            if (kernel ~ /nvjet|gemm|cutlass|xmma|cublas/) { return "all matrix multiplies" }
            if (kernel ~ /^attention_dots/) { return "attention_backward" }
            if (kernel ~ /^fp8_/) { return "" } # of tensors of several widths
            for (name in bytes) { if (index(kernel, name) == 1 && length(name) > length(best)) { best = name } }
            return best
        }
        FNR == 1 { next }
        FNR == NR && FNR == 2 { bandwidth = $9 } # GB/s of a copy
        FNR == NR && FNR == 3 { peak = $10 } # TFLOP/s of a square multiply
        FNR == NR {
            scale = $1 ~ /classifier/ ? 1 : tokens * channels / ($3 * $4 * $5)
            if ($1 ~ /global_norm|adamw|params_from/) { of_parameters[$1] = scale = 1 }
            if ($1 ~ /global_norm/) { measured_parameters = $7 / 4e-9 } # it reads 4 bytes of each
            bytes[$1] = $7 * scale; flops[$1] = $8 * scale
            next
        }
        $1 ~ /^\(/ { next }
        (row = row_of($1)) != "" { ms[row] += $4; if ($2 > calls[row]) { calls[row] = $2 } }
        END {
            weights = 12 * layers * channels ^ 2 + vocab * channels
            for (row in ms) {
                if (ms[row] <= 0) { continue }
                times = calls[row]
                if (row in of_parameters) { times = measured_parameters > 0 ? weights / measured_parameters : 1 }
                gb = bytes[row] * times; gflop = flops[row] * times
                if (row == "all matrix multiplies") { gflop = 6e-9 * tokens * weights }
                if (row ~ /cuDNN/) { gflop = layers * (flops["attention_forward"] + flops["attention_backward"]) }
                floor = bandwidth > 0 ? 1000 * gb / bandwidth : 0
                if (peak > 0 && gflop / peak > floor) { floor = gflop / peak }
                printf "%8.3f %7.1f %9.3f %10.1f %8.0f %8.1f %8.1f%%  %s\n", ms[row], calls[row], gb, gflop,
                    1000 * gb / ms[row], gflop / ms[row], 100 * floor / ms[row], row
            }
        }' "$2" "$1" | sort -rn
}

print_kernels "$1"
if [ -s "$2" ]; then
    printf '\n%8s %7s %9s %10s %8s %8s %9s  %s\n' ms/step calls GB GFLOP GB/s TFLOP/s "of floor" launcher
    print_launchers "$@"
fi
