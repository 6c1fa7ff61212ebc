# dicerl on a CPU: `docker build -t dicerl .`, then `docker run --rm -it dicerl train CartPole-v1`.
# More in docs/howto/container.md. tests/test_container.py runs these steps without Docker.
FROM python:3.11-slim

# As in the Makefile: the index torch is taken from, for example one of CPU builds.
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /opt/dicerl

# Torch first and alone: what changes with every commit comes after what takes minutes.
COPY constraints.txt ./
RUN python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt ${TORCH_INDEX:+--index-url $TORCH_INDEX} torch

COPY pyproject.toml README.md LICENSE ./
COPY dicerl ./dicerl
RUN python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt .

RUN useradd --create-home --uid 1000 dicerl
USER dicerl
WORKDIR /home/dicerl
ENTRYPOINT ["dicerl"]
CMD ["--help"]
