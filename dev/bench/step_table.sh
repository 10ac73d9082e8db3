#!/usr/bin/env bash
# Two tables of a training step: its longest kernels and the gaps between them, and each kernel's time beside the one
# that --plan predicts and beside its floor.
#
#   dev/bench/step_table.sh STEP.CSV PLAN KERNELS.CSV [JOINED.CSV]
#
# STEP.CSV is written by trace_kernels.cpp. PLAN: what the trainer prints with --plan and --gpu for the same run: each
# kernel's bytes, operations and predicted time. Empty or without such rows: no second table. KERNELS.CSV is written by
# bench_gpu: what this GPU's memory and arithmetic reach. Missing or empty: no floors. JOINED.CSV gets
# kernel,ms,predicted_ms,ratio.
set -eu
export LC_ALL=C
if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    echo "step_table.sh: $# arguments, expected 3 or 4: STEP.CSV PLAN KERNELS.CSV [JOINED.CSV]" >&2
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

# What a copy and a square multiply reach, in GB/s and TFLOP/s; 0: not measured.
reached() {
    [ -s "$1" ] || { echo 0 0; return; }
    awk -F, 'NR == 2 { bandwidth = $9 } NR == 3 { peak = $10 } END { print bandwidth + 0, peak + 0 }' "$1"
}

# Lines "kernel|ms|calls|predicted ms|GB|GFLOP", the step first, then those that take longest. A kernel of the trace
# belongs to the row of the plan with the longest name that its own begins with. The libraries' kernels do not tell of
# which layer they are: all multiplies of the plan are one row, and all of cuDNN another.
join_rows() { # STEP.CSV, PLAN
    awk '
        function row_of(kernel,    name, best) {
            if (kernel ~ /fmha|flash|cudnn/) { return "cudnn" }
            if (kernel ~ /nvjet|gemm|cutlass|xmma|cublas/) { return "matmul" }
            for (name in predicted) {
                if (index(kernel, name) == 1 && length(name) > length(best)) { best = name }
            }
            return best
        }
        FNR == NR {
            if ($5 !~ /^(memory|math|link|-)$/ || $1 !~ /^[0-9.]+$/) { next }
            name = $6
            for (i = 7; i <= NF && name !~ /^(matmul|cudnn)$/; i++) { name = name " " $i }
            predicted[name] += $1; gb[name] += $3; gflop[name] += $4
            next
        }
        FNR == 1 { next }
        {
            n = split($0, field, ",")
            if (field[1] == "(step)") { ms["the step"] = field[4]; next }
            if (field[1] ~ /^\(/ || (row = row_of(field[1])) == "") { next }
            ms[row] += field[4]; calls[row] += field[2]
        }
        END {
            for (name in predicted) {
                printf "%s|%.6f|%.1f|%.6f|%.6f|%.3f\n", name, ms[name], calls[name], predicted[name], gb[name],
                    gflop[name]
            }
        }' "$2" "$1" | sort -t '|' -k2,2gr -k4,4gr
}

print_predicted() { # lines of join_rows, GB/s, TFLOP/s
    awk -F '|' -v bandwidth="$2" -v peak="$3" '
        NR == 1 {
            printf "\n%8s %9s %8s %7s %9s %10s %8s %8s %9s  %s\n", "ms/step", "predicted", "measured", "calls", "GB",
                "GFLOP", "GB/s", "TFLOP/s", "of floor", "kernel"
            printf "%8s %9s %8s\n", "", "ms", "of it"
        }
        $2 <= 0 {
            printf "%8s %9.3f %8s %7s %9.3f %10.1f %8s %8s %9s  %s\n", "-", $4, "-", "-", $5, $6, "-", "-", "-", $1
            next
        }
        {
            floor = bandwidth > 0 ? 1000 * $5 / bandwidth : 0
            if (peak > 0 && $6 / peak > floor) { floor = $6 / peak }
            printf "%8.3f %9.3f %7.2fx %7.1f %9.3f %10.1f %8.0f %8.1f %8.1f%%  %s\n", $2, $4, ($4 > 0 ? $2 / $4 : 0),
                $3, $5, $6, 1000 * $5 / $2, $6 / $2, 100 * floor / $2, $1
        }' <<<"$1"
}

print_kernels "$1"
joined=$(join_rows "$1" "$2")
if [ -n "$joined" ]; then
    read -r bandwidth peak <<<"$(reached "$3")"
    print_predicted "$joined" "$bandwidth" "$peak"
    if [ $# -eq 4 ]; then
        awk -F '|' 'BEGIN { print "kernel,ms,predicted_ms,ratio" }
            $2 > 0 && $4 > 0 { printf "%s,%.3f,%.3f,%.3f\n", $1, $2, $4, $2 / $4 }' <<<"$joined" >"$4"
    fi
fi
