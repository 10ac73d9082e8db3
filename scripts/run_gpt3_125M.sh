#!/usr/bin/env bash
# Reproduces GPT-3 125M (12 layers, 768 channels, context 2048) from 100 billion tokens of FineWeb, read three times.
#
#   scripts/run_gpt3_125M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt3_125M.sh             all of it in small, on the CPU, in about a minute
#
# Ctrl-C saves and ends. The same command goes on, whatever stopped it. --help lists the settings.
#
# To expect of 572,204 steps of 524,288 (300 billion tokens, 2.6e+20 FLOPs):
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    511.4 hours       64.1 hours      184.9 hours       23.2 hours   predicted
#   cost                    767 dollars      770 dollars      462 dollars      465 dollars   predicted
#
#   validation loss      unknown          nothing published was found on FineWeb
#   HellaSwag            33.7 %           published: GPT-3 paper, table H.1, no examples given, on the paper's own data
#
# Batch, rate, warm-up (375 million tokens), final rate and number of tokens are the paper's (table 2.1, appendix B).
# But the rate falls until the end, and each token sees all before it in every layer.
#
# dev/bench/predict.py --figures predicts, for 32 sequences at once on each GPU; --auto chooses how many. Validation and
# saving come on top. The cost assumes 1.50 dollars for an hour of an A100 and 2.50 for one of an H100.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

# ---- Settings, which the environment overrides ----
: "${OUT_DIR:=run_gpt3_125M}"       # the run's folder: checkpoints, logs, curves
: "${DATA_DIR:=dev/data}"           # the folder of the data (200 GB)
: "${STEPS:=572204}"                # of 524,288 tokens
: "${TRAINER:=./train_gpt2cu}"      # built with make; another path is taken as it is
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR

# ---- The command: one process for each GPU. scripts/multi_node/ sets LAUNCH, for several machines ----
command=("${launch[@]}" "$TRAINER"
    --train-data "$DATA_DIR/fineweb100B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb100B/fineweb_val_*.bin" --val-every 250 --val-sequences 5120
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init gpt3:c768 --seq-len 2048 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 6e-4 --schedule cosine --warmup 715 --final-lr-frac 0.1 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 50000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

# ---- Build, and refuse what does not fit, before hours go into the data ----
build && plan "${command[@]}"

# ---- Data: programs of dev/data, unless so many files are there ----
: "${SHARDS:=1000}" # of 100 million tokens each
fetch 1 "$DATA_DIR/gpt2_tokenizer.bin" vocab.py --out "$DATA_DIR"
fetch 1 "$DATA_DIR/hellaswag/hellaswag_val.bin" \
    hellaswag.py --out "$DATA_DIR/hellaswag" --vocab "$DATA_DIR/gpt2_tokenizer.bin"
fetch $((SHARDS + 1)) "$DATA_DIR/fineweb100B/fineweb_*.bin" \
    fineweb.py --version 100B --out "$DATA_DIR/fineweb100B" --limit "$SHARDS"

# ---- Train, with --resume and again after a failure; export for Hugging Face, draw the curves, say the result ----
keep_training "${command[@]}"
finish "expected: HellaSwag 0.337, if FineWeb serves as well as the paper's data"
