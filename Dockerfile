# Builds and tests the CPU programs, then trains a small GPT on their sources:
#   docker build -t gpt2c . && docker run --rm -t gpt2c
# Your own text: docker run --rm -t -v "$PWD/book.txt:/book.txt:ro" gpt2c scripts/quickstart.sh /book.txt
# With GPUs: FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04, after the tests RUN make train_gpt2cu, docker run --gpus all
FROM debian:12-slim

RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc g++ libc6-dev make python3 python3-numpy python3-pytest python3-pytest-xdist python3-pytest-timeout \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home gpt2c && install -d -o gpt2c -g gpt2c /home/gpt2c/gpt2.c

WORKDIR /home/gpt2c/gpt2.c
COPY --chown=gpt2c:gpt2c . .
USER gpt2c

# ARCH=: for any processor of this kind, because the image may run elsewhere. The quickstart builds for the one it is on.
RUN make ARCH= all
RUN make ARCH= test
CMD ["scripts/quickstart.sh"]
