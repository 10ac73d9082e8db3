#!/usr/bin/env bash
# Reproduces GPT-2 350M (24 layers, 1024 channels) from the first 31 billion of FineWeb's 100 billion tokens.
#
#   scripts/run_gpt2_350M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_350M.sh             all of it in small, on the CPU, in about a minute
#
# Ctrl-C saves and ends. The same command goes on, whatever stopped it. --help lists the settings.
#
# To expect of 60,000 steps of 524,288 (31.5 billion tokens, 7.1e+19 FLOPs):
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    121.7 hours       15.2 hours       42.0 hours        5.3 hours   predicted
#   cost                    182 dollars      183 dollars      105 dollars      105 dollars   predicted
#
#   validation loss      unknown          nothing published was found for these settings, which are llm.c's
#   HellaSwag            unknown
#   OpenAI's model       3.0831, 37.5 %   published: llm.c's figures, on the same validation data
#
# dev/bench/predict.py --figures predicts, for 64 sequences at once on each GPU; --auto chooses how many. Validation and
# saving come on top. The cost assumes 1.50 dollars for an hour of an A100 and 2.50 for one of an H100.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

# ---- Settings, which the environment overrides ----
: "${OUT_DIR:=run_gpt2_350M}"       # the run's folder: checkpoints, logs, curves
: "${DATA_DIR:=dev/data}"           # the folder of the data (63 GB)
: "${STEPS:=60000}"                 # of 524,288 tokens
: "${TRAINER:=./train_gpt2cu}"      # built with make; another path is taken as it is
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR

# ---- The command: one process for each GPU. scripts/multi_node/ sets LAUNCH, for several machines ----
command=("${launch[@]}" "$TRAINER"
    --train-data "$DATA_DIR/fineweb100B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb100B/fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d24 --seq-len 1024 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 3e-4 --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

# ---- Build, and refuse what does not fit, before hours go into the data ----
build && plan "${command[@]}"

# ---- Data: programs of dev/data, unless so many files are there ----
: "${SHARDS:=$((STEPS / 190 + 1))}" # of 100 million tokens each
fetch 1 "$DATA_DIR/gpt2_tokenizer.bin" vocab.py --out "$DATA_DIR"
fetch 1 "$DATA_DIR/hellaswag/hellaswag_val.bin" \
    hellaswag.py --out "$DATA_DIR/hellaswag" --vocab "$DATA_DIR/gpt2_tokenizer.bin"
fetch $((SHARDS + 1)) "$DATA_DIR/fineweb100B/fineweb_*.bin" \
    fineweb.py --version 100B --out "$DATA_DIR/fineweb100B" --limit "$SHARDS"

# ---- Train, with --resume and again after a failure; export for Hugging Face, draw the curves, say the result ----
keep_training "${command[@]}"
finish "OpenAI's model: 3.0831 and 0.375"
