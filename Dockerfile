# Two images with everything that a build in the checkout needs: `--target cpu`, `--target cuda`.
# The sources are not in them: compose.yml mounts the checkout on /workspace, and what is made there
# stays in volumes, apart from what the host has built.

ARG CPU_BASE=docker.io/library/debian:12.12-slim
ARG CUDA_BASE=docker.io/nvidia/cuda:13.0.1-devel-ubuntu24.04

FROM ${CPU_BASE} AS cpu
# The base is pinned; packages of a stable distribution change for security only.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
       ca-certificates ccache g++ git libgtest-dev make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
ARG UID=1000
# A build behind a proxy, or without PyTorch's index, hands in certificates and a folder of wheels.
ARG PIP_CERT
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1
RUN useradd --non-unique --create-home --no-log-init --uid "$UID" developer \
    && install -d -o developer /workspace /workspace/build /workspace/runs \
       /workspace/transformer_kernels /workspace/transformer_kernels/lib
USER ${UID}
WORKDIR /workspace
COPY --chown=developer tools/setup_env.py tools/
COPY --chown=developer tools/requirements tools/requirements
RUN python3 tools/setup_env.py run notebook tracking
ENV PATH=/workspace/.venv/bin:$PATH
CMD ["bash"]

FROM ${CUDA_BASE} AS cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
       ca-certificates ccache g++ git libgtest-dev make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
ARG UID=1000
ARG PIP_CERT
ARG PIP_FIND_LINKS
# A build of the image sees no driver, so it names the PyTorch of the base's CUDA.
ENV PIP_NO_CACHE_DIR=1 TORCH=torch==2.11.0
RUN useradd --non-unique --create-home --no-log-init --uid "$UID" developer \
    && install -d -o developer /workspace /workspace/build /workspace/runs \
       /workspace/transformer_kernels /workspace/transformer_kernels/lib
USER ${UID}
WORKDIR /workspace
COPY --chown=developer tools/setup_env.py tools/
COPY --chown=developer tools/requirements tools/requirements
RUN python3 tools/setup_env.py run notebook tracking cupy
ENV PATH=/workspace/.venv/bin:$PATH
CMD ["bash"]
