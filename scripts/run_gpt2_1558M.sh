#!/usr/bin/env bash
# Reproduces GPT-2 1558M (48 layers, 1600 channels) from the first 34 billion of FineWeb-Edu's 100 billion tokens.
#
#   scripts/run_gpt2_1558M.sh                    on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_1558M.sh            all of it in small, on the CPU, in about a minute
#
# Ctrl-C saves and ends. The same command goes on, whatever stopped it. --help lists the settings.
#
# To expect of 32,000 steps of 1,048,576 (33.6 billion tokens, 3.3e+20 FLOPs):
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    533.3 hours       66.7 hours      181.3 hours       22.7 hours   predicted
#   cost                    800 dollars      801 dollars      453 dollars      454 dollars   predicted
#
#   validation loss      unknown          nothing published was found on FineWeb-Edu, for OpenAI's model neither
#   HellaSwag            above 48.9 %     published: llm.c's discussion 677, which passed it near step 25,000; 24 hours
#                                         on 8 H100
#   OpenAI's model       48.9 %           published: llm.c's figure
#
# dev/bench/predict.py --figures predicts, for 16 sequences at once on each GPU; --auto chooses how many. Validation and
# saving come on top. The cost assumes 1.50 dollars for an hour of an A100 and 2.50 for one of an H100.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

# ---- Settings, which the environment overrides ----
: "${OUT_DIR:=run_gpt2_1558M}"      # the run's folder: checkpoints, logs, curves
: "${DATA_DIR:=dev/data}"           # the folder of the data (67 GB)
: "${STEPS:=32000}"                 # of 1,048,576 tokens
: "${TRAINER:=./train_gpt2cu}"      # built with make; another path is taken as it is
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR

# ---- The command: one process for each GPU. scripts/multi_node/ sets LAUNCH, for several machines ----
command=("${launch[@]}" "$TRAINER"
    --train-data "$DATA_DIR/edu_fineweb100B/edu_fineweb_train_*.bin"
    --val-data "$DATA_DIR/edu_fineweb100B/edu_fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d48 --seq-len 1024 --total-batch 1048576 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 6e-4 --schedule cosine --warmup 700 --final-lr-frac 0.1 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

# ---- Build, and refuse what does not fit, before hours go into the data ----
build && plan "${command[@]}"

# ---- Data: programs of dev/data, unless so many files are there ----
: "${SHARDS:=$((STEPS / 95 + 1))}" # of 100 million tokens each
fetch 1 "$DATA_DIR/gpt2_tokenizer.bin" vocab.py --out "$DATA_DIR"
fetch 1 "$DATA_DIR/hellaswag/hellaswag_val.bin" \
    hellaswag.py --out "$DATA_DIR/hellaswag" --vocab "$DATA_DIR/gpt2_tokenizer.bin"
fetch $((SHARDS + 1)) "$DATA_DIR/edu_fineweb100B/edu_fineweb_*.bin" \
    fineweb.py --type edu --version 100B --out "$DATA_DIR/edu_fineweb100B" --limit "$SHARDS"

# ---- Train, with --resume and again after a failure; export for Hugging Face, draw the curves, say the result ----
keep_training "${command[@]}"
finish "expected: HellaSwag above 0.489"
