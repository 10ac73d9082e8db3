#!/usr/bin/env bash
# Reproduces GPT-2 124M (12 layers, 768 channels) from 10 billion tokens of FineWeb.
#
#   scripts/run_gpt2_124M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_124M.sh             all of it in small, on the CPU, in about a minute
#
# Ctrl-C saves and ends. The same command goes on, whatever stopped it. --help lists the settings.
#
# To expect of 18,865 steps of 524,288 (9.9 billion tokens, 7.9e+18 FLOPs):
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                     14.0 hours        1.8 hours        5.0 hours        0.6 hours   predicted
#   cost                     21 dollars       21 dollars       13 dollars       13 dollars   predicted
#
#   validation loss      near 3.28        published: 3.2847 by llm.c's trainer (README of modded-nanogpt)
#   HellaSwag            29.9 %           published: llm.c's discussion 481, 1.5 hours on 8 A100
#   to beat              3.2722           published: llm.c's later run, 10.26 billion tokens in 45 minutes on 8 H100, a
#                                         step of 140 ms
#   OpenAI's model       3.4250, 29.4 %   published: llm.c's figures, on the same validation data
#
# --optimizer muon --muon-scale rms behind the name trains the matrices with Muon (doc/muon.md), in the same steps with
# AdamW's rate and decay. Published: the loss above after 65 to 75 % of the tokens (Jordan et al. 2024).
#
# dev/bench/predict.py --figures predicts, for 64 sequences at once on each GPU; --auto chooses how many. Validation and
# saving come on top. The cost assumes 1.50 dollars for an hour of an A100 and 2.50 for one of an H100.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

# ---- Settings, which the environment overrides ----
: "${OUT_DIR:=run_gpt2_124M}"       # the run's folder: checkpoints, logs, curves
: "${DATA_DIR:=dev/data}"           # the folder of the data (20 GB)
: "${STEPS:=18865}"                 # of 524,288 tokens
: "${TRAINER:=./train_gpt2cu}"      # built with make; another path is taken as it is
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR

# ---- The command: one process for each GPU. scripts/multi_node/ sets LAUNCH, for several machines ----
command=("${launch[@]}" "$TRAINER"
    --train-data "$DATA_DIR/fineweb10B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb10B/fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d12 --seq-len 1024 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 6e-4 --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
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
fetch $((SHARDS + 1)) "$DATA_DIR/fineweb10B/fineweb_*.bin" \
    fineweb.py --version 10B --out "$DATA_DIR/fineweb10B" --limit "$SHARDS"

# ---- Train, with --resume and again after a failure; export for Hugging Face, draw the curves, say the result ----
keep_training "${command[@]}"
finish "expected: near 3.28 and 0.299; to beat: 3.2722"
